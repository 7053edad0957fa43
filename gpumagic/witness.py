"""Who initialised CUDA: the statement, and the import within it, after which the driver was up.

From the moment the extension loads until CUDA is initialised, the driver is asked after every
statement of a cell and after every import of a new top-level package; a question costs some
microseconds. Then the hooks go: there is nothing left to see.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple


class Culprit(NamedTuple):
    """What was running when CUDA was initialised.

    ``statement`` is the first line of the statement as the user wrote it, or None if CUDA was
    initialised before anything was watched; ``cell`` its cell's execution number, ``line`` its line
    there; ``package`` the imported package during whose import it happened.
    """

    statement: str | None
    cell: int | None = None
    line: int | None = None
    package: str | None = None

    def __str__(self) -> str:
        if self.statement is None:
            return "CUDA had been initialised before gpumagic was loaded"
        place = f" (line {self.line})" if self.line is not None else ""
        text = f"CUDA was initialised while cell [{self.cell}] ran `{self.statement}`{place}"
        if self.package is not None:
            text += f", by the import of {self.package}"
        return text


_LONGEST = 80


class Witness:
    """Watches one shell. `attach` and `detach` are exact opposites."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._package: str | None = None
        self._import: Callable[..., Any] | None = None
        self._watched_import: Callable[..., Any] | None = None
        self._watched_run: Callable[..., Any] | None = None
        self.culprit: Culprit | None = None
        #: The environment right after CUDA was initialised, if that was seen.
        self.environment: dict[str, str] | None = None

    def attach(self) -> None:
        """Start watching, unless CUDA is initialised already."""
        # Whatever uses CUDA from Python has imported ctypes; without it nothing need be asked.
        if "ctypes" in sys.modules and _driver_is_up():
            self.culprit = Culprit(None)
            return
        run_code = self._shell.run_code

        async def watched_run(code: CodeType, result: Any = None, **options: Any) -> Any:
            outcome = await run_code(code, result, **options)
            self._after(code, getattr(result, "execution_count", None))
            return outcome

        self._watched_run = self._shell.run_code = watched_run
        self._import, self._watched_import = builtins.__import__, self._importing()
        builtins.__import__ = self._watched_import

    def _importing(self) -> Callable[..., Any]:
        original, modules = builtins.__import__, sys.modules

        def watched_import(
            name: str,
            globals: Any = None,
            locals: Any = None,
            fromlist: Any = (),
            level: int = 0,
        ) -> Any:
            if level or name.partition(".")[0] in modules:
                return original(name, globals, locals, fromlist, level)
            try:
                return original(name, globals, locals, fromlist, level)
            finally:
                # The innermost import ends first, so the first to see it is the nearest.
                if self._package is None and _driver_is_up():
                    self._package = name.partition(".")[0]

        return watched_import

    def _after(self, code: CodeType, cell: int | None) -> None:
        if not _driver_is_up():
            self._package = None
            return
        # Not co_firstlineno, which is 1 for every module.
        line = min((line for _, _, line in code.co_lines() if line), default=1)
        text = linecache.getline(code.co_filename, line).strip()
        if len(text) > _LONGEST:
            text = text[: _LONGEST - 1] + "…"
        self.culprit = Culprit(text or "a statement", cell, line, self._package)
        self.environment = dict(os.environ)
        self.detach()

    def detach(self) -> None:
        """Stop watching and put back what was replaced."""
        if self._watched_import is not None and builtins.__import__ is self._watched_import:
            assert self._import is not None
            builtins.__import__ = self._import
        if (
            self._watched_run is not None
            and self._shell.__dict__.get("run_code") is self._watched_run
        ):
            del self._shell.run_code
        self._watched_import = self._watched_run = None


_asking = False


def _driver_is_up() -> bool:
    global _asking
    half = (("ctypes", "CDLL"), ("gpumagic.driver", "is_initialized"))
    if _asking or any(m in sys.modules and not hasattr(sys.modules[m], name) for m, name in half):
        # The question's own imports are watched too, and one of these may be the half imported.
        return False
    _asking = True
    try:
        # Imported late: loading an extension is to cost nothing that can wait.
        from gpumagic.driver import is_initialized

        return is_initialized()
    finally:
        _asking = False


_witness: Witness | None = None


def attach(shell: Any) -> None:
    """Watch ``shell`` until CUDA is initialised."""
    global _witness
    detach()
    _witness = Witness(shell)
    _witness.attach()


def detach() -> None:
    """Stop watching and forget."""
    global _witness
    if _witness is not None:
        _witness.detach()
        _witness = None


def culprit() -> Culprit | None:
    """Who initialised CUDA in this process, if it was seen."""
    return None if _witness is None else _witness.culprit


def environment_then() -> Mapping[str, str] | None:
    """The environment right after CUDA was initialised; None where that was not seen."""
    return None if _witness is None else _witness.environment
