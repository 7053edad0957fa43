"""What the measuring of a script's code has in common, whatever is measured: blocks and functions.

A block may be measured within itself, in several threads and in several tasks, also by one object:
each has a stretch of its own.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, Generic, Literal, TypeVar

from gpumagic.errors import SpecError

_Stretch = TypeVar("_Stretch")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self", bound="Measured[Any, Any]")


# --- blocks --------------------------------------------------------------------------------------


class Scopes(Generic[_Stretch]):
    """The stretches that are being measured now: whose they are, and where they run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: list[tuple[object, object, _Stretch]] = []

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, owner: object, stretch: _Stretch) -> None:
        with self._lock:
            self._open.append((owner, _here(), stretch))

    def leave(self, owner: object) -> _Stretch:
        """The last stretch that ``owner`` has begun in this task, or this thread.

        If there is none (an asynchronous generator's block may end in another task than it began
        in), the last that it has begun anywhere.
        """
        here = _here()
        with self._lock:
            own = [i for i, entry in enumerate(self._open) if entry[0] is owner]
            place = next((i for i in reversed(own) if self._open[i][1] == here), own[-1])
            return self._open.pop(place)[2]


def _here() -> object:
    """The thread, and its task if it has one."""
    asyncio: Any = sys.modules.get("asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    return get_ident(), None if loop is None else id(asyncio.current_task(loop))


class Measured(Generic[_Stretch, _Result]):
    """A context manager whose blocks are measured; `begin` and `end` say how."""

    #: What one of them is called in an error, with what to do.
    unfinished = "the block has not ended"

    def __init__(self) -> None:
        #: By thread, of the block that ended last there; and of all.
        self._results: dict[int, _Result] = {}
        self._latest: _Result | None = None

    def begin(self) -> _Stretch:
        raise NotImplementedError

    def end(self, stretch: _Stretch, *, partial: bool) -> _Result:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        self._results.pop(get_ident(), None)
        self._latest = None
        _SCOPES.enter(self, self.begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        result = self.end(_SCOPES.leave(self), partial=kind is not None)
        self._results[get_ident()] = self._latest = result

    @property
    def finished(self) -> _Result | None:
        """The result of the block that ended last in this thread, or else in any; None if none."""
        return self._results.get(get_ident(), self._latest)

    @property
    def result(self) -> _Result:
        """What was measured of the block that ended last, in this thread if one did.

        Raises:
            RuntimeError: no block has ended.
        """
        found = self.finished
        if found is None:
            raise RuntimeError(self.unfinished)
        return found


_SCOPES: Scopes[Any] = Scopes()


# --- functions -----------------------------------------------------------------------------------


def kind_of(function: Any) -> Literal["plain", "coroutine", "generator"]:
    """What a call of ``function`` gives: its value, something to await, or to iterate over."""
    for _ in range(100):  # partials of partials may be a circle
        if not isinstance(function, functools.partial):
            break
        function = function.func
    called = type(function).__call__  # of an object that is called like a function
    for each in (function, called):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            return "generator"
        if inspect.iscoroutinefunction(each):
            return "coroutine"
    return "plain"


def name_of(function: Any) -> str:
    """What to call a function, a partial one, or an object that is called like one."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def _compiling() -> bool:
    """Whether torch.compile is tracing this very call. Imports nothing."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())


def decorated(
    function: Any,
    measure: Callable[[], Measured[Any, Any]],
    keep: Callable[[Any, str, Any], None],
    instead: str,
) -> Any:
    """``function``, every call of which is measured; awaited if it is a coroutine function.

    Not where torch.compile traces the call: there the function is compiled as it is.

    Args:
        function: Whatever can be called, and a ``staticmethod`` or ``classmethod``.
        measure: A new measurement.
        keep: Called after each call with the new function, what to call it, and the result.
        instead: What to do for a generator function.

    Raises:
        SpecError: a generator function, of which only the creation would be measured; or something
            that cannot be called.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(function.__func__, measure, keep, instead))
    if not callable(function):
        raise SpecError(f"a function can be measured, not {type(function).__name__}")
    kind, name = kind_of(function), name_of(function)
    if kind == "generator":
        raise SpecError(f"{name} is a generator: measure the loop that uses it, {instead}")

    @contextmanager
    def measured_call() -> Iterator[None]:
        measured = measure()
        try:
            with measured:
                yield
        finally:
            if measured.finished is not None:  # the measuring itself may have been interrupted
                keep(wrapped, name, measured.finished)

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with measured_call():
            return await function(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return function(*args, **kwargs)
        with measured_call():
            return function(*args, **kwargs)

    # Only of a function: a module's attributes are its parameters.
    updated = ("__dict__",) if isinstance(function, types.FunctionType) else ()
    around = functools.wraps(function, updated=updated)
    wrapped = around(run_async if kind == "coroutine" else run)
    return wrapped
