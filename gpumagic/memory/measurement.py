"""Measure the change of GPU memory by a block, a function or a statement.

The figures are the counters of torch's allocator: exact, without synchronising. Nothing here
imports torch, makes a context, starts a thread, collects garbage or empties a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast, overload

from gpumagic.cells.decorators import decorated
from gpumagic.cells.measured_block import Measured
from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import allocator, measured_on
from gpumagic.errors import SpecError
from gpumagic.memory.exact_peaks import LEDGER, Scope
from gpumagic.memory.report import allocator_notes, memory_report
from gpumagic.results.memory.memory_delta import MemoryDelta, only_changed
from gpumagic.results.memory.memory_report import MemoryReport
from gpumagic.system import text

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Measurement(Measured[Scope, MemoryDelta]):
    """A context manager that measures the change of GPU memory by its body, also when it raises.

    It has the attributes of the `MemoryDelta` in ``result`` once the body has ended::

        with Measurement() as m:
            step()
        print(m.devices[0].peak)
    """

    unfinished = "the measurement has not ended; use its result after the with block"
    statement, attribute = "with gpumem()", "memory"

    def begin(self) -> Scope:
        return LEDGER.open()

    def end(self, scope: Scope, *, partial: bool) -> MemoryDelta:
        """End the scope; return what has happened in it, or why that is not known."""
        try:
            changed, why = LEDGER.close(scope), allocator.uncounted()
        except Exception as error:
            why = f"the allocator's counters cannot be read: {text.reason(error)}"
            return MemoryDelta(partial=partial, error=allocator.uncounted() or why)
        # Another device may have a context: its kind says nothing on this code.
        conditions = measured_on.conditions(only_changed(changed))
        if why or not changed:
            why = why or no_gpu.reason()
            return MemoryDelta(partial=partial, error=why, conditions=conditions)
        return MemoryDelta(changed, partial=partial, notes=allocator_notes(), conditions=conditions)


class EnterableReport(MemoryReport):
    """A report that begins a `Measurement` when it is used in a ``with`` statement.

    As a decorator it does what `gpumem` itself does.
    """

    @cached_property
    def _measurement(self) -> Measurement:
        return Measurement()

    def __enter__(self) -> Measurement:
        return self._measurement.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._measurement.__exit__(*error)

    def __call__(self, function: _Function) -> _Function:
        return cast(_Function, decorated(function, Measurement))


#: The previous report of `gpumem`; each shell has its own.
_previous: MemoryReport | None = None


@overload
def gpumem() -> EnterableReport: ...
@overload
def gpumem(code: str, globals: dict[str, Any] | None = None) -> MemoryDelta: ...
@overload
def gpumem(code: _Function) -> _Function: ...
def gpumem(code: object = None, globals: dict[str, Any] | None = None) -> Any:
    """Report on GPU memory, or measure its change by some code.

    - ``gpumem()`` returns a `MemoryReport`, with the change since the last one.
    - ``with gpumem() as m:`` measures the block; afterwards ``m`` has the attributes of a
      `MemoryDelta`. Where the report's price (some NVML calls) is too much, in a loop perhaps,
      ``with gpumagic.memory.measurement.Measurement() as m:`` does without it.
    - ``@gpumem`` or ``@gpumem()`` before a function (an ``async`` one too) prints what each call
      does; the last call's `MemoryDelta` is the function's attribute ``memory``. What torch.compile
      compiles into one graph is not measured within: decorate what ``torch.compile`` returns.
    - ``gpumem("statement", globals=globals())`` runs the statement, in a fresh namespace if none is
      given, and returns a `MemoryDelta`.

    All figures are bytes. Imports no torch and makes no context.

    Raises:
        SpecError: ``code`` is neither a statement nor a function, or is a generator function.

    Examples:
        >>> with gpumagic.gpumem() as m:
        ...     x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        >>> m.devices[0].allocated, m.devices[0].peak
        (1048576, 1048576)

    .. versionadded:: 0.1.0
    """
    if code is None:
        global _previous
        report = memory_report(_previous)
        _previous = report
        return EnterableReport(**vars(report))
    if isinstance(code, str):
        with Measurement() as measurement:
            exec(compile(code, "<gpumem>", "exec"), {} if globals is None else globals)
        return measurement.result
    if callable(code) or isinstance(code, classmethod):
        return decorated(code, Measurement)
    raise SpecError(f"gpumem measures a statement (a string) or a function, not {code!r}")
