"""Which of the allocations of a cell are still alive at its end.

The allocator's counters number the allocations; its event log, which is recorded without stacks
while the cell runs, has the address of each and what was freed again. Where the log is recorded
already (by `%gpumem record on`, or by the user), it is used as it is.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.memory.snapshot import Event, read_snapshot

#: The events that are kept, of some 100 bytes each.
_EVENTS = 500_000

#: Allocations from the first number up to, not including, the second.
Range = tuple[int, int]


class Living:
    """The allocations of a cell that are alive, by their number in it, from 0."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._numbers = sorted(sizes)
        self._sums = [0, *accumulate(sizes[number] for number in self._numbers)]

    def bytes(self, ranges: Iterable[Range]) -> int:
        """Return the bytes of those within ``ranges``, which do not overlap."""
        return sum(self._sums[self._place(end)] - self._sums[self._place(o)] for o, end in ranges)

    def _place(self, number: int) -> int:
        return bisect_left(self._numbers, number)


#: The functions of ``torch._C`` by which a recording begins and ends.
_RECORD = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class EventLog:
    """The allocator's event log, recorded from `begin` to `end`.

    A recording that the user begins or ends meanwhile is left unchanged; then it is not known which
    allocations are alive.
    """

    def __init__(self) -> None:
        #: Whether the recording was begun here, not by the user.
        self._own = False
        #: Whether the user has begun or ended a recording since.
        self.disturbed = False
        self._home = torch_cuda.c_functions()
        #: By name: torch's own function, and ours in its place.
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    @classmethod
    def begin(cls) -> EventLog | None:
        """Begin to record; return None where there can be no log."""
        if not torch_cuda.initialized():
            return None
        log = cls()
        if not torch_cuda.history_is_recorded():
            try:
                torch_cuda.record_history(_EVENTS, stacks=False)
            except RuntimeError:  # another allocator than torch's own keeps none
                return None
            log._own = True
            _own_logs.append(log)
        for name in _RECORD:
            original = getattr(log._home, name, None)
            if original is not None:
                ours = log._watching(original)
                log._wrapped[name] = original, ours
                setattr(log._home, name, ours)
        return log

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self.disturbed:
                self.disturbed = True
                if self._own:
                    torch_cuda.stop_history()  # and empty it: the user's has no event of ours
            return original(*args, **kwargs)

        return watched

    def end(self, counts: Mapping[int, int]) -> dict[int, Living]:
        """Stop; return by ordinal which of the last ``counts`` allocations are alive.

        A device is missing whose log does not reach back so far, or was disturbed.
        """
        try:
            wanted = any(counts.values()) and not self.disturbed
            snapshot = read_snapshot() if wanted else None
        finally:
            self._leave()
        if self.disturbed:
            return {}
        if snapshot is None:
            return {ordinal: Living({}) for ordinal in counts}
        sizes: dict[int, dict[int, int]] = {}
        for block in snapshot.allocated_blocks():
            sizes.setdefault(block.device, {})[block.address] = block.size
        found: dict[int, Living] = {}
        for ordinal, count in counts.items():
            numbers = living_numbers(snapshot.events[ordinal], count)
            if numbers is not None:
                held = sizes.get(ordinal, {})
                found[ordinal] = Living({n: held.get(a, 0) for a, n in numbers.items()})
        return found

    def _leave(self) -> None:
        for name, (original, ours) in self._wrapped.items():
            if getattr(self._home, name) is ours:
                setattr(self._home, name, original)
        self._wrapped.clear()
        if self in _own_logs:
            _own_logs.remove(self)
            if not self.disturbed:
                torch_cuda.stop_history()


#: The recordings of running cells that were begun here.
_own_logs: list[EventLog] = []


def recorded_by_others() -> bool:
    """Return whether the user records the allocator's history, by `%gpumem record on` or torch."""
    if not torch_cuda.history_is_recorded():
        return False
    return not any(not log.disturbed for log in _own_logs)


def living_numbers(events: Sequence[Event], count: int) -> dict[int, int] | None:
    """Return by address the numbers of the last ``count`` allocations that are alive.

    None where the events do not reach back so far.
    """
    places = [i for i, event in enumerate(events) if event.allocated]
    if len(places) < count:
        return None
    alive: dict[int, int] = {}
    number = 0
    for event in events[places[-count] :] if count else ():
        if event.allocated:
            alive[event.address] = number
            number += 1
        else:
            alive.pop(event.address, None)
    return alive
