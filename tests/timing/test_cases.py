"""Cases whose truth is known: nothing that is said of them is false, whatever driver calls take.

On a virtual GPU a kernel takes its time, and it begins when it is launched or when the one before
it on its stream has ended. Each case runs on a driver whose calls are free, and on one whose calls
take what a real one's do.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda.pytorch import streams
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import EXACT
from gpumagic.timing import event_timer
from gpumagic.timing.event_timer import read, start, stop
from gpumagic.timing.run_times import Times
from tests.support.gpu_work import KnownWork


class Work(KnownWork):
    """Kernels on streams of all kinds, and what a run of them took."""

    def __init__(self, gpu_work: Any) -> None:
        super().__init__(gpu_work)
        self.torch, self.sleep = gpu_work.torch, gpu_work.sleep
        self.side, self.side_1 = (self.torch.cuda.Stream(device) for device in (0, 1))
        self.high = self.torch.cuda.Stream(0, priority=-1)
        self.x = self.torch.zeros(4, device="cuda:0")
        self.foreign: Any = None

    def run(self, code: Callable[[Work], Any]) -> None:
        self.intervals.clear()
        self.begun = time.perf_counter()
        code(self)
        self.returned = time.perf_counter()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    @property
    def gpu(self) -> float:
        return self.busy(*self.intervals)

    @property
    def wall(self) -> float:
        ends = [end for each in self.intervals.values() for _, end in each]
        return max([self.returned, *ends]) - self.begun


@pytest.fixture
def work(gpu_work: Any, virtual_gpu: Any) -> Iterator[Work]:
    made = Work(gpu_work)
    runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()  # the one that torch uses
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    made.foreign = made.torch.cuda.ExternalStream(handle.value, device="cuda:0")
    made.sleep(1e-6)
    made.x.add_(1).sum().item()
    yield made
    made.torch.cuda.set_stream(made.torch.cuda.default_stream(0))
    made.foreign.synchronize()
    assert runtime.cudaStreamDestroy(handle) == 0


@pytest.fixture(params=["free", "h100"])
def profile(request: Any, virtual_gpu: Any) -> str:
    """What the driver's calls take."""
    virtual_gpu.set_profile(request.param)
    name: str = request.param
    return name


def host(seconds: float) -> None:
    time.sleep(seconds)


def host_bound(w: Work) -> None:
    for _ in range(50):
        host(200e-6)
        w.kernel(20e-6)


def waits(w: Work) -> None:
    for _ in range(20):
        w.kernel(1e-3)
        w.x[0].item()


def from_thread(w: Work) -> None:
    thread = threading.Thread(target=lambda: w.kernel(30e-3, w.side))
    thread.start()
    thread.join()


def two_devices(w: Work) -> None:
    w.kernel(20e-3)
    w.kernel(30e-3, w.side)
    w.kernel(5e-3, device=1)
    w.kernel(45e-3, w.side_1)


#: The code, and what is said of it: ``exact``; or ``bound``, with a sign of work; or ``no sign``.
CASES: dict[str, tuple[Callable[[Work], Any], str]] = {
    "nothing": (lambda w: None, "no sign"),
    "kernel 2 ms": (lambda w: w.kernel(2e-3), "exact"),
    "kernel 50 ms": (lambda w: w.kernel(50e-3), "exact"),
    "kernel 200 us": (lambda w: w.kernel(200e-6), "bound, exact"),
    # It may be done before that stream is asked.
    "side stream 40 us": (lambda w: w.kernel(40e-6, w.side), "no sign, bound"),
    "side stream 1 ms": (lambda w: w.kernel(1e-3, w.side), "bound, exact"),
    "side stream 50 ms": (lambda w: w.kernel(50e-3, w.side), "exact"),
    "side stream of high priority 50 ms": (lambda w: w.kernel(50e-3, w.high), "exact"),
    "other device 50 ms": (lambda w: w.kernel(50e-3, device=1), "exact"),
    "two devices, side streams": (two_devices, "exact"),
    "another thread's stream": (from_thread, "bound, exact"),
    "foreign stream": (lambda w: w.kernel(30e-3, w.foreign), "no sign"),
    "foreign, short beside": (lambda w: (w.kernel(0.03, w.foreign), w.kernel(0.01)), "bound"),
    "foreign, longer beside": (lambda w: (w.kernel(0.01, w.foreign), w.kernel(0.03)), "exact"),
    "foreign, current at the end": (
        lambda w: (w.torch.cuda.set_stream(w.foreign), w.kernel(30e-3)),
        "exact",
    ),
    "host-bound loop": (host_bound, "no sign, bound"),
    "50 ms, then synchronize()": (lambda w: (w.kernel(0.05), w.wait()), "no sign"),
    ".item() loop": (waits, "no sign"),
    "sleep 40 ms, kernel 45 ms": (lambda w: (host(40e-3), w.kernel(45e-3)), "bound"),
    "allocates, then waits": (
        lambda w: (w.torch.empty(999, device="cuda"), w.kernel(20e-3), w.wait()),
        "bound",
    ),
}


