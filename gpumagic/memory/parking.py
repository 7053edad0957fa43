"""GPU memory given back to the device, its content kept in host memory until a cell needs it.

All memory is taken first, by an exchange with guarded placeholders: from then on nothing changes
it, whatever threads there are. Then it is copied to the host, then released. A failure or an
interrupt exchanges it back. To bring it back, new memory is filled for all of it, and only then
exchanged: a failure leaves everything parked. The storages stay, with their sizes, so that views,
gradients and graphs that wait for backward share them as before.

Any access to a parked storage, by any thread, is an error of torch's own; see
`gpumagic.cuda.storages`.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import failure, storages, torch_cuda
from gpumagic.cuda.devices import devices
from gpumagic.cuda.storages import plain_functions
from gpumagic.errors import DeviceError
from gpumagic.memory.parkable import check_addresses, check_host, check_process, parkable, refuse
from gpumagic.memory.torch_memory import Block, Blocks
from gpumagic.render import units
from gpumagic.render.units import bytes_
from gpumagic.results.allocator import DeviceParking, ParkedMemory, Unparked
from gpumagic.system import text

_Progress = Callable[[float], None]
_RESTART = "%gpu reset --restart --keep all"


@dataclass
class _Parked:
    """A storage whose content is in host memory."""

    reference: Any
    device: int
    stream: int
    nbytes: int
    #: Where its bytes begin in the host's copy.
    begin: int


class Parking:
    """What is parked in this process."""

    def __init__(self) -> None:
        self._parked: list[_Parked] = []
        #: All bytes, in a tensor on the CPU.
        self._host: Any = None
        self._since = 0.0
        self._pid = os.getpid()
        self._lock = threading.RLock()

    @property
    def active(self) -> bool:
        """Whether anything is parked."""
        return bool(self._parked)

    def size(self) -> dict[int, int]:
        """Return the parked bytes by CUDA ordinal, without storages that were deleted."""
        found: dict[int, int] = {}
        for each in self._parked:
            if not each.reference.expired():
                found[each.device] = found.get(each.device, 0) + each.nbytes
        return found

    def host_copy(self, storage: Any) -> Any:
        """Return the bytes of a parked storage, a 1-D ``uint8`` tensor on the CPU.

        It shares the memory of the copy, which must not be changed. None for a storage that is not
        parked.
        """
        if storages.has_memory(storage):
            return None
        for each in self._parked:
            if each.reference.cdata == storage._cdata:
                return self._host[each.begin : each.begin + each.nbytes]
        return None

    # --- to the host -----------------------------------------------------------------------------

    def park(
        self, shell: Any = None, *, idle: bool = False, progress: _Progress = lambda done: None
    ) -> ParkedMemory:
        """Park everything that can be parked.

        Args:
            shell: IPython's, whose cells are the user's code.
            idle: Whether no cell runs.
            progress: Called with the part that is done, 0 to 1.

        Raises:
            DeviceError: it would not be safe, or does not fit into host memory; nothing is changed.
        """
        with self._lock:
            if self.active:
                raise DeviceError("GPU memory is parked already; %gpumem unpark brings it back")
            if not torch_cuda.contexts():
                return ParkedMemory(notes=("This process has not used a GPU.",))
            check_process(shell, idle=idle)
            with _no_references():
                return self._park(progress)

    def _park(self, progress: _Progress) -> ParkedMemory:
        before = {i: torch_cuda.memory_held(i)[1] for i in torch_cuda.contexts()}
        gc.collect()  # what is garbage need not be copied, nor make this be refused
        storages.clear_workspaces()
        torch_cuda.empty_cache()
        blocks = Blocks()
        check_addresses(blocks)
        chosen, staying = parkable(blocks)
        check_host(sum(block.size for _, block in chosen))
        parked = dict.fromkeys(blocks.allocated, 0)
        for _, block in chosen:
            parked[block.device] += block.size
        began = time.perf_counter()
        if chosen:
            with plain_functions():
                self._take(chosen, progress)
        took = time.perf_counter() - began
        chosen.clear()
        torch_cuda.empty_cache()
        own = {device.ordinal: device.as_seen().memory_own for device in devices(processes=False)}
        shown = {}
        for ordinal, reserved in before.items():
            after, held = torch_cuda.memory_held(ordinal)[1], own.get(ordinal)
            outside = None if held is None else max(held - after, 0)
            if reserved:
                each = (parked[ordinal], staying[ordinal], reserved, after, outside)
                shown[ordinal] = DeviceParking(*each)
        return ParkedMemory(shown, took)

    def _take(self, chosen: list[tuple[Any, Block]], progress: _Progress) -> None:
        owners = [storage for storage, _ in chosen]
        taken = storages.placeholders(owners)
        try:
            storages.exchange(owners, taken)
            storages.guard(owners)
            storages.clear_guard(taken)
            torch_cuda.synchronize_all()
            total = sum(storage.nbytes() for storage in owners)
            host, parked, begin = _host_memory(total), [], 0
            for (storage, block), memory in zip(chosen, taken, strict=True):
                size = storage.nbytes()
                host[begin : begin + size].copy_(storages.as_bytes(memory))
                reference = storages.weak_reference(storage)
                parked.append(_Parked(reference, block.device, block.stream, size, begin))
                begin += size
                progress(begin / total)
            self._host, self._since, self._pid = host, time.monotonic(), os.getpid()
            self._parked = parked
        except BaseException:  # out of host memory, an interrupt: each gets its memory again
            pairs = zip(owners, taken, strict=True)
            back = [pair for pair in pairs if not storages.has_memory(pair[0])]
            storages.exchange([owner for owner, _ in back], [memory for _, memory in back])
            storages.clear_guard(owners)
            self._parked, self._host = [], None
            raise
        storages.release(taken)

    # --- and back --------------------------------------------------------------------------------

    def bring_back(self, *, progress: _Progress = lambda done: None) -> Unparked:
        """Bring everything back to the same devices, bit for bit.

        Raises:
            DeviceError: a device has too little memory now, CUDA has failed, or this process is a
                fork; everything stays parked.
        """
        with self._lock:
            if not self.active:
                return Unparked()
            if os.getpid() != self._pid or torch_cuda.in_bad_fork():
                raise DeviceError(
                    "this is a fork of the process that has parked GPU memory; "
                    "only that one can bring it back"
                )
            with _no_references(), plain_functions():
                return self._bring_back(progress)

    def _bring_back(self, progress: _Progress) -> Unparked:
        parked_for, began = time.monotonic() - self._since, time.perf_counter()
        every = [(each, storages.referenced(each.reference)) for each in self._parked]
        # Those that have memory got it before this was interrupted.
        wanted = [(p, s) for p, s in every if s is not None and not storages.has_memory(s)]
        sizes: dict[int, int] = {}
        for each, _ in wanted:
            sizes[each.device] = sizes.get(each.device, 0) + each.nbytes
        new: list[Any] = []
        refusal: DeviceError | None = None
        try:
            # What is allocated now may be freed memory that is still used.
            torch_cuda.synchronize_all()
            done, total = 0, sum(sizes.values())
            for each, storage in wanted:
                memory = storages.allocate(storage.device, each.nbytes, each.stream)
                new.append(memory)
                part = self._host[each.begin : each.begin + each.nbytes]
                storages.as_bytes(memory).copy_(part)
                done += each.nbytes
                progress(done / total)
            torch_cuda.synchronize_all()
        except BaseException as error:
            with suppress(RuntimeError):  # CUDA has failed
                storages.release(new)
                torch_cuda.empty_cache()
            if not isinstance(error, RuntimeError):
                raise
            refusal = _refusal(error, sizes)
        if refusal is not None:  # outside of `except`: it refers to no other exception
            raise refusal
        storages.exchange([storage for _, storage in wanted], new)
        storages.clear_guard([storage for _, storage in every if storage is not None])
        self._parked, self._host = [], None
        return Unparked(sizes, len(wanted), time.perf_counter() - began, parked_for)

    def way_back(self) -> str:
        """Return what brings parked memory back; a dead CUDA context needs a restart."""
        if failure.check_context() is not None:
            return f"CUDA has failed in this process, and {_RESTART} takes it along"
        return "%gpumem unpark brings it back"

    def note(self) -> str | None:
        """Return a line that says what is parked; None for nothing."""
        sizes = self.size()
        if not sizes:
            return None
        shown = ", ".join(f"{bytes_(size)} of cuda:{i}" for i, size in sorted(sizes.items()))
        passed = units.seconds(round(time.monotonic() - self._since, 1))
        return f"Parked in host memory for {passed}: {shown}; {self.way_back()}."


@contextmanager
def _no_references() -> Iterator[None]:
    """Clear the variables of the body's frames where it fails.

    IPython keeps an exception with its traceback: storages and copies would live as long.
    """
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise


def _host_memory(size: int) -> Any:
    torch = cast(Any, torch_cuda.loaded())
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    except RuntimeError:
        raise refuse(f"the host has no {bytes_(size)} for the copy") from None


def _refusal(error: RuntimeError, needed: dict[int, int]) -> DeviceError:
    """Return why memory cannot come back: too little is free, torch is bounded, CUDA has failed."""
    torch = cast(Any, torch_cuda.loaded())
    if not isinstance(error, torch.cuda.OutOfMemoryError):
        shown = f"{text.reason(error)}; {_RESTART} takes it along"
        return DeviceError(f"parked memory cannot come back: {shown}")
    lines = []
    for ordinal, size in needed.items():
        free, _ = torch_cuda.memory_info(ordinal)
        line = f"cuda:{ordinal} needs {bytes_(size)} and has {bytes_(free)} free"
        lines.append(f"{line} (%gpumem limit off lifts a limit of yours)" if size <= free else line)
    return DeviceError(
        f"parked memory cannot come back: {' and '.join(lines)}; everything stays parked. "
        "%gpu -p says who holds memory; %gpumem unpark tries again; del NAME needs less of it; "
        f"%gpu auto {len(needed)} --restart --keep all takes it to other GPUs"
    )


#: The one of this process.
PARKING = Parking()
