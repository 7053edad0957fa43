"""Publish the notebook's name and its idle time with the claim, where it is configured."""

from __future__ import annotations

from typing import Any

from gpumagic.cells.hooks import CellHook
from gpumagic.cuda.process_state import STATE
from gpumagic.magics.extension import Extension
from gpumagic.magics.gpu.saved_choice import connection_file


def update(extension: Extension) -> None:
    """Begin or stop publishing, as the configuration says; nothing without a claim."""
    wanted = extension.magics.publish_notebook and bool(STATE.choice.claim)
    if not wanted and extension.publishing is None:
        return
    from gpumagic.selection import claims, notebooks

    if wanted and extension.publishing is None:
        name = notebooks.this_notebook(connection_file(extension.shell)) or "a notebook"

        def publish(*, busy: bool) -> None:
            if STATE.choice.claim:
                claims.publish_notebook(name, busy=busy)

        def before(_: Any, __: Any) -> None:
            publish(busy=True)

        hook = CellHook[None](
            after=lambda _, __: publish(busy=False),
            before=before,
            cancelled=lambda: publish(busy=False),
        )
        extension.publishing = hook
        extension.hooks.add(hook, running=True)
    elif extension.publishing is not None and not extension.magics.publish_notebook:
        extension.hooks.remove(extension.publishing)
        extension.publishing = None
        claims.publish_notebook(None, busy=False)
