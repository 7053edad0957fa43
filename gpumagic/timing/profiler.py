"""The GPU kernels of one more run, by torch's profiler; and an NVTX range around a run.

torch's profiler gets the GPU's activity from CUPTI, which may be refused (a container without the
permission, a virtual GPU) or in use (by a debugger, by a profiler around this process). It has one
session at a time: a second one cancels the first, whose results then crash the process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, cast

from gpumagic.cuda import no_gpu
from gpumagic.cuda.pytorch import graph_captures, profiling, torch_cuda, waiting
from gpumagic.errors import DeviceError
from gpumagic.results.timing.kernels import Kernel, KernelReport
from gpumagic.system.patching import patch
from gpumagic.system.writing import replacing


class Profiled(AbstractContextManager["Profiled"]):
    """A context manager that runs its body under the profiler; ``report`` is set after it.

    Where the code starts a profiler of its own, this profiler gives way, and there is no report.

    Raises:
        DeviceError: there is nothing to profile, or the profiler is running already.
    """

    def __init__(self, trace: Path | None = None) -> None:
        self.report: KernelReport | None = None
        self._trace = trace
        self._thread = get_ident()
        self._has_given_way = False
        problem = None
        if torch_cuda.loaded() is None or not torch_cuda.initialized():
            problem = no_gpu.reason()
        elif graph_captures.under_way(torch_cuda.contexts()):
            problem = "a CUDA graph is being captured"
        elif profiling.is_active():  # a second one would end the first
            problem = "torch's profiler is running already"
        if problem is not None:
            raise DeviceError(f"no profile: {problem}")

    def __enter__(self) -> Profiled:
        waiting.synchronize_all()
        self._profile = profiling.profiler()
        with ExitStack() as opened:
            # Before the profiler starts: an interrupt may come before torch returns.
            opened.callback(self._end)
            with _on_a_device_in_use():
                self._begin()
            opened.enter_context(_before_other_profilers(self._give_way))
            self._open = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        profiled = kind is None and profiling.is_active() and not self._has_given_way
        try:
            if profiled:
                waiting.synchronize_all()
        finally:
            self._open.close()
        if not profiled:
            return
        if self._trace is not None:
            with replacing(self._trace) as made:
                self._profile.export_chrome_trace(str(made))
        trace = None if self._trace is None else str(self._trace)
        self.report = report(self._profile.events(), trace)

    def _give_way(self) -> None:
        self._has_given_way = True
        if get_ident() == self._thread:
            self._open.close()

    def _begin(self) -> None:
        try:
            self._profile.__enter__()
        except RuntimeError as error:
            if "not running" not in str(error):
                raise
            # torch 2.6 prepares no session after one that an interrupt kept from starting.
            self._profile.start_trace()
            self._profile.stop_trace()
            self._profile.__enter__()

    def _end(self) -> None:
        # torch raises where no session has begun, and in 2.6 where the code has ended it.
        with _on_a_device_in_use(), suppress(Exception):
            self._profile.__exit__(None, None, None)


@contextmanager
def _before_other_profilers(call: Callable[[], None]) -> Iterator[None]:
    """Open a scope that calls ``call`` before another profiler of torch's starts.

    The other profiler would cancel this session, and reading its results would crash the process.
    """
    module: Any = cast(Any, torch_cuda.loaded()).autograd.profiler

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*arguments: object, **named: object) -> Any:
            call()
            return original(*arguments, **named)

        return start

    # All interfaces of torch's profiler call these two.
    with ExitStack() as undo:
        for name in ("_prepare_profiler", "_enable_profiler"):
            undo.callback(patch(module, name, replacement(getattr(module, name))))
        yield


def _on_a_device_in_use() -> AbstractContextManager[Any]:
    """Return a scope for torch's profiler, which makes a context on the current device."""
    ordinals = torch_cuda.contexts()
    if not ordinals or torch_cuda.current_device() in ordinals:
        return nullcontext()
    torch: Any = torch_cuda.loaded()
    return cast("AbstractContextManager[Any]", torch.cuda.device(ordinals[0]))


def report(events: Iterable[Any], trace: str | None = None) -> KernelReport:
    """Return the kernels and copies among a profiler's events."""
    on_gpu: dict[str, list[Any]] = defaultdict(list)
    visible = False
    for event in events:
        if event.device_type.name == "CPU":
            # The wait at the code's end is a call that a working profiler records.
            visible = visible or event.name.startswith(("cuda", "cu", "hip"))
        elif not event.is_user_annotation:
            on_gpu[event.name].append(event)
    kernels = [
        Kernel(name, len(runs), sum(run.time_range.elapsed_us() for run in runs) / 1e6)
        for name, runs in on_gpu.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.total, kernel.name))
    return KernelReport(tuple(kernels), visible or bool(kernels), trace)


def nvtx_range(name: str | None) -> AbstractContextManager[Any]:
    """Return a scope that is an NVTX range, for Nsight; none without a name, or without NVTX."""
    nvtx = None if name is None or torch_cuda.loaded() is None else profiling.nvtx()
    return nullcontext() if nvtx is None else nvtx.range("{}", name)
