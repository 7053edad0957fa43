"""Marks: when all work that was queued before them had finished, on every stream in use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.timing import stream_marks
from gpumagic.timing.stream_marks import StreamMarks


@pytest.fixture
def marks(gpu_work: Any) -> Iterator[StreamMarks]:
    made = StreamMarks()
    made.start()
    made.begin()
    yield made
    made.stop()


def mark(marks: StreamMarks) -> tuple[Any, bool]:
    found = marks.record()
    assert found is not None
    return found


def test_the_times_of_marks_never_decrease(marks: StreamMarks, gpu_work: Any) -> None:
    recorded = []
    for work in (
        lambda: gpu_work.sleep(0.03),
        lambda: gpu_work.on_side(0.05),
        lambda: gpu_work.sleep(0.01),
        lambda: gpu_work.sleep(0.08, 1),
    ):
        work()
        recorded.append(mark(marks)[0])
    assert not marks.is_reached(recorded[-1])
    gpu_work.torch.cuda.synchronize(0)
    gpu_work.torch.cuda.synchronize(1)
    assert all(map(marks.is_reached, recorded))
    # Other tests of this process may have given further devices a context.
    first, second = (marks.ordinals.index(ordinal) for ordinal in (0, 1))
    seconds = [marks.read(each) for each in recorded]
    expected = [pytest.approx(s, abs=3e-4) for s in (0.03, 0.05, 0.05, 0.05)]
    assert [of_device[first] for of_device in seconds] == expected
    assert seconds[-1][second] == pytest.approx(0.08, abs=3e-4)


def test_a_device_that_comes_into_use(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time goes on with that of the others, however long it takes to add it."""
    for ordinal in (0, 1):
        gpu_work.sleep(0.0, ordinal)
        gpu_work.torch.cuda.synchronize(ordinal)
    streams = stream_marks.torch_cuda.streams
    in_use = [0]

    def slow(ordinal: int) -> Any:
        time.sleep(0.02 * ordinal)
        return streams(ordinal)

    monkeypatch.setattr(stream_marks.torch_cuda, "streams", slow)
    monkeypatch.setattr(stream_marks.torch_cuda, "contexts", lambda: tuple(in_use))
    monkeypatch.setattr(
        stream_marks.torch_cuda.c_functions(), "_cuda_hasPrimaryContext", in_use.__contains__
    )
    marks = StreamMarks()
    marks.start()
    marks.begin()
    try:
        assert mark(marks) is not None
        in_use.append(1)
        last = mark(marks)[0]
    finally:
        marks.stop()
    assert marks.ordinals == (0, 1)
    for ordinal in (0, 1):
        gpu_work.torch.cuda.synchronize(ordinal)
    assert marks.is_reached(last)
    of_first, of_second = marks.read(last)
    # The second one's mark is behind nothing but its first event, which is as old as it looks.
    assert of_second == pytest.approx(of_first, abs=5e-3)
    assert of_second >= 0.02


def test_whether_the_last_mark_was_reached(marks: StreamMarks, gpu_work: Any) -> None:
    mark(marks)
    gpu_work.sleep(0.02)
    assert mark(marks)[1]  # the GPU was idle before this work
    gpu_work.sleep(0.02)
    assert not mark(marks)[1]
    gpu_work.torch.cuda.synchronize()
    assert mark(marks)[1]


def test_short_cells_make_no_events_while_they_run(
    marks: StreamMarks, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA takes longer to make an event than to record it: they are made before."""
    monkeypatch.setattr(stream_marks.torch_cuda, "timing_event", lambda _: pytest.fail("made"))
    assert marks.ordinals
    for _ in range(2):  # what was read is reused, also beyond their number
        recorded = [mark(marks)[0] for _ in range(200)]
        for ordinal in marks.ordinals:
            gpu_work.torch.cuda.synchronize(ordinal)
        for each in recorded:
            assert marks.is_reached(each)
            marks.read(each)


def test_long_times_stay_precise(
    marks: StreamMarks, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA returns milliseconds with 24 bits: of an hour they would be half a millisecond."""
    monkeypatch.setattr(stream_marks, "_REBASE", 0.01)
    before = 0.0
    for _ in range(4):
        gpu_work.sleep(0.05)
        long = mark(marks)[0]
        gpu_work.sleep(0.001)
        short = mark(marks)[0]
        gpu_work.torch.cuda.synchronize(0)
        gpu_work.torch.cuda.synchronize(1)
        longer, end = marks.read(long)[0], marks.read(short)[0]
        assert longer - before == pytest.approx(0.05, rel=0.02)
        assert end - longer == pytest.approx(0.001, abs=3e-4)
        before = end


def test_streams_are_no_longer_followed_at_the_end(gpu_work: Any) -> None:
    torch_c = gpu_work.torch._C
    before = torch_c._cuda_setStream
    marks = StreamMarks()
    marks.start()
    assert torch_c._cuda_setStream is not before
    marks.stop()
    assert torch_c._cuda_setStream is before


def test_looks_at_all_streams_take_a_small_part_of_the_time(
    marks: StreamMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that looks move on, too: a millisecond each."""
    now, looked = 0.0, 0.0

    def look(_device: Any) -> None:
        nonlocal now, looked
        now += 1e-3 / len(marks.ordinals)
        looked += 1e-3 / len(marks.ordinals)

    monkeypatch.setattr(stream_marks, "perf_counter", lambda: now)
    monkeypatch.setattr(stream_marks._DeviceMarks, "look", look)
    for longest, part in ((0.1, 0.01), (1.0, 0.003)):
        monkeypatch.setattr(stream_marks, "_LONGEST_INTERVAL", longest)
        marks.begin()
        begun, looked = now, 0.0
        while now < begun + 2.0:
            now += 1e-3
            mark(marks)
        assert looked == pytest.approx(part * 2.0, rel=0.2)
