"""A line in which nothing can be launched has the mark before it, once."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cells.line_tracer import Line
from gpumagic.timing import line_timer
from gpumagic.timing.line_timer import LineTimer


def test_a_line_that_can_launch_nothing_has_the_mark_before_it(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(line_timer, "perf_counter", lambda: now)
    gpu_work.torch.zeros((), device="cuda")
    timer = LineTimer()
    record, recorded = timer.marks.new, []

    def counted() -> Any:
        recorded.append(number)
        return record()

    monkeypatch.setattr(timer.marks, "new", counted)
    number = 0
    timer.prepare()
    gpu_work.sleep(1.0)  # it is never idle, whatever the clock is
    timer.start()
    call = timer.new_record()
    # By line: the host's seconds, and the GPU's. Nothing is launched in less than a microsecond,
    # but other threads may launch meanwhile.
    taken = [(1, 5e-6, 1e-3), (2, 5e-7, 0.0), (3, 5e-7, 0.0), (4, 5e-7, 0.0), (5, 2e-6, 2e-3)]
    try:
        for number, host, gpu in taken:
            timer.begin_line(call, Line(0, number), again=False)
            if gpu:
                gpu_work.sleep(gpu)
            now += host
            timer.read(call)
            timer.end_line(call, Line(0, number), recursive=False)
            call.is_new = call.is_over = False
        timer.stop()
    finally:
        timer.close(None)
    gpu_work.torch.cuda.synchronize()
    timer.finish()
    assert [each for each in recorded if each in (2, 3, 4)] == [3]
    found = {line.number: time.gpu for line, time in timer.times().items()}
    assert found == {number: pytest.approx(gpu, abs=1e-5) for number, _, gpu in taken}
