"""Work of known duration is reported with that duration, wherever it runs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.timing import event_timer, run
from gpumagic.timing.event_timer import EventTimer, Reading
from gpumagic.timing.run import NO_SIGN_OF_WORK
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND, virtual_clock

CASES: dict[str, tuple[Callable[[Any], Any], dict[int, float]]] = {
    "current stream": (lambda w: w.sleep(0.05), {0: 0.05}),
    "unjoined side stream": (lambda w: w.on_side(0.05), {0: 0.05}),
    "side stream of high priority": (lambda w: w.on_side(0.05, priority=-1), {0: 0.05}),
    "side stream longer than the current": (
        lambda w: (w.sleep(0.03), w.on_side(0.05)),
        {0: 0.05},
    ),
    "current stream longer than a side one": (
        lambda w: (w.on_side(0.03), w.sleep(0.05)),
        {0: 0.05},
    ),
    "another device": (lambda w: w.sleep(0.05, 1), {1: 0.05}),
    "two devices": (lambda w: (w.sleep(0.05), w.sleep(0.02, 1)), {0: 0.05, 1: 0.02}),
    "two devices, on side streams": (
        lambda w: (w.on_side(0.02), w.on_side(0.05, 1)),
        {0: 0.02, 1: 0.05},
    ),
    "another thread": (lambda w: w.from_thread(0.05), {0: 0.05}),
}


@pytest.mark.parametrize("name", CASES)
def test_known_duration(name: str, gpu_work: Any) -> None:
    code, true = CASES[name]
    with gpumagic.cudatime() as timed:
        code(gpu_work)
    repeated = gpumagic.cudatime(lambda: code(gpu_work), n=1, r=2, w=0)
    for timing in (timed.result, repeated):
        assert {*timing.per_device} == {*true}
        for ordinal, seconds in true.items():
            # The work is queued some time after the start, at most when the host is done.
            for reported in timing.per_device[ordinal].all:
                assert 0.98 * seconds <= reported <= 1.02 * seconds + timing.host.worst
        assert timing.gpu.best == max(sample.best for sample in timing.per_device.values())
        assert timing.wall.best >= timing.gpu.best
        assert timing.bound == "gpu"
        assert not timing.gpu_at_most
        assert timing.gpu_note is None


@pytest.fixture
def foreign(gpu_work: Any) -> Iterator[Callable[[float], None]]:
    """``foreign(seconds)``: work on a stream of another library's, made without torch."""
    runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()  # the one that torch uses
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
    stream = gpu_work.torch.cuda.ExternalStream(handle.value, device="cuda:0")

    def sleep(seconds: float) -> None:
        with gpu_work.torch.cuda.stream(stream):
            gpu_work.sleep(seconds)

    yield sleep
    stream.synchronize()
    assert runtime.cudaStreamDestroy(handle) == 0


@pytest.mark.parametrize("own", [0.0, 0.4, 2.0])
def test_a_stream_that_is_not_torchs(own: float, foreign: Any, gpu_work: Any) -> None:
    with gpumagic.cudatime() as timed:
        foreign(0.02)
        if own:
            gpu_work.on_side(own * 0.02)
    true = 0.02 * max(own, 1.0)
    assert {*timed.per_device} == {0}
    assert 0.98 * true <= timed.gpu.median <= 1.02 * true + timed.host.median
    assert timed.wall.median >= timed.gpu.median
    assert timed.bound == "gpu"


@pytest.mark.parametrize(
    "slow", ["cudaDeviceSynchronize", "cudaEventRecord", "cudaEventQuery", "cudaStreamQuery"]
)
def test_a_busy_host_is_no_gpu_work(
    slow: str, gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call is slow: an idle device has no GPU time."""
    monkeypatch.setattr(event_timer, "thread_time", time.thread_time)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.005)
        virtual_gpu.slow(slow, 0.02)
    # Work that ends before the first question leaves no sign.
    assert {*timed.per_device} == {0} or timed.gpu_note.startswith(NO_SIGN_OF_WORK)
    assert timed.bound != "host"


def test_what_was_queued_before_does_not_count(gpu_work: Any) -> None:
    gpu_work.sleep(0.05)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.01)
    assert timed.gpu.median <= 0.0102 + timed.host.median


@pytest.mark.parametrize("name", ["current stream", "unjoined side stream", "another device"])
def test_a_host_that_is_held_up_when_the_code_has_ended(
    name: str, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU ends meanwhile, before anybody has looked: its time is not cut to the host's."""
    stops: list[float] = []

    def process_time() -> float:
        stops.append(0.0)
        time.sleep(0.1 if len(stops) == 4 else 0.0)  # it is read when a run starts and ends
        return 0.0

    monkeypatch.setattr(run, "process_time", process_time)
    timing = gpumagic.cudatime(lambda: CASES[name][0](gpu_work), n=1, r=2, w=0)
    assert len(stops) >= 4
    assert 0.98 * 0.05 <= timing.gpu.best <= 1.02 * 0.05 + timing.host.best
    assert timing.wall.worst >= timing.gpu.worst
    assert timing.host.worst >= 0.1, "when the GPU ended is not known: not before the host"


def test_an_idle_gpu_is_reported_as_at_most(gpu_work: Any) -> None:
    """Also where the code has waited itself: the GPU was not idle all the time, but unknown."""
    with gpumagic.cudatime() as timed:
        gpu_work.torch.empty(1, device="cuda")
        gpu_work.sleep(0.02)
        gpu_work.torch.cuda.synchronize()
    assert timed.gpu_at_most
    assert timed.bound is None
    assert "at most" in timed.gpu_note
    assert {*timed.per_device} == {0}
    assert 0.98 * 0.02 <= timed.gpu.median <= timed.wall.median
    assert "≤" in str(timed.result)


@pytest.mark.parametrize(
    "code",
    [
        lambda torch: time.sleep(0.01),
        lambda torch: torch.ones(64, 64) @ torch.ones(64, 64),
        lambda torch: torch.cuda.synchronize(),
    ],
)
def test_a_device_without_a_sign_of_work_has_no_time(
    code: Callable[[Any], Any], gpu_work: Any
) -> None:
    """Neither in a single run nor in repeated ones: the two agree."""
    with gpumagic.cudatime() as timed:
        code(gpu_work.torch)
    repeated = gpumagic.cudatime(lambda: code(gpu_work.torch), n=2, r=3)
    for timing in (timed.result, repeated):
        assert (timing.gpu, timing.per_device, timing.gpu_at_most) == (None, {}, False)
        assert timing.gpu_note.startswith(NO_SIGN_OF_WORK)
        assert "≤" not in str(timing)


def test_nothing_is_waited_for_while_a_graph_is_captured(gpu_work: Any) -> None:
    torch = gpu_work.torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), gpumagic.cudatime() as timed:
        gpu_work.sleep(0.001)
    assert timed.gpu is None
    assert "captured" in timed.gpu_note
    with gpumagic.cudatime() as timed:
        graph.replay()
    assert timed.gpu.median >= 0.98 * 0.001


