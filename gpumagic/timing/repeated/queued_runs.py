"""The GPU's own time of code that Python cannot launch fast enough, by runs that are queued.

Runs that are queued behind a delay are worked off without a gap. The delay is torch's own kernel
``torch.cuda._sleep``, one on each device; it ends by itself: code that synchronises cannot hang.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, cast

from gpumagic.cuda.pytorch import cuda_events, graph_captures, torch_cuda
from gpumagic.results.timing.sample import EXACT, is_bound
from gpumagic.timing.event_timer import TimedDevice, ready_devices
from gpumagic.timing.precision import LEAST_REPEATS
from gpumagic.timing.run_times import Queued, Times, sure_part
from gpumagic.timing.waits import wait_for

#: The number of queued runs; more where the repeats have a confidence interval.
_QUEUED = 3
#: The least seconds of GPU work in a queued run.
_SAMPLE = 1e-3
#: The most loops of a queued run: a queue holds some 1,000 launches, and a host that finds it full
#: waits.
_MOST_LOOPS = 100
#: Seconds: the resolution of events, with a margin.
_STEP = 1e-6
#: The delay is the time that the host needs, times a factor, and some seconds more.
_FACTOR, _MORE = 2.0, 3e-3
#: The longest delay, in seconds.
_LONGEST = 0.5
#: Cycles per second of a clock that few GPUs reach: on slower GPUs the delay is longer.
_CLOCK = 2e9


def run_queued(
    run: Callable[[int, AbstractContextManager[Any]], object], repeats: Sequence[Times], loops: int
) -> tuple[Queued | None, int]:
    """Run a few times behind a delay, where the repeats do not show the GPU's own time.

    ``run(count, scope)`` runs loops within a scope; ``repeats`` are of ``loops`` loops each.
    Returns what the queued runs show, and how many loops have run.
    """
    if not all(times.readings for times in repeats) or not is_bound(1.0, sure_part(repeats)):
        return None, 0
    host = statistics.median(times.host for times in repeats) / loops
    as_run = statistics.median(times.upper for times in repeats) / loops
    count = min(math.ceil(_SAMPLE / max(as_run, 1e-9)), loops, _MOST_LOOPS)
    delay = _FACTOR * host * count + _MORE

    def sample(delay: float, loops: int) -> dict[int, float] | None:
        behind = BehindADelay(delay)
        with suppress(Exception):  # the user has not asked for this run
            run(loops, behind)
        return behind.taken

    # With no loops, it shows what the events themselves take.
    empty = sample(_MORE, 0)
    if delay > _LONGEST or not empty:
        return None, 0
    samples: list[dict[int, float]] = []
    for number in range(1, (LEAST_REPEATS if len(repeats) >= LEAST_REPEATS else _QUEUED) + 1):
        taken = sample(delay, count)
        if taken is None:  # the code waits for the GPU, or Python was slow
            return None, number * count
        samples.append(taken)
    device = max(samples[0], key=samples[0].__getitem__)
    seconds = tuple(taken[device] for taken in samples)
    # The events of a pool's 32 streams took 44 µs on a GPU, a large part of few loops. Another
    # device that takes more than such a part may have worked, too.
    events = max(empty.values()) + _STEP
    others = [each for taken in samples for i, each in taken.items() if i != device]
    shows_work = max([events, *others]) <= (1 - EXACT) * min(seconds)
    # Queued loops that take longer than the same loops as run: those overlap, so few do not.
    best = min(times.upper for times in repeats) * count / loops
    is_own = shows_work and EXACT * statistics.median(seconds) <= best
    return Queued(seconds, count, device, events) if is_own else None, len(samples) * count


class BehindADelay(AbstractContextManager["BehindADelay"]):
    """Queues the work of its body behind a delay of some seconds on each device in use.

    ``taken`` are then the seconds until that work was done, by device; None where a delay ended
    before all was queued (Python waits for the GPU, or was slow), and while a graph is captured.

    Raises:
        RuntimeError: a device has failed, or a graph is being captured.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.taken: dict[int, float] | None = None

    def __enter__(self) -> BehindADelay:
        with graph_captures.Relaxed():
            self._devices = ready_devices()
            self._used = self._streams()
            for device in self._devices:
                launch_delay(device.ordinal, self._seconds)
                device.start.record(device.streams.current())
            for device, each in self._used:
                if each.cuda_stream != device.streams.current().cuda_stream:
                    device.start.wait(each)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        with graph_captures.Relaxed():
            used = self._streams()
            if any(graph_captures.is_capturing(each) for _, each in used):
                return
            ends = [(device, cuda_events.timing_event(each)) for device, each in used]
            in_time = not any(device.start.query() for device in self._devices)
            for _, event in ends:
                wait_for(event)
            # A stream that was handed out meanwhile did not wait for the delay.
            if not in_time or len(used) != len(self._used):
                return
            taken = {device.ordinal: 0.0 for device in self._devices}
            for device, event in ends:
                seconds = device.start.elapsed_time(event) / 1e3
                taken[device.ordinal] = max(taken[device.ordinal], seconds)
        self.taken = taken

    def _streams(self) -> list[tuple[TimedDevice, Any]]:
        """Return the streams on which there can be work."""
        return [(device, each) for device in self._devices for each in device.streams.used()]


def launch_delay(ordinal: int, seconds: float) -> None:
    """Keep a device busy on the current stream."""
    cuda = cast(Any, torch_cuda.loaded()).cuda
    with cuda.device(ordinal):
        cuda._sleep(round(seconds * _CLOCK))
