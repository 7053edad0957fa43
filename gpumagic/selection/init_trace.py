"""Find the statement that initialises CUDA, for `gpumagic.cuda.this_process`.

From the loading of the extension until CUDA is initialised, the driver is queried between any two
statements of a cell; a query takes some microseconds. No frame of gpumagic is on the stack while
the user's code runs. Once CUDA is initialised all hooks are removed.

A statement may import a module that uses CUDA, and to IPython the body of a cell magic is no
statements, but an argument. So torch, once it is imported, is asked to call back when it
initialises CUDA: the stack has the line then.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable
from traceback import walk_stack
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cells.hooks import CellHook, CellHooks
from gpumagic.cuda import nvml_check
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.system.patching import patch
from gpumagic.system.shell import Shell
from gpumagic.system.text import shortened

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult

#: The most characters of a statement that are shown.
_LONGEST = 500
#: In the code that stands for the line that has restarted the kernel.
_RESTART = "gpumagic.restart.after"
#: How IPython writes a cell magic, and how an engine is sent one: its name is an argument, as are
#: options and cell.
_CELL_MAGIC = re.compile(
    r"(?:await )?get_ipython\(\)\.run_cell_magic\('(\w+)'"
    r"|__import__\('gpumagic\.cluster\.engine'.*\.run_cell\('[^']*', '(\w+)'"
)


class _Statement(NamedTuple):
    """A statement that has begun; what torch's call has told of it."""

    code: CodeType
    cell: int | None
    #: The line in a cell magic's body, and its number.
    in_body: tuple[str, int] | None = None
    #: The module that has called torch, with file and line, if it is not the user's cell.
    module: str = ""

    def __str__(self) -> str:
        """The cell and the first line of the statement, as the user wrote it."""
        # Not co_firstlineno, which is 1 for every module.
        line = min((line for _, _, line in self.code.co_lines() if line), default=1)
        text = linecache.getline(self.code.co_filename, line).strip() or "a statement"
        if _RESTART in text:
            return f"cell [{self.cell}] restarted this process and brought variables back"
        if (magic := _CELL_MAGIC.match(text)) is not None:
            text, line = self.in_body or (f"%%{magic[1] or magic[2]}", line)
        return f"cell [{self.cell}] ran `{shortened(text, _LONGEST)}` (line {line}){self.module}"


class InitTrace(CellHook[tuple[_Statement | None]]):
    """A trace of where one shell initialises CUDA; `detach` restores what `attach` replaces."""

    def __init__(self, shell: Shell, hooks: CellHooks) -> None:
        self._shell = shell
        self._hooks = hooks
        #: `gpumagic.cuda.driver`, once a statement has begun.
        self._driver: Any = None
        #: What puts back the shell's ``run_code``; None if that is not traced.
        self._undo: Callable[[], None] | None = None
        #: The statement that is running; None between two cells.
        self._statement: _Statement | None = None
        self._last_cell: int | None = None
        #: What torch's list of calls at the initialisation of CUDA has for this trace.
        self._torch_call: tuple[Callable[[], None], list[str]] = (self._torch_initialises, [])
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

        def traced_run(code: CodeType, result: object = None, **options: object) -> Any:
            # Returns the shell's own coroutine: when that is awaited, this frame has ended.
            try:
                self.check()  # the previous statement may have initialised CUDA
                self._statement = _Statement(code, getattr(result, "execution_count", None))
                if self._undo is not None and torch_cuda.loaded() is not None:
                    self._follow_torch()
            except Exception:  # an error of gpumagic must not stop the user's statement
                self.detach()
            return run_code(code, result, **options)

        self._undo = patch(self._shell, "run_code", traced_run)
        self._hooks.add(self)

    def detach(self) -> None:
        """Stop tracing and restore what was replaced."""
        undo, self._undo, self._statement = self._undo, None, None
        torch_cuda.cancel(self._torch_call[0])
        if undo is not None:
            undo()
            self._hooks.remove(self)

    def check(self) -> None:
        """Query the driver; if it is initialised, note the statement that ran since the last query.

        Stops tracing then.
        """
        if self._undo is None or not self._ready().is_initialized():
            return
        where = "in the cell that loaded gpumagic, or before the next one"
        if self._last_cell is not None:
            where = f"between two cells, after cell [{self._last_cell}] had ended"
        if self._statement is not None:
            where = f"while {self._statement}"
        self.location = f"CUDA was initialised {where}"
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

    def _follow_torch(self) -> None:
        """Have torch, which has been imported, call back when it initialises CUDA; once."""
        waiting = torch_cuda.queued_calls()
        if self._torch_call not in waiting:
            waiting.append(self._torch_call)
            nvml_check.withdraw_without_driver()

    def _torch_initialises(self) -> None:
        """Note the module that has called torch, and the outermost line in a cell magic's body."""
        statement, own = self._statement, self._shell.user_ns
        if statement is None:
            return
        frames = [frame for frame, _ in walk_stack(sys._getframe(1))]
        caller = next((each for each in frames if _module(each).split(".")[0] != "torch"), None)
        if caller is not None and caller.f_globals is not own:
            place = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
            statement = statement._replace(module=f", in module {_module(caller)} ({place})")
        for frame in frames:
            code = frame.f_code
            if code is statement.code:
                break
            if frame.f_globals is own and code.co_name == "<module>":
                line = linecache.getline(code.co_filename, frame.f_lineno).strip()
                statement = statement._replace(in_body=(line, frame.f_lineno))
        self._statement = statement

    # --- the cells -------------------------------------------------------------------------------

    def before(
        self, info: object, outer: tuple[_Statement | None] | None
    ) -> tuple[_Statement | None]:
        """Return the statement that runs this cell, if one does."""
        return (None if outer is None else self._statement,)

    def after(self, begun: tuple[_Statement | None] | None, result: ExecutionResult | None) -> None:
        if self._driver is None:
            return  # the cell has only loaded the extension
        self.check()
        (self._statement,) = begun or (None,)
        self._last_cell = getattr(result, "execution_count", None) or self._last_cell


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if type(name) is str else ""


def attach(shell: Shell, hooks: CellHooks) -> None:
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
