"""Prepare a process for ``execve``: flush its files, restore its standard streams, list losses."""

from __future__ import annotations

import ctypes
import gc
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpumagic.system.text import plural


def lost(shell: Any) -> list[str]:
    """Return what is lost apart from variables, a phrase each."""
    comms = getattr(getattr(getattr(shell, "kernel", None), "comm_manager", None), "comms", {})
    return [plural(len(comms), "widget or its comm", "widgets and their comms")] if comms else []


#: Names that IPython, a front end, a debugger or torch's compiler binds in the user's namespace.
_NOT_USERS = re.compile(
    r"_+|_i+|_i?\d+|_i?h|_oh|_dh|_exit_code|_VSCODE_.*|__(vsc|pydevd|DW).*"
    r"|__(name|doc|package|loader|spec|cached|builtins?|(conditional_)?annotat\w+"
    r"|warningregistry|return|exception|traceback_?hide|tracebackhide|session)__"
    r"|__(builtins_dict__|compiled_fn|resume_at|import|comprehension_\w+_at|gen_rand_values)_.*"
    r"|__warnings_warn_wrapper_.*|___context_manager_\d.*"
)


def variables(shell: Any) -> dict[str, Any]:
    """Return the user's variables, including modules, functions and names with an underscore."""
    hidden = shell.user_ns_hidden
    return {
        name: value
        for name, value in shell.user_ns.items()
        if not _NOT_USERS.fullmatch(name) and not (name in hidden and hidden[name] is value)
    }


_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def flush_files() -> None:
    """Flush the buffers of open files, as an interpreter does when it ends."""
    for each in gc.get_objects():
        if issubclass(type(each), _BUFFERED):
            with suppress(OSError, ValueError):  # closed, or the reader has gone
                each.flush()
    ctypes.CDLL(None).fflush(None)
    for stream in (*_streams_of_kernel(), sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be the user's own
            stream.flush()


def _streams_of_kernel() -> list[Any]:
    """Find the streams that ipykernel made: ``sys.stdout`` may be one of the user's around them."""
    module = sys.modules.get("ipykernel.iostream")
    if module is None:
        return []
    return [each for each in gc.get_objects() if type(each) is module.OutStream]


@contextmanager
def original_streams() -> Iterator[None]:
    """Restore the descriptors 1 and 2 that ipykernel has replaced by pipes."""
    replaced: dict[int, int] = {}
    try:
        for stream in _streams_of_kernel():
            original: int | None = getattr(stream, "_original_stdstream_copy", None)
            descriptor: int | None = getattr(stream, "_original_stdstream_fd", None)
            if original is not None and descriptor is not None and descriptor not in replaced:
                replaced[descriptor] = os.dup(descriptor)
                os.dup2(original, descriptor)
        yield
    finally:
        for descriptor, pipe in replaced.items():
            os.dup2(pipe, descriptor)
            os.close(pipe)
