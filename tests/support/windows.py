"""Hide from gpumagic's modules, in this process, what Python has only where POSIX is.

The other libraries are Linux's and need it; so the driver's and the file system's names stay, too.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

MODULES = frozenset({"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "posix"})
#: What is missing in a module that is there.
NAMES: Mapping[ModuleType, str] = {
    os: "fork forkpty execv execve getuid geteuid getgid setsid killpg getpgid register_at_fork "
    "sched_getaffinity O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_NONBLOCK memfd_create getloadavg",
    signal: "SIGKILL SIGSTOP SIGHUP SIGALRM SIGUSR1 SIGCHLD setitimer pthread_sigmask siginterrupt",
    sys: "",
}


class Partly:
    """A module with some names missing, and others changed."""

    def __init__(self, module: ModuleType, missing: str, **changed: Any) -> None:
        vars(self).update(changed, _module=module, _missing=missing.split())

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"Windows has no {name}", name=name, obj=self)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def hide() -> None:
    """Let gpumagic's imports find what there is on Windows; before any of its modules is there."""
    assert not any(name.split(".")[0] == "gpumagic" for name in sys.modules)
    partly = {module.__name__: Partly(module, gone) for module, gone in NAMES.items()}
    vars(partly["sys"])["platform"] = "win32"
    found = builtins.__import__

    def imported(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if str((globals or {}).get("__name__")).split(".")[0] == "gpumagic":
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in partly:
                return partly[name]
        return found(name, globals, locals, fromlist or (), level)

    builtins.__import__ = imported