def check(w: Work, gpu: float, exact: bool, least: float, times: Times | CudaTiming) -> None:
    """Nothing is false: the bounds hold, and what is exact is so within 6 %."""
    assert gpu >= 0.99 * w.gpu - 2e-6, "too short"
    assert not exact or gpu <= 1.06 * w.gpu + 3e-6, "exact, but too long"
    assert least <= 1.01 * w.gpu + 2e-6, "at least too long"
    wall = times.wall if isinstance(times, Times) else times.wall.median
    assert wall >= 0.97 * w.wall - 10e-6, "wall too short"
    assert times.wall_at_most or wall <= 1.05 * w.wall + 60e-6, "wall too long"


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("name", CASES)
def test_a_run(name: str, work: Work) -> None:
    code, says = CASES[name]
    with gpumagic.cudatime() as timed:
        work.run(code)
    timing = timed.result
    assert timing.gpu is not None
    least = 0.0 if timing.gpu_at_least is None else timing.gpu_at_least.median
    check(work, timing.gpu.median, not timing.gpu_at_most, least, timing)
    assert timing.gpu.median <= timing.wall.median, "no work ends after all of it has"
    found = "no sign" if not timing.gpu_seen else "bound" if timing.gpu_at_most else "exact"
    assert found in says
    assert timing.limited_by == ("gpu" if found == "exact" else None)
    assert found == "no sign" or {*timing.per_device} == {*work.intervals}
    assert timing.host.median <= work.returned - work.begun + 10e-6


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("name", [name for name in CASES if "foreign" not in name])
def test_the_line_after_a_cell(name: str, work: Work) -> None:
    code, says = CASES[name]
    started = start(quiet=True)
    work.run(code)
    times = read(stop(started))
    exact = times.lower >= EXACT * times.upper
    check(work, times.upper, exact, times.lower, times)
    assert ("no sign" if not times.signs else "exact" if exact else "bound") in says


def test_a_device_that_is_busy_before(work: Work, profile: str) -> None:
    """Its earlier work, on any stream, is not waited for after every cell: no time."""
    for stream in (None, work.side):
        work.intervals.clear()
        work.kernel(0.5, stream)
        started = start(quiet=True)
        times = read(stop(started))
        assert time.perf_counter() < work.intervals[0][0][1], "nothing is waited for"
        assert not times.readings
        assert times.note == event_timer.BUSY.format(0)
    with gpumagic.cudatime() as timed:
        work.run(lambda w: w.kernel(10e-3))
    assert 0.99 * 10e-3 <= timed.gpu.median <= 1.06 * 10e-3
    assert not timed.gpu_at_most


