"""``%gpumem vars`` and ``free``: how long they take beside many objects."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.row import Row

#: Seconds in which 10,000 tensors are to be told; and one that no variable leads to, beside 300,000
#: other objects in the notebook.
VARS, BESIDE = 0.2, 0.5


def rows() -> Iterator[Row]:
    """The rows. Needs a GPU."""
    import torch

    torch.empty(1, device="cuda")
    yield from _vars(torch)
    yield from _beside(torch)


def _vars(torch: Any) -> Iterator[Row]:
    """10,000 tensors, by hundreds in lists, in dictionaries, in one list."""
    from gpumagic.memory.holders import holders

    made = [torch.empty(64, device="cuda") for _ in range(10_000)]
    names = {"nested": [{"group": made[i : i + 100]} for i in range(0, len(made), 100)]}
    del made
    times = []
    for _ in range(5):
        started = time.perf_counter()
        str(holders(names))
        times.append(time.perf_counter() - started)
    yield Row("%gpumem vars, 10,000 tensors", min(times), VARS, "the bar, with its text", 1.0)


class _Record:
    def __init__(self, number: int) -> None:
        self.number, self.text = number, str(number)


def _beside(torch: Any) -> Iterator[Row]:
    """A model that is garbage, and 300,000 objects beside it: ``vars``, and ``free``'s looks."""
    from gpumagic.memory.holders import Survey, holders

    names = {
        "rows": [{"number": i} for i in range(100_000)],
        "records": [_Record(i) for i in range(100_000)],
        "lists": [[i] for i in range(100_000)],
    }
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20))).cuda()
    model.me = [model]
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    gc.collect()
    gc.disable()
    del model
    told, looked = [], []
    for _ in range(5):
        started = time.perf_counter()
        assert holders(names).devices[0].garbage
        told.append(time.perf_counter() - started)
    gc.enable()
    for _ in range(5):
        started = time.perf_counter()
        Survey.make({}).holding()  # the notebook's own
        gc.collect()
        survey = Survey.make(names)
        survey.result(survey.unreferenced(collected=True))
        looked.append(time.perf_counter() - started)
    note = "the bar, beside 300,000 objects"
    yield Row("%gpumem vars, with a model that is garbage", min(told), BESIDE, note, 1.0)
    yield Row("%gpumem free, all its looks", min(looked), BESIDE, note, 1.0)
