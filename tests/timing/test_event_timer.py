"""Work of known duration is reported with that duration, wherever it runs."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.timing import context_event
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
    "two devices, the second longer": (
        lambda w: (w.sleep(0.02), w.sleep(0.05, 1)),
        {0: 0.02, 1: 0.05},
    ),
    "two devices, on side streams": (
        lambda w: (w.on_side(0.05), w.on_side(0.02, 1)),
        {0: 0.05, 1: 0.02},
    ),
    "another thread": (lambda w: w.from_thread(0.05), {0: 0.05}),
}


@pytest.mark.parametrize("name", CASES)
def test_known_duration(name: str, gpu_work: Any) -> None:
    code, true = CASES[name]
    with gpumagic.cudatime() as timed:
        code(gpu_work)
    assert {*timed.per_device} == {*true}
    for ordinal, seconds in true.items():
        # The work is queued some time after the start, at most when the host is done.
        reported = timed.per_device[ordinal].median
        assert 0.98 * seconds <= reported <= 1.02 * seconds + timed.host.median
    assert timed.gpu.median == max(sample.median for sample in timed.per_device.values())
    assert timed.wall.median >= timed.gpu.median
    assert timed.bound == "gpu"
    assert not timed.gpu_at_most
    assert timed.gpu_note is None


@pytest.fixture(params=[1, 0], ids=["non-blocking", "blocking"])
def foreign(gpu_work: Any, request: pytest.FixtureRequest) -> Iterator[Callable[[float], None]]:
    """``foreign(seconds)``: work on a stream of another library's, made without torch."""
    runtime = ctypes.CDLL(None)  # the one that torch uses
    handle = ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), request.param) == 0
    stream = gpu_work.torch.cuda.ExternalStream(handle.value, device="cuda:0")

    def sleep(seconds: float) -> None:
        with gpu_work.torch.cuda.stream(stream):
            gpu_work.sleep(seconds)

    sleep.handle = handle  # type: ignore[attr-defined]
    yield sleep
    stream.synchronize()
    assert runtime.cudaStreamDestroy(handle) == 0


@pytest.mark.parametrize("own", [0.0, 0.4])
@pytest.mark.parametrize("true", [0.0002, 0.008, 0.05])
def test_a_stream_that_is_not_torchs(own: float, true: float, foreign: Any, gpu_work: Any) -> None:
    """It outlasts all streams of torch: only an event behind the whole context shows it.

    Also where other devices have a context, whose events take time at the end.
    """
    for ordinal in range(gpu_work.torch.cuda.device_count()):
        gpu_work.torch.empty(1, device=f"cuda:{ordinal}")
    with gpumagic.cudatime() as timed:
        foreign(true)
        if own:
            gpu_work.on_side(own * true)  # the default stream would wait for a blocking one
    assert {*timed.per_device} == {0}
    assert 0.98 * true <= timed.gpu.median <= 1.02 * true + timed.host.median
    assert timed.wall.median >= timed.gpu.median
    assert timed.bound == "gpu"
    assert not timed.gpu_at_most
    assert timed.gpu_note is None


def test_a_stream_that_is_not_torchs_and_finishes_first(foreign: Any, gpu_work: Any) -> None:
    with gpumagic.cudatime() as timed:
        foreign(0.02)
        gpu_work.on_side(0.05)
    assert 0.98 * 0.05 <= timed.gpu.median <= 1.02 * 0.05 + timed.host.median


@pytest.mark.parametrize("foreign", [1], indirect=True)
def test_a_stream_that_is_not_torchs_repeated(foreign: Any, gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: foreign(0.008), n=1, r=5, queued=True)
    assert 0.98 * 0.008 <= timing.gpu.best <= timing.gpu.worst <= 1.02 * 0.008 + timing.host.worst
    assert timing.bound == "gpu"
    assert timing.queued is None
    assert "not torch's" in timing.queued_note


def test_a_stream_that_is_not_torchs_where_the_driver_is_older(
    foreign: Any, gpu_work: Any, virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an event behind all work: by the CPU time that the wait for the device takes."""
    virtual_gpu.fault("cuCtxRecordEvent", 801)
    monkeypatch.setattr(
        context_event, "thread_time", time.perf_counter
    )  # the wait is the virtual clock's
    with gpumagic.cudatime() as timed:
        foreign(0.008)
    assert 0.98 * 0.008 <= timed.gpu.median <= 1.02 * 0.008 + timed.host.median


def test_a_short_side_stream_where_the_driver_is_older(gpu_work: Any, virtual_gpu: Any) -> None:
    """torch's streams have events of their own, however short their work is."""
    virtual_gpu.fault("cuCtxRecordEvent", 801)
    with gpumagic.cudatime() as timed:
        gpu_work.on_side(0.001)
    # Where this process is held up before it records the event, that is later than the work's end.
    assert 0.98 * 0.001 <= timed.gpu.median <= timed.wall.median
    assert timed.per_device[0].median == timed.gpu.median


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "slow", ["cudaDeviceSynchronize", "cudaEventRecord", "cudaEventQuery", "cudaStreamQuery"]
)
def test_a_busy_host_is_no_gpu_work(
    slow: str, older: bool, gpu_work: Any, virtual_gpu: Any
) -> None:
    """Whichever call is slow: an idle device has no GPU time."""
    if older:
        virtual_gpu.fault("cuCtxRecordEvent", 801)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.005)
        virtual_gpu.slow(slow, 0.02)
    # Work that ends before the first question leaves no sign.
    assert {*timed.per_device} == {0} or timed.gpu_note == NO_SIGN_OF_WORK
    assert timed.bound != "host"


