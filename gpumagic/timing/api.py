"""``gpumagic.cudatime``: what ``%cudatime`` does, as a function for scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from gpumagic.cells.decorators import decorated, kind_of
from gpumagic.cells.measured_block import Measured
from gpumagic.cells.timeit_loop import Loop, compile_statement
from gpumagic.errors import SpecError
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.timing.event_timer import Started, read, start, stop
from gpumagic.timing.repeated.benchmark import benchmark
from gpumagic.timing.repeated.repeat_plan import Plan
from gpumagic.timing.summary import stopped_early, summarize

_F = TypeVar("_F", bound=Callable[..., Any])


class Timed(Measured[Started, CudaTiming]):
    """The context manager and decorator that ``cudatime()`` returns.

    After the block its times are in ``result`` (a `CudaTiming`), and its attributes are those of
    the result: ``t.gpu``, ``t.wall``, ``t.limited_by``…
    """

    unfinished = "the cudatime block has not ended yet"
    statement, attribute = "with cudatime()", "timing"

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__()
        self._quiet = quiet

    def begin(self) -> Started:
        return start()

    def end(self, started: Started, *, partial: bool) -> CudaTiming:
        timing = summarize([read(stop(started))])
        return stopped_early(timing) if partial else timing

    def __call__(self, function: _F) -> _F:
        """Decorate ``function``: each call is timed, and ``function.timing`` is the last one's."""
        return cast(_F, decorated(function, Timed, quiet=self._quiet))


@overload
def cudatime(*, quiet: bool = ...) -> Timed: ...
@overload
def cudatime(
    target: str | Callable[[], Any],
    *,
    n: int | None = ...,
    r: int | None = ...,
    w: int | None = ...,
    globals: dict[str, Any] | None = ...,
    setup: str | Callable[[], Any] = ...,
    max_time: float | None = ...,
    cold: bool = ...,
) -> CudaTiming: ...
@overload
def cudatime(target: _F, *, quiet: bool = ...) -> _F: ...
def cudatime(
    target: Any = None,
    *,
    n: int | None = None,
    r: int | None = None,
    w: int | None = None,
    globals: dict[str, Any] | None = None,
    quiet: bool = False,
    setup: str | Callable[[], Any] = "",
    max_time: float | None = None,
    cold: bool = False,
) -> Any:
    """Time code: GPU, wall and CPU time; what ``%cudatime`` does, for scripts.

    - ``with cudatime() as t:`` times a block, once; then ``t.gpu``, ``t.wall`` and the rest of a
      `CudaTiming`, also as ``t.result``.
    - ``@cudatime`` or ``@cudatime()`` times every call of a function (a coroutine function or a
      module, too), prints the figures (``@cudatime(quiet=True)`` does not) and keeps the last in
      ``function.timing``.
      What torch.compile compiles into one graph is not timed within: decorate what it returns.
    - ``cudatime(target, n=…, r=…, w=…)`` runs a callable without arguments, or source text over
      ``globals`` (default: the caller's), ``n`` loops in each of ``r`` repeats after ``w`` loops of
      warm-up, and returns a `CudaTiming`. Like ``%%timeit``: source text is compiled once into a
      function, the garbage collector is off. A string may go without any of the options.

    Without ``n`` and ``r``, or with ``max_time`` (seconds), the repeats end when the median is
    known to 1 %, or when the time is over; ``result.stopped_by`` says which. With ``n`` alone ``r``
    is 7. ``setup`` (source text or a callable) runs before each repeat and is not timed; names that
    source text makes are seen by a target of source text. ``cold`` empties the L2 cache before each
    loop. ``n=1, r=1`` is one execution. Else the code runs before the repeats (``result.warmup``
    loops: ``w``, or as many as take 50 ms), and where the repeats leave the GPU's time open, some
    loops more behind a delay kernel (``result.queued``). ``w=0`` leaves out both.

    All times are seconds. Work on every device and stream that this process uses counts. torch is
    not imported here: without it, and without a GPU, there are wall and CPU times, ``gpu`` is None
    and ``gpu_note`` says why.

    Raises:
        SpecError: a number out of range, options that contradict each other, or a generator
            function to decorate.
        DeviceError: ``cold``, and a device does not report its cache's size or has no memory.
        SyntaxError: source text that does not compile.

    Examples:
        >>> x = torch.ones(1024, 1024, device="cuda")
        >>> with gpumagic.cudatime() as t:
        ...     y = x @ x
        >>> t.gpu.median <= t.wall.median
        True
        >>> timing = gpumagic.cudatime(lambda: x @ x, n=10, r=5)
        >>> timing.loops, timing.repeat
        (10, 5)

    .. versionadded:: 0.1.0
    """
    repeated = bool(setup or cold) or any(each is not None for each in (n, r, w, max_time))
    if target is None:
        if repeated:
            raise SpecError("n, r, w and the like need something to run: cudatime(function, n=10)")
        return Timed(quiet=quiet)
    if not (isinstance(target, (str, classmethod)) or callable(target)):
        raise TypeError(f"cudatime times a callable or a string, not {type(target).__name__}")
    if not isinstance(target, str) and not repeated:
        return decorated(target, Timed, quiet=quiet)
    plan = Plan(n, r, w, max_time, cold)
    if isinstance(target, str):
        if not isinstance(setup, str):
            raise TypeError("the setup of source text is source text too")
        callers = sys._getframe(1).f_globals
        loop = compile_statement(target, callers if globals is None else globals, setup)
    else:
        loop = _loop_of_callable(target, setup)
    return benchmark(loop, plan).result()


def _loop_of_callable(function: Callable[[], Any], setup: object) -> Loop:
    for each in (function, setup):
        if not isinstance(each, str) and kind_of(each) != "plain":
            raise TypeError(
                f"cudatime runs plain callables: of a {kind_of(each)} function only the "
                "creation would be timed; await or iterate in a cell, or in a function"
            )
    namespace = {"function": function, "setup": setup}
    return compile_statement(
        "function()", namespace, setup if isinstance(setup, str) else "setup()"
    )