def test_nested(gpu_work: Any) -> None:
    with gpumagic.cudatime() as outer:
        gpu_work.sleep(0.02)
        with gpumagic.cudatime() as inner:
            gpu_work.sleep(0.01)
    assert inner.gpu.median <= 0.0102 + inner.host.median
    assert outer.gpu.median >= 0.98 * 0.01


def test_a_device_that_cannot_be_waited_for(gpu_work: Any, virtual_gpu: Any) -> None:
    """The block's own work is unaffected, and one line says what is missing."""
    done = []
    with gpumagic.cudatime() as timed:
        virtual_gpu.fault("cudaStreamQuery", 700)
        done.append(1)
    virtual_gpu.reset()
    assert done
    assert timed.gpu is None
    assert "the GPU cannot be waited for" in timed.gpu_note


@pytest.mark.own_process  # where no other test has used GPU 3
@pytest.mark.usefixtures("virtual_gpu")
def test_a_device_that_is_first_used_inside_is_named() -> None:
    import torch

    torch.zeros(1, device="cuda:0")
    with virtual_clock():
        with gpumagic.cudatime() as timed:
            torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
            torch.zeros(1, device="cuda:3")
        counts = iter(range(9))

        def code() -> None:
            torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
            if next(counts) == 2:
                torch.zeros(1, device="cuda:2")

        repeated = gpumagic.cudatime(code, n=1, r=4, w=0)
        torch.cuda.synchronize(0)
    assert timed.gpu is None
    assert timed.gpu_note == "cuda:3 was first used inside this cell; run it again for the GPU time"
    assert list(timed.per_device) == [0]
    assert repeated.gpu_note.startswith("cuda:2 was first used during repeat 3: ")
    assert len(repeated.gpu.all) == 3
    assert list(repeated.per_device) == [0, 2]


# --- a cell that is not disturbed ----------------------------------------------------------------


def measure(timer: EventTimer, code: Any) -> tuple[dict[int, Reading], float]:
    """The readings of ``code``, and its host seconds."""
    timer.prepare()
    timer.start()
    started = time.perf_counter()
    code()
    stopped = time.perf_counter()
    stopped = timer.stop(stopped)
    return timer.finish(started, stopped), stopped - started


def test_earlier_work_is_neither_waited_for_nor_counted(gpu_work: Any) -> None:
    timer = EventTimer(disturbs=False)
    measure(timer, lambda: None)
    gpu_work.sleep(0.2)
    begun = time.perf_counter()
    readings, host = measure(timer, lambda: gpu_work.sleep(0.01))
    assert host < 0.1
    assert readings[0].seconds == pytest.approx(0.01, rel=0.02)
    assert readings[0].finished - begun >= 0.2
    gpu_work.sleep(0.05)
    readings, _ = measure(timer, lambda: None)
    assert not any(reading.worked for reading in readings.values())


def test_an_idle_cell_takes_few_calls(gpu_work: Any, virtual_gpu: Any) -> None:
    """Nothing is synchronised, and only the current device's streams are asked, each once."""
    gpu_work.sleep(0.0, 1)
    timer = EventTimer(disturbs=False)
    measure(timer, lambda: None)
    waits = ("cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamSynchronize")
    queries = ("cudaStreamQuery", "cuStreamIsCapturing")
    before = {name: virtual_gpu.calls(name) for name in (*waits, *queries)}
    measure(timer, lambda: None)
    made = {name: virtual_gpu.calls(name) - before[name] for name in before}
    assert [made[name] for name in waits] == [0, 0, 0]
    assert all(0 < made[name] < 150 for name in queries), made