def test_beside_a_busy_loop_an_idle_device_has_no_time(gpu_work: Any) -> None:
    """A thread and a process that compute compete for the interpreter lock and the processor."""
    loop = [sys.executable, "-c", "while True: pass"]
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            pass

    thread = threading.Thread(target=spin)
    with subprocess.Popen(loop) as busy:
        try:
            thread.start()
            for _ in range(3):
                with gpumagic.cudatime() as timed:
                    gpu_work.sleep(0.05)
                assert {*timed.per_device} == {0}
        finally:
            done.set()
            busy.kill()
            thread.join()


def test_what_was_queued_before_does_not_count(gpu_work: Any) -> None:
    gpu_work.sleep(0.05)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.01)
    assert timed.gpu.median <= 0.0102 + timed.host.median


def test_an_idle_gpu_is_reported_as_at_most(gpu_work: Any) -> None:
    with gpumagic.cudatime() as timed:
        gpu_work.torch.empty(1, device="cuda")
        time.sleep(0.02)
    assert timed.gpu_at_most
    assert timed.bound is None
    assert "at most" in timed.gpu_note
    assert {*timed.per_device} == {0}
    assert timed.gpu.median <= timed.wall.median
    assert "≤" in str(timed.result)


def test_code_that_waits_itself_is_not_called_host_bound(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is idle when it returns, but was not all the time: unknown."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with gpumagic.cudatime() as timed:
        gpu_work.sleep(0.02)
        gpu_work.torch.cuda.synchronize()
    assert timed.bound is None
    assert timed.gpu_at_most
    assert timed.gpu.median >= 0.98 * 0.02


@pytest.mark.parametrize(
    "code",
    [
        lambda torch: time.sleep(0.01),
        lambda torch: torch.ones(64, 64) @ torch.ones(64, 64),
        lambda torch: torch.ones(4).sum().item(),
        lambda torch: torch.cuda.synchronize(),
        lambda torch: torch.cuda.current_stream().synchronize(),
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
        assert timing.gpu_note == NO_SIGN_OF_WORK
        assert "≤" not in str(timing)


@pytest.mark.parametrize(
    "wait",
    [
        lambda torch, x: torch.cuda.synchronize(),
        lambda torch, x: torch.accelerator.synchronize(),
        lambda torch, x: torch.cuda.current_stream().synchronize(),
        lambda torch, x: torch.cuda.current_stream().record_event().synchronize(),
        lambda torch, x: x.item(),
        lambda torch, x: bool(x),
        lambda torch, x: x.cpu(),
        lambda torch, x: x.to("cpu"),
        lambda torch, x: x.copy_(torch.ones(1)),
    ],
)
@pytest.mark.parametrize("exact", [{}, {"w": 1}, {"w": 0}])
def test_work_that_the_code_waited_for_is_timed(
    wait: Callable[[Any, Any], Any],
    exact: dict[str, int],
    gpu_work: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    torch = gpu_work.torch
    x = torch.ones(1, device="cuda")

    def code() -> None:
        gpu_work.sleep(0.02)
        wait(torch, x)

    before = dict(vars(torch.Tensor)), dict(vars(torch.cuda.Event)), torch._C._cuda_synchronize
    with gpumagic.cudatime() as timed:
        code()
    for timing in (timed.result, gpumagic.cudatime(code, n=1, r=2, **exact)):
        assert {*timing.per_device} == {0}
        assert 0.98 * 0.02 <= timing.gpu.best <= timing.wall.best
        assert timing.gpu_at_most
        assert timing.bound is None
    after = dict(vars(torch.Tensor)), dict(vars(torch.cuda.Event)), torch._C._cuda_synchronize
    assert after == before


def test_foreign_work_that_torch_waited_for_is_timed(
    foreign: Any, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with gpumagic.cudatime() as timed:
        foreign(0.02)
        gpu_work.torch.cuda.synchronize()
    assert 0.98 * 0.02 <= timed.gpu.median <= timed.wall.median
    assert timed.gpu_at_most


WAITS = {
    "stream": lambda runtime, stream: runtime.cudaStreamSynchronize(stream),
    "device": lambda runtime, stream: runtime.cudaDeviceSynchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_foreign_work_that_waits_for_itself_is_not_denied(
    wait: str, foreign: Any, gpu_work: Any, run_cell: Any, ip: Any
) -> None:
    """It leaves no sign; but behind a delay kernel of the whole context its wait is seen."""
    runtime = ctypes.CDLL(None)

    def code() -> None:
        foreign(0.03)
        WAITS[wait](runtime, foreign.handle)

    with gpumagic.cudatime() as timed:
        code()
    assert timed.gpu_note == NO_SIGN_OF_WORK
    for options in ({"n": 2, "r": 4}, {"max_time": 0.3}):
        timing = gpumagic.cudatime(code, **options)
        assert timing.gpu.best >= 0.98 * 0.03
        assert timing.gpu_at_most
        assert timing.bound is None
        assert timing.bound_evidence is None
    ip.user_ns["code"] = code
    shown = run_cell("%cudatime --energy -n 1 -r 2 code()").text
    assert "J per loop" in shown


@pytest.mark.parametrize("wait", WAITS)
def test_an_older_driver_does_not_deny_foreign_work(
    wait: str, foreign: Any, virtual_gpu: Any
) -> None:
    """There it is not delayed: what the samples do not show is said to be unseen."""
    runtime = ctypes.CDLL(None)

    def code() -> None:
        foreign(0.03)
        WAITS[wait](runtime, foreign.handle)

    virtual_gpu.fault("cuCtxRecordEvent", 801)
    virtual_gpu.fault("cuCtxWaitEvent", 801)
    timing = gpumagic.cudatime(code, n=2, r=4)
    if timing.gpu is None:
        assert timing.gpu_note == NO_SIGN_OF_WORK
    else:
        assert timing.gpu_at_most
    assert timing.bound is None or "not torch's is not seen" in timing.bound_evidence


@pytest.mark.parametrize("foreign", [1], indirect=True)
@pytest.mark.parametrize("slow", ["cuCtxRecordEvent", "cudaStreamWaitEvent"])
def test_an_upper_bound_holds_where_the_host_is_held_up(
    slow: str, foreign: Any, gpu_work: Any, virtual_gpu: Any
) -> None:
    """The foreign work ends while the host records the event that would show it."""
    torch = gpu_work.torch
    with gpumagic.cudatime() as timed:
        torch.empty(1, device="cuda")  # a sign of work
        foreign(0.03)
        virtual_gpu.slow(slow, 0.05)
    assert timed.gpu_at_most
    assert timed.bound is None
    assert 0.98 * 0.03 <= timed.gpu.median <= timed.wall.median


def test_nothing_is_synchronised_while_a_graph_is_captured(gpu_work: Any) -> None:
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
    assert outer.gpu.median >= 0.98 * 0.03


def test_no_context_is_made(gpu_work: Any) -> None:
    has_context = gpu_work.torch._C._cuda_hasPrimaryContext
    before = [has_context(i) for i in range(4)]
    with gpumagic.cudatime():
        gpu_work.sleep(0.001)
    gpumagic.cudatime(lambda: gpu_work.sleep(0.001), n=1, r=2)
    assert [has_context(i) for i in range(4)] == before


def test_a_device_that_cannot_be_waited_for(gpu_work: Any, virtual_gpu: Any) -> None:
    """The block's own work is unaffected, and one line says what is missing."""
    with gpumagic.cudatime() as timed:
        virtual_gpu.fault("cudaDeviceSynchronize", 719)
        value = 42
    virtual_gpu.reset()
    assert value == 42
    assert timed.gpu is None
    assert "cannot be waited for" in timed.gpu_note
    assert "\n" not in timed.gpu_note
    assert timed.wall.median > 0


def test_repeated(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.sleep(0.002), n=5, r=3, w=2)
    assert (timing.loops, timing.repeat, timing.warmup) == (5, 3, 2)
    assert len(timing.gpu.all) == len(timing.wall.all) == 3
    assert timing.gpu.best >= 0.98 * 0.002
    assert timing.gpu.median <= 1.02 * 0.002 + timing.host.median
    assert timing.bound == "gpu"
    assert timing.timings == list(timing.gpu.all)
    assert timing.all_runs == [5 * value for value in timing.gpu.all]


def test_repeats_do_not_overlap(gpu_work: Any) -> None:
    timing = gpumagic.cudatime(lambda: gpu_work.on_side(0.01), n=1, r=3, w=0)
    assert timing.gpu.worst <= 0.0102 + timing.host.worst


@pytest.mark.own_process  # where no other test has used GPU 3
@pytest.mark.usefixtures("virtual_gpu")
def test_a_device_that_is_first_used_inside_is_named() -> None:
    import torch

    torch.zeros(1, device="cuda:0")
    with virtual_clock():
        with gpumagic.cudatime() as timed:
            torch.cuda._sleep(SLEEP_CYCLES_PER_SECOND // 100)
            torch.zeros(1, device="cuda:3")
        torch.cuda.synchronize(0)
    assert timed.gpu is None
    assert timed.gpu_note == "cuda:3 was first used inside this cell; run it again for the GPU time"
    assert list(timed.per_device) == [0]
