"""``%%cudatime``: known durations, once and repeated, and what others say of the same work."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.process import script
from tests.benchmarks.row import Row
from tests.virtual_gpu import Scenario, environment

#: Seconds that the known work takes.
TRUE = 0.05
LOOPS, REPEATS = 200, 9


def rows() -> Iterator[Row]:
    """The rows. Needs two GPUs."""
    import torch

    for ordinal in (0, 1):
        torch.empty(1, device=f"cuda:{ordinal}")
    side = torch.cuda.Stream(0)

    def on_side() -> None:
        with torch.cuda.stream(side):
            _spin(torch, TRUE)

    def from_thread() -> None:
        thread = threading.Thread(target=on_side)
        thread.start()
        thread.join()

    cases: dict[str, tuple[int, Callable[[], None]]] = {
        "on the current stream": (0, lambda: _spin(torch, TRUE)),
        "on an unjoined side stream": (0, on_side),
        "on another device": (1, lambda: _spin(torch, TRUE, 1)),
        "from another thread": (0, from_thread),
    }
    for name, (ordinal, code) in cases.items():
        yield from _known(f"50 ms {name}", code, ordinal)
    yield _small(torch)
    yield _short()


def _spin(torch: Any, seconds: float, device: int = 0) -> None:
    """Work that takes so long on the device, and no time on the host."""
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

    with torch.cuda.device(device):
        torch.cuda._sleep(int(seconds * SLEEP_CYCLES_PER_SECOND))


def _known(name: str, code: Callable[[], None], ordinal: int) -> Iterator[Row]:
    """A single run, by the best of a few: a busy machine takes a while to start; and repeats."""
    import gpumagic

    single = []
    for _ in range(3):
        with gpumagic.cudatime() as timed:
            code()
        single.append(timed.per_device[ordinal].median)
    repeated = gpumagic.cudatime(code, max_time=0.5).per_device[ordinal]
    for way, ours in (("", min(single)), (" --repeat", repeated.median)):
        yield Row(f"%%cudatime{way}, {name}", ours, TRUE, "the true duration", 1.02, 0.98)


def _small(torch: Any) -> Row:
    """A kernel of 20 µs in a loop: ours and hand-written events in turns, on the same machine."""
    import gpumagic

    def kernel() -> None:
        _spin(torch, 20e-6)

    ours, by_hand = [], []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(REPEATS):
        ours.append(gpumagic.cudatime(kernel, n=LOOPS, r=1).gpu.median)
        start.record()
        for _ in range(LOOPS):
            kernel()
        end.record()
        end.synchronize()
        by_hand.append(start.elapsed_time(end) / 1e3 / LOOPS)
    note = "hand-written events around the same loop, in turns"
    name = f"%%cudatime -n {LOOPS}, a kernel of 20 µs"
    return Row(name, statistics.median(ours), statistics.median(by_hand), note, 1.02)


_PASS = """
import torch
torch.ones(1, device="cuda:0")
ip.run_line_magic("load_ext", "gpumagic")
walls = []
for _ in range(50):
    ip.run_line_magic("cudatime", "-q -v timing pass")
    walls.append(ip.user_ns["timing"].wall.median)
print(json.dumps(statistics.median(walls)))
"""


def _short() -> Row:
    """A run of nothing: ``%%time`` says some microseconds."""
    found = script(_PASS, environment(Scenario(devices=1)))
    note = "20 µs; %%time says 2 to 5 µs"
    return Row("%cudatime pass, wall time with one device in use", found, 20e-6, note, 1.0)
