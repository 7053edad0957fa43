"""Find the statement that initialised CUDA.

From the loading of the extension until CUDA is initialised, the driver is queried between any two
statements of a cell; a query takes some microseconds. No frame of gpumagic is on the stack while
the user's code runs. Once CUDA is initialised all hooks are removed.

To IPython the body of a cell magic is no statements, but an argument. So torch, if it is imported
by then, is asked to call back when it initialises CUDA: the stack has the line then.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cuda import nvml_check
from gpumagic.cuda.process_state import STATE

#: The most characters of a statement that are shown.
_LONGEST = 500
#: How IPython writes a cell magic: the arguments are strings.
_CELL_MAGIC = re.compile(r"(?:await )?get_ipython\(\)\.run_cell_magic(\(.*\));?", re.DOTALL)


class _Running(NamedTuple):
    """A statement that has begun."""

    #: A weak reference to its cell's result, which references objects of the user.
    result: Callable[[], Any]
    code: CodeType
    cell: int | None


class InitTrace:
    """A trace of where one shell initialises CUDA; `detach` restores what `attach` replaces."""

    def __init__(self, shell: Any, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        self._hook = CellHook(self._cell_ended, self._failed, cancelled=self._cancelled)
        #: `gpumagic.cuda.driver`, once a statement has begun.
        self._driver: Any = None
        self._traced_run: Callable[..., Any] | None = None
        #: The innermost last: a statement may run another cell.
        self._running: list[_Running] = []
        self._last_cell: int | None = None
        #: torch's list of what it calls when it initialises CUDA, and what is in it for that.
        self._torch_calls: list[Any] | None = None
        self._torch_call: tuple[Callable[[], None], list[str]] = (self._torch_initialises, [])
        #: The line in a cell magic's body that torch's call came from, and its number.
        self._in_body: tuple[str, int] | None = None
        #: Where CUDA was initialised, as a sentence.
        self.location: str | None = None
        #: The environment right after CUDA was initialised, if that was observed.
        self.environment: dict[str, str] | None = None

    def attach(self) -> None:
        """Start tracing, unless CUDA is initialised already."""
        # Every library that uses CUDA from Python has imported ctypes.
        if "ctypes" in sys.modules and self._ready().is_initialized():
            self.location = "CUDA had been initialised before gpumagic was loaded"
            nvml_check.withdraw()
            return
        run_code = self._shell.run_code

        def traced_run(code: CodeType, result: Any = None, **options: Any) -> Any:
            # Returns the shell's own coroutine: when that is awaited, this frame has ended.
            try:
                self._statement_begins(code, result)
            except Exception:  # an error of gpumagic must not stop the user's statement
                self.detach()
            return run_code(code, result, **options)

        self._traced_run = self._shell.run_code = traced_run
        self._hooks.add(self._hook)

    def detach(self) -> None:
        """Stop tracing and restore what was replaced."""
        traced, self._traced_run = self._traced_run, None
        self._running.clear()
        if self._torch_calls is not None and self._torch_call in self._torch_calls:
            self._torch_calls.remove(self._torch_call)
        if traced is None:
            return
        if self._shell.__dict__.get("run_code") is traced:
            del self._shell.run_code
        self._hooks.remove(self._hook)

    def check(self) -> None:
        """Query the driver; if it is initialised, note the statement that ran since the last query.

        Stops tracing then.
        """
        if self._traced_run is None or not self._ready().is_initialized():
            return
        if self._running:
            described = _described(self._running[-1], self._in_body)
            self.location = f"CUDA was initialised while {described}"
        else:
            after = f"after cell [{self._last_cell}] had ended"
            self.location = f"CUDA was initialised between two cells, {after}"
        self.environment = dict(os.environ)
        nvml_check.withdraw()
        self.detach()

    def _ready(self) -> Any:
        """Return `gpumagic.cuda.driver`, imported late since the extension must load quickly.

        Typed as Any: tests replace it by a driver of their own.
        """
        if self._driver is None:
            from gpumagic.cuda import driver

            self._driver = driver
            nvml_check.withdraw_if_useless()
        return self._driver

    # --- what is traced ------------------------------------------------------------------------

    def _statement_begins(self, code: CodeType, result: Any) -> None:
        self.check()  # the previous statement may have initialised CUDA
        if self._traced_run is None:
            return
        self._forget(result)
        held: Callable[[], Any] = (lambda: None) if result is None else weakref.ref(result)
        self._running.append(_Running(held, code, getattr(result, "execution_count", None)))
        torch_cuda = sys.modules.get("torch.cuda")
        if self._torch_calls is None and torch_cuda is not None:
            self._torch_calls = getattr(torch_cuda, "_queued_calls", None)
            if self._torch_calls is not None:
                self._torch_calls.append(self._torch_call)

    def _torch_initialises(self) -> None:
        """Note the outermost line on the stack that is in a cell magic's body."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._running:
            code = frame.f_code
            if frame.f_globals is self._shell.user_ns and code.co_name == "<module>":
                if code is self._running[-1].code:
                    return
                line = linecache.getline(code.co_filename, frame.f_lineno).strip()
                self._in_body = (line, frame.f_lineno)
            frame = frame.f_back

    def _cell_ended(self, _: None, result: Any) -> None:
        if self._driver is None:
            return  # the cell has only loaded the extension
        self.check()
        self._forget(result)
        self._last_cell = getattr(result, "execution_count", None) or self._last_cell

    def _cancelled(self) -> None:
        if self._driver is not None:
            self.check()
        self._running.clear()

    def _failed(self, error: Exception) -> None:
        self.detach()
        from gpumagic.system import text

        print(
            f"gpumagic: the trace of CUDA's initialisation failed and has ended "
            f"({text.named(error)})",
            file=sys.stderr,
        )

    def _forget(self, result: Any) -> None:
        """Remove the statement of this cell, and those of cells whose result was deleted."""
        results = [(running, running.result()) for running in self._running]
        self._running = [each for each, of in results if of is not None and of is not result]


def _described(running: _Running, in_body: tuple[str, int] | None) -> str:
    """Return the cell and the first line of its statement, as the user wrote it.

    Of a cell magic the line in its body where that is known, else the line with the magic.
    """
    # Not co_firstlineno, which is 1 for every module.
    line = min((line for _, _, line in running.code.co_lines() if line), default=1)
    text = linecache.getline(running.code.co_filename, line).strip() or "a statement"
    if (magic := _CELL_MAGIC.fullmatch(text)) is not None:
        name, options, _ = ast.literal_eval(magic[1])
        text, line = in_body or (f"%%{name} {options}".rstrip(), 1)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f"cell [{running.cell}] ran `{text}` (line {line})"


def attach(shell: Any, hooks: CellHooks) -> None:
    """Trace ``shell``, with its ``hooks``, until CUDA is initialised."""
    detach()
    STATE.init_trace = InitTrace(shell, hooks)
    STATE.init_trace.attach()


def detach() -> None:
    """Stop tracing and delete the result."""
    trace: InitTrace | None = STATE.init_trace
    STATE.init_trace = None
    if trace is not None:
        trace.detach()


def location() -> str | None:
    """Return where CUDA was initialised, as a sentence; None where that is not known."""
    trace: InitTrace | None = STATE.init_trace
    if trace is None:
        return None
    trace.check()
    return trace.location


def environment_then() -> Mapping[str, str] | None:
    """Return the environment right after CUDA was initialised; None where not observed."""
    trace: InitTrace | None = STATE.init_trace
    return None if trace is None else trace.environment
