"""Torch's streams of a device on which there can be work.

torch hands out the 32 streams of each priority's pool in turn. gpumagic takes a stream at each
look: if it is not the next one in turn, the user's code has taken some since the last look. Until
then there is no work in that pool, and one question answers for its 32 streams; from then on each
is asked. Streams that are not torch's cannot be listed. Exactly 32 (64…) streams that the user's
code takes from a fresh pool between two looks are not seen.

The first look at a device makes the streams of its pools, as the first ``torch.cuda.Stream()``
does: 3 ms and 70 MiB on an H200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpumagic.cuda.pytorch import torch_cuda

if TYPE_CHECKING:
    from torch.cuda import Stream

#: The number of streams that are taken at first: twice those of a pool, so that none is missed
#: where another thread takes one meanwhile.
_TWO_ROUNDS = 64
#: torch makes at most one pool for each of these.
_PRIORITIES = (0, -1, -2, -3)


class _Pool:
    """The streams of one priority."""

    def __init__(self, ordinal: int, take: Callable[[], Any]) -> None:
        self._ordinal, self._take = ordinal, take
        taken = [self._one() for _ in range(_TWO_ROUNDS)]
        found = {each.stream_id: each for each in taken}
        #: In torch's order, which begins with the lowest number.
        self.streams = [found[number] for number in sorted(found)]
        place = {each.stream_id: place for place, each in enumerate(self.streams)}
        self._used = any(place[each.stream_id] != i % len(place) for i, each in enumerate(taken))
        self._next = _TWO_ROUNDS

    def is_used(self) -> bool:
        """Return whether others have taken a stream."""
        if not self._used:
            expected = self.streams[self._next % len(self.streams)]
            self._used = self._one().stream_id != expected.stream_id
            self._next += 1
            if self._used:  # end the round: the user's next stream is the one it would have been
                for _ in self.streams[1:]:
                    self._one()
        return self._used

    def _one(self) -> Any:
        # `torch.cuda.device`, without its Python: that takes longer than all the rest.
        c_functions = torch_cuda.module()._C
        before = c_functions._cuda_exchangeDevice(self._ordinal)
        try:
            return self._take()
        finally:
            c_functions._cuda_maybeExchangeDevice(before)


class Streams:
    """The streams of a device that has a context."""

    def __init__(self, ordinal: int) -> None:
        torch = torch_cuda.module()
        base, default = torch._C._CudaStreamBase, torch.cuda.default_stream(ordinal)
        self._ordinal = ordinal
        self._raw: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        pools = [_Pool(ordinal, lambda p=p: base(priority=p)) for p in _PRIORITIES]  # type: ignore[misc]
        # A card with fewer priorities has fewer pools.
        self._fresh = [*{pool.streams[0].stream_id: pool for pool in reversed(pools)}.values()]
        self._used = {default.cuda_stream: default}

    def current(self) -> Any:
        """Return this thread's current stream; one that is not torch's may be destroyed later."""
        own = self._used.get(self._raw(self._ordinal))
        return torch_cuda.current_stream(self._ordinal) if own is None else own

    def used(self) -> list[Any]:
        """Return the streams on which there can be work, this thread's current one among them."""
        for pool in [*self._fresh]:
            if pool.is_used():
                self._used |= {each.cuda_stream: each for each in pool.streams}
                self._fresh.remove(pool)
        own = self.current()
        return list({**self._used, own.cuda_stream: own}.values())


_streams: dict[int, Streams] = {}


def of(ordinal: int) -> Streams:
    """Return the streams of a device that has a context."""
    if ordinal not in _streams:
        _streams[ordinal] = Streams(ordinal)
    return _streams[ordinal]


def is_busy(stream: Stream) -> bool:
    """Return whether a stream, which must not be capturing, has unfinished work."""
    return not torch_cuda.module()._C._CudaStreamBase.query(stream)
