"""Keep Ctrl-C out of our code that runs between two lines of a cell: it is raised in a line.

An exception in a trace function would end the tracing, and its traceback would show our frames. So
while code is traced, SIGINT has a handler that looks where it has arrived. In the user's code it
calls the handler that was there before. In ours it waits for the end of the call of ours, and has
Python handle the signal again, which then happens in the line that follows.

IPython catches what is raised in a hook before a cell: an interrupt that arrives there is raised at
the beginning of the cell. One that arrives in a hook after a cell is the error with which it ends.
"""

from __future__ import annotations

import _thread
import ast
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from traceback import walk_tb
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

#: The variable of a function of ours that holds an empty set: a set ends with the call.
CALL = "call"


def is_from_handler(error: BaseException) -> bool:
    """Return whether an exception in our code was raised in a signal's handler: it is the cell's.

    A handler is a function or a method; others are not known by the code that runs.
    """
    ran = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if isinstance(handler, MethodType):
            handler = handler.__func__
        if isinstance(handler, FunctionType) and handler.__code__ in ran:
            return True
    return False


class DeferredInterrupts:
    """Defers interrupts that arrive in calls of ``codes``, and in what these call.

    Each of them begins with ``call: set[None] = set()``, and calls `resend_after` with it if
    `is_pending`.
    """

    def __init__(self, codes: Iterable[CodeType]) -> None:
        # Not where the extension is loaded, nor while a signal is handled.
        from gpumagic.cells.tracebacks import cut_first_frame

        self._cut_first_frame = cut_first_frame
        self._codes = frozenset(codes)
        self._previous: Any = None
        self._is_over = False
        #: As it is installed: each mention of a method makes it anew.
        self._handler = self._handle
        self._resent: _Resent | None = None
        #: Whether an interrupt has arrived where a call of ours was just beginning.
        self.is_pending = False

    def start(self) -> None:
        """Install the handler, where Python has one itself, and only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGINT)
        if callable(previous) and previous != self._handler:
            self._previous = previous
            signal.signal(signal.SIGINT, self._handler)

    def stop(self) -> None:
        """Put back the handler that was there before, unless the user has set another."""
        self._is_over = True
        if self._previous is not None and signal.getsignal(signal.SIGINT) == self._handler:
            signal.signal(signal.SIGINT, self._previous)

    @staticmethod
    def to_restore(handler: Any) -> Any:
        """Return the handler to put back in place of one that may be of what has stopped since."""
        owner = getattr(handler, "__self__", None)
        if isinstance(owner, DeferredInterrupts) and owner._is_over:
            return owner._previous
        return handler

    def resend_after(self, call: set[None]) -> None:
        """Have Python handle the interrupt when ``call`` has ended."""
        self.is_pending = False
        self._resent = _Resent(call, _thread.interrupt_main)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        step = frame
        while step is not None:
            if step.f_code in self._codes:
                call = step.f_locals.get(CALL)
                if call is not None:
                    self.resend_after(call)
                else:  # it has only begun, and looks
                    self.is_pending = True
                return
            step = step.f_back
        try:
            self._previous(number, frame)
        except BaseException as error:
            self._cut_first_frame(error)
            raise


class _Resent(weakref.ref[Any]):
    """Has Python handle SIGINT at the end of an object; it must be kept until then.

    The callback of a weak reference gets the reference, and `_thread.interrupt_main` asks it for
    the signal's number. All of it in C: in Python the signal would be handled at once, and traced.
    """

    __slots__ = ()

    __index__ = staticmethod(partial(int, int(signal.SIGINT)))


@contextmanager
def recorded() -> Iterator[list[int]]:
    """Open a scope in which interrupts are only appended to the list that it yields."""
    arrived: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and callable(previous)):
        yield arrived
        return

    def record(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    scope = _Recording(previous, record, arrived)
    _recordings.append(scope)
    signal.signal(signal.SIGINT, record)
    try:
        yield arrived
    finally:
        _recordings.remove(scope)
        if signal.getsignal(signal.SIGINT) is record:
            signal.signal(signal.SIGINT, DeferredInterrupts.to_restore(previous))


class _Recording(NamedTuple):
    """A `recorded` scope: the handlers before and in it, and what has arrived."""

    previous: Any
    record: Any
    arrived: list[int]


#: The open scopes, the innermost last.
_recordings: list[_Recording] = []


@contextmanager
def raised() -> Iterator[None]:
    """Open a scope, in a `recorded` one or not, in which interrupts are raised: for a long wait.

    One that has arrived before is raised at once.
    """
    is_main = threading.current_thread() is threading.main_thread()
    scope = _recordings[-1] if _recordings and is_main else None
    if scope is None or signal.getsignal(signal.SIGINT) is not scope.record:
        yield
        return
    signal.signal(signal.SIGINT, scope.previous)
    try:
        if scope.arrived:
            scope.arrived.clear()
            signal.raise_signal(signal.SIGINT)
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is scope.previous:
            signal.signal(signal.SIGINT, scope.record)


class InterruptInCell(ast.NodeTransformer):
    """An AST transformer of IPython that has the next cell begin with an interrupt."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def add(self) -> None:
        """Interrupt the next cell; once."""
        self.remove()
        self._shell.ast_transformers.append(self)

    def remove(self) -> None:
        """Interrupt none."""
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)

    def visit(self, node: ast.AST) -> ast.AST:
        """Put the signal before the cell's first statement: its handler then runs there."""
        self.remove()
        if isinstance(node, ast.Module) and node.body:
            number = int(signal.SIGINT)
            (sending,) = ast.parse(f"__import__('signal').raise_signal({number})").body
            for each in ast.walk(sending):
                ast.copy_location(each, node.body[0])
            node.body.insert(0, sending)
        return node
