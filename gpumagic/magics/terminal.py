"""What a shell's text is printed to, and results for a shell that displays them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpumagic.system.output import Output
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from gpumagic.render.blocks import Block


def output_of(shell: Shell, stream: object = None) -> Output:
    """Return the stream that a shell prints to, or another one; never a terminal in a kernel."""
    in_kernel = hasattr(shell, "kernel")
    return Output(stream, in_kernel=in_kernel, color=in_kernel or shell.colors.lower() != "nocolor")


def mime_bundle(shell: Shell, blocks: Sequence[Block]) -> dict[str, str]:
    """Return the MIME bundle of blocks, in which the text fits where it is seen."""
    from gpumagic.render import html, text

    return {"text/plain": text.drawn(blocks, output_of(shell)), "text/html": html.render(blocks)}
