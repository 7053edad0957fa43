"""GPU memory: what there is now, and what a stretch of a program does to it.

torch's allocator knows what torch holds, exactly and without synchronising; NVML knows the devices
and everybody else. Nothing here imports torch, makes a context, starts a thread, collects garbage
or empties a cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from gpumagic import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.memory.peaks import LEDGER, Scope
from gpumagic.memory.report import PLUGGABLE, allocator_notes, memory_report
from gpumagic.results import DeviceMemoryDelta, MemoryDelta, MemoryReport, Result

_Function = TypeVar("_Function", bound=Callable[..., Any])

# --- the change ---------------------------------------------------------------------------------


class Measurement(Result):
    """A context manager that measures what its body does to GPU memory, also when it raises.

    Has the attributes of the `MemoryDelta` in ``result`` once the body has ended::

        with Measurement() as m:
            step()
        print(m.devices[0].peak)
    """

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._error: str | None = None
        self._result: MemoryDelta | None = None

    def __enter__(self) -> Measurement:
        self._result = self._error = None
        try:
            self._scope = LEDGER.open()
        except Exception as error:  # a pluggable allocator without counters; told in the result
            self._error = _one_line(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        changed: dict[int, DeviceMemoryDelta] = {}
        if scope is not None:
            try:
                changed = LEDGER.close(scope)
            except Exception as failure:
                self._error = _one_line(failure)
        self._result = MemoryDelta(
            changed,
            partial=kind is not None,
            notes=allocator_notes() if changed else (),
            error=self._error or (None if changed else _not_in_use()),
        )

    @property
    def result(self) -> MemoryDelta:
        """What the body did.

        Raises:
            RuntimeError: the body has not ended.
        """
        if self._result is None:
            raise RuntimeError("the measurement has not ended; use its result after the with block")
        return self._result

    @property
    def devices(self) -> Mapping[int, DeviceMemoryDelta]:
        return self.result.devices

    @property
    def partial(self) -> bool:
        return self.result.partial

    @property
    def notes(self) -> tuple[str, ...]:
        return self.result.notes

    @property
    def error(self) -> str | None:
        return self.result.error

    def to_dict(self) -> dict[str, Any]:
        return self.result.to_dict()

    def __repr__(self) -> str:
        return "<Measurement: not ended>" if self._result is None else repr(self._result)

    def __str__(self) -> str:
        return repr(self) if self._result is None else str(self._result)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        if self._result is None:
            return {"text/plain": repr(self)}
        return self._result._repr_mimebundle_(**options)


def _one_line(error: BaseException) -> str:
    if torch_cuda.allocator_backend() == "pluggable":
        return PLUGGABLE
    lines = str(error).strip().splitlines()
    return f"the allocator's counters cannot be read: {lines[0] if lines else type(error).__name__}"


def _not_in_use() -> str:
    """Why no device was in use."""
    if torch_cuda.loaded() is None:
        return "torch is not imported"
    if not torch_cuda.built_with_cuda():
        return "this torch has no CUDA support"
    return "torch has not used a GPU in this process"


# --- the public function ---------------------------------------------------------------------


class EnterableReport(MemoryReport):
    """A report that begins a `Measurement` when it is used in a ``with`` statement."""

    _open: tuple[Measurement, ...] = ()

    def __enter__(self) -> Measurement:
        measurement = Measurement().__enter__()
        self._open = (*self._open, measurement)
        return measurement

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        *rest, measurement = self._open
        measurement.__exit__(kind, error, traceback)
        self._open = tuple(rest)


#: The report before, of the function's callers; every shell keeps its own.
_previous: MemoryReport | None = None


@overload
def gpumem() -> EnterableReport: ...
@overload
def gpumem(code: str, globals: dict[str, Any] | None = None) -> MemoryDelta: ...
@overload
def gpumem(code: _Function) -> _Function: ...
def gpumem(code: Any = None, globals: dict[str, Any] | None = None) -> Any:
    """GPU memory: a report, or what some code does to it.

    - ``gpumem()`` returns a `MemoryReport`, with the change since the last one.
    - ``with gpumem() as m:`` measures the block; afterwards ``m`` has the attributes of a
      `MemoryDelta`. Where the report's price (some NVML calls) is too much, in a loop perhaps,
      ``with gpumagic.memory.measurement.Measurement() as m:`` does without it.
    - ``@gpumem`` before a function (an ``async`` one too) prints what each call does; the last
      call's `MemoryDelta` is the function's attribute ``memory``.
    - ``gpumem("statement", globals=globals())`` runs the statement, in a fresh namespace if none is
      given, and returns a `MemoryDelta`.

    All figures are bytes. Imports no torch and makes no context.

    Raises:
        SpecError: ``code`` is neither a statement nor a function, or is a generator function.
    """
    if code is None:
        global _previous
        report = memory_report(_previous)
        _previous = report
        return EnterableReport(report.devices, report.notes, report.error)
    if isinstance(code, str):
        with Measurement() as measurement:
            exec(compile(code, "<gpumem>", "exec"), {} if globals is None else globals)
        return measurement.result
    if callable(code):
        return _measured(code)
    raise SpecError(f"gpumem measures a statement (a string) or a function, not {code!r}")


def _measured(function: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(f"{name} is a generator: measure the loop that uses it, with gpumem()")

    def show(measurement: Measurement) -> None:
        wrapped.memory = measurement.result  # type: ignore[attr-defined]
        print(f"{name}\n{measurement}")

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        measurement = Measurement()
        try:
            with measurement:
                return await function(*args, **kwargs)
        finally:
            show(measurement)

    def run(*args: Any, **kwargs: Any) -> Any:
        measurement = Measurement()
        try:
            with measurement:
                return function(*args, **kwargs)
        finally:
            show(measurement)

    wrapped = functools.wraps(function)(run_async if inspect.iscoroutinefunction(function) else run)
    return wrapped
