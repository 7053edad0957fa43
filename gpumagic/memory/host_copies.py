"""Copies of device memory in host memory, in chunks of equal size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.render.units import bytes_

#: torch rounds pinned memory up to a power of two: chunks of that size waste none.
CHUNK = 1 << 26


class HostCopies:
    """The bytes of many storages, one after the other.

    In pinned memory while there is some, else in pageable memory. ``total`` is how many bytes
    there will be.
    """

    def __init__(self, total: int, *, pinned: bool, chunk: int = CHUNK) -> None:
        self.pinned = pinned
        self._total = total
        self._chunk = min(chunk, 1 << max(total - 1, 1).bit_length())
        self._chunks: list[Any] = []
        self._used = 0

    def add(self, source: Any, advance: Callable[[int], None]) -> int:
        """Copy all bytes of a tensor of bytes; return their place.

        ``advance`` is called with the bytes of each step. A copy into pinned memory may still be
        under way on return.
        """
        place, self._used = self._used, self._used + source.numel()
        for begin, end, part in self.parts(place, source.numel()):
            part.copy_(source[begin:end], non_blocking=self.pinned)
            advance(end - begin)
        return place

    def read(self, place: int, target: Any, advance: Callable[[int], None]) -> None:
        """Copy the bytes at a place into a tensor of bytes."""
        for begin, end, part in self.parts(place, target.numel()):
            target[begin:end].copy_(part, non_blocking=self.pinned)
            advance(end - begin)

    def parts(self, place: int, size: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the parts that lie in one chunk: from, to, and the chunk's bytes."""
        done = 0
        while done < size:
            number, start = divmod(place + done, self._chunk)
            while number >= len(self._chunks):
                self._chunks.append(self._new())
            length = min(self._chunk - start, size - done)
            yield done, done + length, self._chunks[number][start : start + length]
            done += length

    def _new(self) -> Any:
        torch: Any = torch_cuda.loaded()
        if self.pinned:
            try:
                return torch.empty(self._chunk, dtype=torch.uint8, device="cpu", pin_memory=True)
            except RuntimeError:  # the driver pins no more
                self.pinned = False
        try:
            return torch.empty(self._chunk, dtype=torch.uint8, device="cpu", pin_memory=False)
        except RuntimeError:
            raise DeviceError(
                f"nothing was parked: the host has no {bytes_(self._chunk)} more for the copies, "
                f"{bytes_(len(self._chunks) * self._chunk)} of {bytes_(self._total)} were "
                "allocated; %gpumem free NAMES frees what you do not need"
            ) from None
