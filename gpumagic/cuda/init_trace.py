"""Who initialised CUDA: the statement, and the import within it, after which the driver was up.

From the moment the extension loads until CUDA is initialised, the driver is asked between any two
statements of a cell and around every import of a new top-level package; a question costs some
microseconds. Nothing of ours is on the stack while the user's code runs. Once CUDA is initialised
all hooks go: there is nothing left to see.
"""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cuda import nvml_check
from gpumagic.cuda.import_trace import ImportNotes


class Culprit(NamedTuple):
    """What was running when CUDA was initialised.

    ``statement`` is the first line of the statement as the user wrote it, ``cell`` its cell's
    execution number, ``line`` its line there; ``package`` the imported package during whose import
    it happened. ``statement`` is None if none was running: after ``cell`` had ended or, where that
    is None too, before anything was watched.
    """

    statement: str | None
    cell: int | None = None
    line: int | None = None
    package: str | None = None

    def __str__(self) -> str:
        if self.statement is None:
            if self.cell is not None:
                return f"CUDA was initialised between two cells, after cell [{self.cell}] had ended"
            return "CUDA had been initialised before gpumagic was loaded"
        place = f" (line {self.line})" if self.line is not None else ""
        text = f"CUDA was initialised while cell [{self.cell}] ran `{self.statement}`{place}"
        if self.package is not None:
            text += f", by the import of {self.package}"
        return text


_LONGEST = 80


class _Running(NamedTuple):
    """A statement that has begun."""

    #: Refers weakly to its cell's result, which holds objects of the user's.
    result: Callable[[], Any]
    code: CodeType
    cell: int | None


class Witness:
    """Watches one shell. `attach` and `detach` are exact opposites."""

    def __init__(self, shell: Any, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        self._hook = CellHook(self._cell_ended, self._failed, cancelled=self._cancelled)
        #: `gpumagic.cuda.driver`, once a statement has begun.
        self._driver: Any = None
        self._noted_run: Callable[..., Any] | None = None
        self._imports = ImportNotes(self._import_begins, self._import_ended)
        #: The innermost last: a statement may run a cell of its own.
        self._running: list[_Running] = []
        self._last_cell: int | None = None
        #: By whose import CUDA was initialised, if that was seen; and whether that is settled.
        self._package: str | None = None
        self._settled = False
        self.culprit: Culprit | None = None
        #: The environment right after CUDA was initialised, if that was seen.
        self.environment: dict[str, str] | None = None

    def attach(self) -> None:
        """Start watching, unless CUDA is initialised already."""
        # Whatever uses CUDA from Python has imported ctypes; without it nothing need be asked.
        if "ctypes" in sys.modules and self._ready().is_initialized():
            self.culprit = Culprit(None)
            nvml_check.withdraw()
            return
        run_code = self._shell.run_code

        def noted_run(code: CodeType, result: Any = None, **options: Any) -> Any:
            # Returns the shell's own coroutine: when that is awaited, this frame is gone.
            try:
                self._statement_begins(code, result)
            except Exception:  # the user's statement comes first
                self.detach()
            return run_code(code, result, **options)

        self._noted_run = self._shell.run_code = noted_run
        self._hooks.add(self._hook)

    def detach(self) -> None:
        """Stop watching and put back what was replaced."""
        self._imports.detach()
        noted, self._noted_run = self._noted_run, None
        self._running.clear()
        if noted is None:
            return
        if self._shell.__dict__.get("run_code") is noted:
            del self._shell.run_code
        self._hooks.remove(self._hook)

    def look(self) -> None:
        """Ask the driver; if it is up, what ran since the last question has initialised CUDA."""
        if self._noted_run is None or not self._ready().is_initialized():
            return
        if self._running:
            _, code, cell = self._running[-1]
            # Not co_firstlineno, which is 1 for every module.
            line = min((line for _, _, line in code.co_lines() if line), default=1)
            text = linecache.getline(code.co_filename, line).strip()
            if len(text) > _LONGEST:
                text = text[: _LONGEST - 1] + "…"
            self.culprit = Culprit(text or "a statement", cell, line, self._package)
        else:
            self.culprit = Culprit(None, self._last_cell)
        self.environment = dict(os.environ)
        nvml_check.withdraw()
        self.detach()

    def _ready(self) -> Any:
        """The driver's module; imported late, since loading an extension is to cost nothing."""
        if self._driver is None:
            self._driver = import_module("gpumagic.cuda.driver")
        return self._driver

    # --- what is noted -----------------------------------------------------------------------

    def _statement_begins(self, code: CodeType, result: Any) -> None:
        self.look()  # at what the statement before it did
        if self._noted_run is None:
            return
        if not self._imports.attached:
            self._imports.attach()
            nvml_check.withdraw_if_useless()
        self._leave(result)
        held: Callable[[], Any] = (lambda: None) if result is None else weakref.ref(result)
        self._running.append(_Running(held, code, getattr(result, "execution_count", None)))
        self._package, self._settled = None, False

    def _cell_ended(self, _: None, result: Any) -> None:
        if self._driver is None:
            return  # the cell that has loaded us, and nothing else
        self.look()
        self._leave(result)
        self._last_cell = getattr(result, "execution_count", None) or self._last_cell

    def _cancelled(self) -> None:
        if self._driver is not None:
            self.look()
        self._running.clear()

    def _failed(self, error: Exception) -> None:
        self.detach()
        from gpumagic.system import text

        print(
            f"gpumagic: what initialises CUDA is noted no longer ({text.named(error)})",
            file=sys.stderr,
        )

    def _leave(self, result: Any) -> None:
        """Forget the statement of this cell, and those of cells that ended without a word."""
        left = [(r, r.result()) for r in self._running]
        self._running = [r for r, of in left if of is not None and of is not result]

    def _import_begins(self) -> None:
        if not self._settled and self._driver.known_initialized():
            self._settled = True  # by the statement, before this import

    def _import_ended(self, name: str) -> None:
        # The innermost import ends first, so the first to see it is the nearest.
        if not self._settled and self._driver.is_initialized():
            self._settled, self._package = True, name


_witness: Witness | None = None


def attach(shell: Any, hooks: CellHooks) -> None:
    """Watch ``shell``, with its ``hooks``, until CUDA is initialised."""
    global _witness
    detach()
    _witness = Witness(shell, hooks)
    _witness.attach()


def detach() -> None:
    """Stop watching and forget."""
    global _witness
    if _witness is not None:
        _witness.detach()
        _witness = None


def culprit() -> Culprit | None:
    """Who initialised CUDA in this process, if it was seen."""
    if _witness is None:
        return None
    _witness.look()
    return _witness.culprit


def environment_then() -> Mapping[str, str] | None:
    """The environment right after CUDA was initialised; None where that was not seen."""
    return None if _witness is None else _witness.environment