@pytest.mark.parametrize("before", [True, False], ids=["before the query", "before the event"])
@pytest.mark.parametrize("seconds", [2e-3, 50e-3])
def test_a_process_that_loses_the_processor(
    before: bool, seconds: float, work: Work, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 10 ms, when the code has ended: it loses the lower bound, and tells no lie."""
    with gpumagic.cudatime() as timed:
        work.run(lambda w: w.kernel(seconds))
        original = streams.is_busy

        def is_busy(stream: Any) -> bool:
            monkeypatch.setattr(streams, "is_busy", original)  # once
            host(10e-3 if before else 0.0)
            busy = original(stream)
            host(0.0 if before else 10e-3)
            return busy

        monkeypatch.setattr(streams, "is_busy", is_busy)
    least = 0.0 if timed.gpu_at_least is None else timed.gpu_at_least.median
    check(work, timed.gpu.median, not timed.gpu_at_most, least, timed.result)
    assert timed.gpu_at_most


def test_a_first_launch_that_loads(work: Work, virtual_gpu: Any) -> None:
    """The GPU idles meanwhile; where the kernel is far longer, that is no error of 5 %."""
    virtual_gpu.set_profile("h100")
    for seconds, says in ((2e-3, "bound"), (200e-3, "exact")):
        kernel = work.x.sin_ if says == "bound" else work.x.cos_
        with gpumagic.cudatime() as timed:
            work.run(lambda w, s=seconds, first=kernel: (first(), w.kernel(s)))
        assert timed.host.median >= 50e-6
        check(work, timed.gpu.median, not timed.gpu_at_most, 0.0, timed.result)
        assert timed.gpu_at_most == (says == "bound")


# --- repeats --------------------------------------------------------------------------------------


class Stall:
    """Every tenth loop Python stops for 20 ms, as with a loader."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, w: Work) -> None:
        self.count += 1
        host(20e-3 if self.count % 10 == 0 else 0)
        w.sleep(1e-3)


def on_side(w: Work, seconds: float) -> None:
    with w.torch.cuda.stream(w.side):
        w.sleep(seconds)


def on_streams(w: Work) -> None:
    host(200e-6)
    with w.torch.cuda.stream(w.torch.cuda.Stream()):
        w.sleep(3e-3)


#: The code; other options than five repeats; the seconds of a loop; and what limits the code.
REPEATED: dict[str, tuple[Callable[[Work], Any], dict[str, int], float, str | None]] = {
    "kernel 20 us": (lambda w: w.sleep(20e-6), {"n": 100}, 20e-6, "gpu"),
    "a full queue": (lambda w: w.sleep(20e-6), {"n": 3000, "r": 3}, 20e-6, "gpu"),
    "every tenth loop stalls": (Stall(), {"n": 95, "r": 3}, 1e-3, None),
    "x.add_(1)": (lambda w: (host(20e-6), w.x.add_(1)), {}, 3e-6, "host"),
    "x.add_(1), -w 0": (lambda w: (host(20e-6), w.x.add_(1)), {"n": 9, "w": 0}, 3e-6, None),
    "host 2 ms, kernel 1 ms": (lambda w: (host(2e-3), w.sleep(1e-3)), {}, 1e-3, "host"),
    "1 ms, .item()": (lambda w: (w.sleep(1e-3), w.x[0].item()), {}, 1e-3, None),
    "side stream 200 us": (lambda w: on_side(w, 200e-6), {}, 200e-6, "gpu"),
    "host, side stream 20 us": (lambda w: (host(1e-4), on_side(w, 2e-5)), {}, 2e-5, "host"),
    "host, other device 20 us": (lambda w: (host(1e-4), w.sleep(2e-5, 1)), {}, 2e-5, "host"),
    "20 us on two devices": (
        lambda w: (host(1e-4), w.sleep(2e-5), w.sleep(2e-5, 1)),
        {},
        4e-5,
        None,
    ),
    "loops that overlap": (on_streams, {"n": 5}, 0.76e-3, None),
    "nothing": (lambda w: host(1e-6), {}, 0.0, None),
    "kernel 50 ms": (lambda w: w.sleep(50e-3), {}, 50e-3, "gpu"),
    "-n 1 -r 1": (lambda w: w.sleep(2e-3), {"n": 1, "r": 1}, 2e-3, "gpu"),
    "six repeats": (lambda w: (host(2e-3), w.sleep(1e-3)), {"r": 6}, 1e-3, "host"),
}


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("name", REPEATED)
def test_repeats(name: str, work: Work) -> None:
    """And all runs are accounted for."""
    code, options, true, bound = REPEATED[name]
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        code(work)

    timing = gpumagic.cudatime(counted, **{"r": 5, **options})
    assert timing.gpu is not None
    assert timing.gpu.median >= 0.98 * true - 0.2e-6
    assert timing.gpu_at_most or timing.gpu.median <= 1.06 * true + 0.3e-6
    assert timing.gpu_at_least is None or timing.gpu_at_least.median <= 1.02 * true + 0.3e-6
    assert timing.limited_by == bound
    assert timing.gpu_at_most == (bound is None)
    assert calls == timing.loops * timing.repeat + timing.warmup + timing.queued
    if "w" in options or name == "-n 1 -r 1":
        assert (timing.warmup, timing.queued) == (0, 0)
    if timing.warmup:
        assert f", after {timing.warmup:,} warm-up loop" in str(timing)
    if timing.queued:
        assert f"; {timing.queued:,} more queued beforehand" in str(timing)


@pytest.mark.parametrize(("seconds", "bound"), [(20e-6, None), (1e-3, "host")])
def test_events_that_take_the_gpus_time(
    seconds: float, bound: str | None, work: Work, virtual_gpu: Any
) -> None:
    """Those of a pool's 32 streams took an H200 44 µs: no 5 % of a millisecond, much of 0.1."""
    virtual_gpu.set_profile("slow events")
    timing = gpumagic.cudatime(lambda: (host(10 * seconds), work.sleep(seconds)), r=5)
    assert timing.queued
    assert timing.limited_by == bound
    assert timing.gpu_at_most == (bound is None)
    assert 0.98 * seconds <= timing.gpu.median
    assert timing.gpu_at_most or timing.gpu.median <= 1.06 * seconds
    assert timing.gpu_at_least is None or timing.gpu_at_least.median <= 1.02 * seconds
