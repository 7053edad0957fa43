"""What every process with a shell of IPython has anyway: variables refer to it by its name."""

from __future__ import annotations

import sys
from typing import Any

from gpumagic.system.shell import Shell

#: What IPython binds in every new shell, and has in `user_ns_hidden`, as later each output.
BOUND = ("get_ipython", "exit", "quit", "open", "In", "Out", "_dh")
#: The standard streams.
STREAMS = ("stdin", "stdout", "stderr")


def own_streams() -> dict[str, Any]:
    """Return the standard streams that are those of the process or of its kernel, by name.

    Another one, a `io.StringIO` for example, is the user's, and what it holds is data.
    """
    found = {name: getattr(sys, name) for name in STREAMS}
    return {
        name: each
        for name, each in found.items()
        if each is getattr(sys, f"__{name}__") or type(each).__module__ == "ipykernel.iostream"
    }


def process_objects(shell: Shell) -> dict[str, Any]:
    """Return what a process with a shell has anyway, by names that are those of every process."""
    hidden = shell.user_ns_hidden
    found = {name: hidden[name] for name in BOUND if name in hidden}
    return {**found, **own_streams(), "shell": shell, "namespace": shell.user_ns}
