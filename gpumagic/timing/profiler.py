"""One run of some code under torch's profiler, and an NVTX range around it.

torch's profiler gets the GPU's activity from CUPTI, which may be refused (a container without the
permission, a virtual GPU) or in use (by a debugger, by a profiler around this process). It has one
session at a time: a second one cancels the first, whose results then crash the process.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpumagic.cuda import failure, graph_capture, torch_cuda
from gpumagic.errors import SpecError
from gpumagic.results import KernelReport
from gpumagic.system import text
from gpumagic.system.paths import output_path
from gpumagic.timing.kernel_trace import RANGE, report


def check_trace(path: str) -> Path:
    """Return the absolute path of the file for a trace, checked before any code runs.

    Raises:
        SpecError: it cannot be written: its folder is not there, or something else is in its place.
    """
    try:
        return output_path(path)
    except SpecError as error:
        raise SpecError(f"--trace: {error}; name a file, for example trace.json") from None


class Profiled:
    """A context manager that runs its body under the profiler, and raises nothing because of it.

    ``problem`` is set at once where profiling is impossible: then do not run the body again.
    ``report`` is set after the body.
    """

    def __init__(self, trace: Path | None = None) -> None:
        self._trace = trace
        self._open: list[Any] = []
        self._thread = threading.get_ident()
        self.report: KernelReport | None = None
        self.problem = self._problem()

    def _problem(self) -> str | None:
        if torch_cuda.loaded() is None:
            return "no profile: torch is not imported"
        if not torch_cuda.initialized():
            return f"no profile: {failure.why_no_gpu()}"
        if graph_capture.under_way(torch_cuda.contexts()):
            return "no profile: a CUDA graph is being captured"
        if torch_cuda.profiling():  # a second one would end the first
            return "no profile: torch's profiler is running already"
        return None

    def __enter__(self) -> Profiled:
        if self.problem is not None:
            return self
        try:
            self._wait()
            self._profile = torch_cuda.profiler()
            with _on_a_device_in_use():
                self._profile.__enter__()
            self._open.append(self._profile)
            self._start(_OtherProfilers(self._give_way))
            self._start(torch_cuda.annotation(RANGE))
        except Exception as error:  # a GPU in a bad state
            self._fail(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        profiled = bool(self._open) and kind is None
        if profiled and not torch_cuda.profiling():
            self.problem = "no profile: the code has ended it"
        try:
            if profiled:
                self._wait()
        except Exception as error:
            self._fail(error)
        finally:
            self._close()
        if profiled and self.problem is None:
            try:
                self.report = self._read()
            except Exception as error:  # a file that cannot be written, a trace that has no end
                self.problem = f"no profile: {text.reason(error)}"

    def _start(self, scope: AbstractContextManager[Any]) -> None:
        scope.__enter__()
        self._open.append(scope)

    def _wait(self) -> None:
        for ordinal in torch_cuda.contexts():
            torch_cuda.synchronize(ordinal)

    def _give_way(self) -> None:
        """End the session before the code starts one of its own, which would cancel it."""
        self.problem = "no profile: the code starts torch's profiler itself"
        if threading.get_ident() == self._thread:
            self._close()

    def _fail(self, error: Exception) -> None:
        self.problem = f"no profile: {text.reason(error)}"
        self._close()

    def _close(self) -> None:
        while self._open:
            try:
                with _on_a_device_in_use():
                    self._open.pop().__exit__(None, None, None)
            except Exception as error:  # torch 2.6 raises it where there is no session any more
                self.problem = self.problem or f"no profile: {text.reason(error)}"

    def _read(self) -> KernelReport:
        if self._trace is not None:
            return replace(self._export(self._trace), trace=str(self._trace))
        # A folder of its own: torch replaces the file by one that others may read.
        with tempfile.TemporaryDirectory(prefix="gpumagic-") as folder:
            return self._export(Path(folder) / "trace.json")

    def _export(self, path: Path) -> KernelReport:
        self._profile.export_chrome_trace(str(path))
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            events = json.load(file, strict=False)["traceEvents"]
        return report(events)


class _OtherProfilers(AbstractContextManager[None]):
    """A scope that calls ``starting`` before another profiler of torch's starts."""

    #: What torch's profilers call for it, whatever their interface.
    _STARTS = ("_prepare_profiler", "_enable_profiler")

    def __init__(self, starting: Callable[[], None]) -> None:
        self._starting = starting
        self._module: Any = cast(Any, torch_cuda.loaded()).autograd.profiler
        self._replaced: list[tuple[str, Any, Any]] = []

    def __enter__(self) -> None:
        for name in self._STARTS:
            original = getattr(self._module, name)
            replacement = self._before(original)
            setattr(self._module, name, replacement)
            self._replaced.append((name, replacement, original))

    def __exit__(self, *_: object) -> None:
        for name, replacement, original in self._replaced:
            if getattr(self._module, name) is replacement:
                setattr(self._module, name, original)
        self._replaced.clear()

    def _before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*arguments: Any, **named: Any) -> Any:
            if self._replaced:
                self._starting()
            return original(*arguments, **named)

        return start


def _on_a_device_in_use() -> AbstractContextManager[Any]:
    """Return a scope for torch's profiler, which makes a context on the current device."""
    ordinals = torch_cuda.contexts()
    if not ordinals or torch_cuda.current_device() in ordinals:
        return nullcontext()
    scope: AbstractContextManager[Any] = cast(Any, torch_cuda.loaded()).cuda.device(ordinals[0])
    return scope


class NvtxRange:
    """A context manager that pushes an NVTX range; ``problem`` says why there is none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nvtx = None if torch_cuda.loaded() is None else torch_cuda.nvtx()
        self.problem: str | None = None
        if self._nvtx is None:
            self.problem = "no NVTX range: torch is not imported, or built without CUDA"

    def __enter__(self) -> NvtxRange:
        if self._nvtx is not None:
            self._nvtx.range_push(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvtx is not None:
            self._nvtx.range_pop()
