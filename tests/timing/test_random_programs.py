"""Random programs, on GPUs whose clocks drift: no bound is false, by what the virtual GPU knows."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from gpumagic.cuda.pytorch import cuda_events
from gpumagic.timing import event_timer
from gpumagic.timing.lines import line_clock, marks
from tests.support.gpu_work import KnownWork
from tests.support.line_cells import measured

#: So much of the time may a clock be wrong here: a hundred times as much as is allowed for.
DRIFT = 0.01
#: Seconds by which the truth itself is known, a kernel: work begins 2 µs after it was submitted.
KNOWN = 3e-6
SEEDS = range(24)


class Program(KnownWork):
    """Statements, each a line; and when each kernel that they launched began and ended."""

    def __init__(self, seed: int, gpu_work: Any) -> None:
        super().__init__(gpu_work)
        self._chance, cuda = random.Random(seed), gpu_work.torch.cuda
        self.streams = [*map(cuda.current_stream, (0, 1)), *map(cuda.Stream, (0, 0, 1))]
        lines = [self._line() for _ in range(self._chance.randint(1, 9))]
        if self._chance.random() < 0.3:
            lines = [f"for i in range({self._chance.randint(1, 4)}):", *(f"    {x}" for x in lines)]
        self.text = "\n".join(lines)

    def _line(self) -> str:
        seconds = self._chance.choice((0.0, 20e-6, 300e-6, 3e-3, 20e-3)) * self._chance.random()
        stream = self._chance.randrange(len(self.streams))
        return self._chance.choice(
            (
                *(f"p.kernel({seconds:.6f}, p.streams[{stream}])",) * 4,
                f"time.sleep({seconds:.6f})",
                f"p.wait_for_device({stream % 2})",
                f"p.streams[{stream}].synchronize()",
            )
        )

    def wait_for_device(self, ordinal: int) -> None:
        self._work.torch.cuda.synchronize(ordinal)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bound_is_false(seed: int, gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (event_timer, marks):
        monkeypatch.setattr(module, "DRIFT", DRIFT)
    original, drift = cuda_events.seconds_between, (-DRIFT, 0.0, DRIFT)[seed % 3]
    monkeypatch.setattr(cuda_events, "seconds_between", lambda *x: (1 + drift) * original(*x))
    program = Program(seed, gpu_work)
    timing = measured(program.text, p=program, time=time)
    assert not timing.partial
    assert timing.gpu is not None
    kernels = sum(map(len, program.intervals.values()))
    about = KNOWN * (kernels + 2)
    busy = program.busy(0, 1)
    assert timing.gpu.median >= busy - about, "at most"
    if timing.gpu_at_least is not None:
        assert timing.gpu_at_least.median <= busy + about, "at least"
    if not timing.gpu_at_most:
        assert timing.gpu.median <= 1.06 * busy + about + 2 * DRIFT * timing.wall.median, "exact"
    for ordinal, sample in timing.per_device.items():
        assert sample.median >= program.busy(ordinal) - about, f"cuda:{ordinal}, at most"
    assert timing.lines is not None
    for line in timing.lines:
        if line.gpu is None:
            continue
        assert line.gpu <= timing.wall.median * (1 + 2 * DRIFT) + about
        for ordinal, seconds in line.per_device.items():
            if ordinal not in line.bounds and line.hits:
                slack = line.hits * line_clock._MARKS + 3 * DRIFT * timing.wall.median
                assert seconds <= program.busy(ordinal) + about + slack, (line, "exact")
    if timing.limited_by is None and not timing.gpu_seen:
        assert timing.gpu_at_least is None
