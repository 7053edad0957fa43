"""GPU memory given back to the device, its content kept in host memory until it is needed again.

Parking copies every storage to the host, and only then takes their memory; bringing back allocates
and fills new memory for all of them, and only then gives it to them and forgets the host's copies.
So either of them, if it fails or is interrupted, leaves everything as it was before. The storages
themselves stay, with their sizes: views, gradients and graphs that wait for backward share them as
before.

A parked storage is guarded by torch itself (`gpumagic.cuda.storages`): any access to its data, in
any thread, is an error in Python, and no kernel is launched.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gpumagic.cuda import failure, storages, torch_cuda
from gpumagic.cuda.storages import has_memory, plain_functions
from gpumagic.errors import DeviceError
from gpumagic.memory import parking_checks
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.host_copies import HostCopies
from gpumagic.memory.parkable_storages import FoundStorages, ParkableStorage, find_storages
from gpumagic.memory.parking_errors import NoRoomError, is_out_of_memory, not_enough_memory
from gpumagic.memory.report import memory_report
from gpumagic.memory.staying_memory import received_memory, staying_memory, unused_parts
from gpumagic.render import units
from gpumagic.render.units import bytes_
from gpumagic.results.parking import DeviceParking, ParkedMemory, Unparked
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
    #: Where its bytes lie in the host's copies.
    place: int


class Parking:
    """What is parked in this process."""

    def __init__(self) -> None:
        self._parked: list[_Parked] = []
        self._copies: HostCopies | None = None
        #: By the address (``_cdata``) of a storage, where its bytes lie in the host's copies.
        self._places: dict[int, int] = {}
        self._since = 0.0
        self._pid = os.getpid()
        # autograd's threads may be the first to need what is parked.
        self._lock = threading.RLock()
        #: Called after everything has come back.
        self.when_back: Callable[[Unparked], None] | None = None
        #: Called after something was parked (True), and after all has come back (False).
        self.when_changed: Callable[[bool], None] | None = None

    @property
    def active(self) -> bool:
        """Whether anything is parked."""
        return bool(self._parked)

    @property
    def addresses(self) -> Set[int]:
        """The addresses (``_cdata``) of the parked storages."""
        return self._places.keys()

    @property
    def seconds(self) -> float:
        """Seconds since it was parked."""
        return time.monotonic() - self._since

    def size(self) -> dict[int, int]:
        """Return the parked bytes by CUDA ordinal, without storages that were deleted."""
        found: dict[int, int] = {}
        for each in self._parked:
            if not each.reference.expired():
                found[each.device] = found.get(each.device, 0) + each.nbytes
        return found

    @contextmanager
    def _no_references(self) -> Iterator[None]:
        """Clear the variables of the body's frames where it fails, and free unused copies.

        IPython keeps an exception with its traceback: storages and copies would live as long.
        """
        try:
            yield
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            if not self.active:
                with suppress(RuntimeError):  # CUDA has failed
                    for ordinal in torch_cuda.contexts():
                        torch_cuda.synchronize(ordinal)  # copies may still be under way
                    storages.release_pinned_memory()
            raise

    # --- to the host -----------------------------------------------------------------------------

    def park(self, shell: Any = None, *, progress: _Progress | None = None) -> ParkedMemory:
        """Park everything that can be parked.

        Raises:
            DeviceError: it would not be safe, or does not fit into host memory; nothing is changed.
        """
        with self._lock:
            if self.active:
                raise DeviceError("GPU memory is parked already; %gpumem unpark brings it back")
            ordinals = torch_cuda.contexts()
            if not ordinals:
                return ParkedMemory(notes=("This process has not used a GPU.",))
            parking_checks.check_process(shell)
            with self._no_references():
                result = self._park(ordinals, shell, progress or (lambda done: None))
        if result.storages and self.when_changed is not None:
            self.when_changed(True)
        return result

    def _park(self, ordinals: tuple[int, ...], shell: Any, progress: _Progress) -> ParkedMemory:
        began = time.perf_counter()
        for ordinal in ordinals:
            torch_cuda.synchronize(ordinal)
        before = {ordinal: torch_cuda.memory_held(ordinal) for ordinal in ordinals}
        storages.clear_workspaces()
        torch_cuda.empty_cache()
        found = find_storages(Blocks.read())
        chosen = sorted(found.parkable, key=lambda each: -each.nbytes)
        parking_checks.check_storages(found)
        total = sum(each.nbytes for each in chosen)
        pinned = parking_checks.check_host(total)
        sizes, stays = _sizes(found), staying_memory(found, shell)
        notes = received_memory(found, getattr(shell, "user_ns", {}))
        copying, searching = 0.0, time.perf_counter() - began
        if chosen:
            with plain_functions():
                copies = HostCopies(total, pinned=pinned)
                began = time.perf_counter()
                parked = _copied(chosen, copies, progress)
                copying = time.perf_counter() - began
                self._release([each.storage for each in chosen], copies, parked)
        number = len(chosen)
        found.parkable.clear()
        del chosen
        torch_cuda.empty_cache()
        outside = {i: memory.outside for i, memory in memory_report().devices.items()}
        devices, unused = {}, unused_parts()
        for ordinal, parked_bytes in sizes.items():
            allocated, reserved = before[ordinal]
            left = found.blocks.allocated[ordinal]
            now = torch_cuda.memory_held(ordinal)
            if allocated or reserved:
                devices[ordinal] = DeviceParking(
                    *(left, parked_bytes, stays[ordinal], allocated - left, reserved),
                    *(*now, unused.get(ordinal, 0), outside.get(ordinal)),
                )
        used = self._copies is not None and self._copies.pinned
        return ParkedMemory(devices, total, number, copying, searching, used, notes)

    def _release(self, owners: list[Any], copies: HostCopies, parked: list[_Parked]) -> None:
        """Release the memory. Of what has none, from here on, the host's copies are what counts."""
        others = storages.placeholders(owners)
        try:
            self._copies, self._since, self._pid = copies, time.monotonic(), os.getpid()
            self._places = {o._cdata: p.place for o, p in zip(owners, parked, strict=True)}
            self._parked = parked
            storages.exchange(owners, others)
            storages.guard(owners)
        except BaseException:  # an interrupt: each gets its memory again
            taken = [pair for pair in zip(owners, others, strict=True) if not has_memory(pair[0])]
            storages.exchange([owner for owner, _ in taken], [other for _, other in taken])
            storages.clear_guard(owners)
            self._forget()
            raise
        storages.release(others)

    def _forget(self) -> None:
        self._parked, self._places, self._copies = [], {}, None

    # --- and back --------------------------------------------------------------------------------

    def bring_back(self, *, progress: _Progress | None = None) -> Unparked:
        """Bring everything back to the same devices, bit for bit.

        Raises:
            NoRoomError: a device has too little memory now; everything stays parked.
            DeviceError: CUDA has failed, or this process is a fork; everything stays parked.
        """
        with self._lock:
            if not self.active:
                return Unparked()
            if os.getpid() != self._pid or torch_cuda.in_bad_fork():
                raise DeviceError(
                    "this is a fork of the process that has parked GPU memory; "
                    "only that one can bring it back"
                )
            with self._no_references(), plain_functions():
                result = self._bring_back(progress or (lambda done: None))
        if self.when_back is not None:
            self.when_back(result)
        if self.when_changed is not None:
            self.when_changed(False)
        return result

    def _bring_back(self, progress: _Progress) -> Unparked:
        parked_for = self.seconds
        wanted = []
        for each in self._parked:
            storage = storages.referenced(each.reference)
            # Those that have memory got it before this was interrupted.
            if storage is not None and not has_memory(storage):
                wanted.append((each, storage))
        new: list[Any] = []
        failure: DeviceError | None = None
        try:
            for ordinal in {each.device for each, _ in wanted}:
                torch_cuda.synchronize(ordinal)
            for each, storage in wanted:
                new.append(storages.allocate(storage.device, each.nbytes, each.stream))
            began = time.perf_counter()
            self._copy_in([each for each, _ in wanted], new, progress)
            copying = time.perf_counter() - began
        except BaseException as error:
            storages.release(new)
            torch_cuda.empty_cache()
            if is_out_of_memory(error):
                failure = not_enough_memory(self.size(), error)
            elif isinstance(error, RuntimeError):  # CUDA has failed
                failure = DeviceError(
                    f"parked memory cannot come back: {text.reason(error)}; everything stays in "
                    f"host memory, from where {_RESTART} takes it along"
                )
            else:
                raise
        if failure is not None:  # outside of `except`: it refers to no other exception
            raise failure
        owners = [storage for _, storage in wanted]
        storages.exchange(owners, new)
        storages.clear_guard(owners)
        pinned = self._copies is not None and self._copies.pinned
        self._forget()
        if pinned:
            storages.release_pinned_memory()
        sizes: dict[int, int] = {}
        for each, _ in wanted:
            sizes[each.device] = sizes.get(each.device, 0) + each.nbytes
        return Unparked(sizes, len(wanted), copying, parked_for)

    def _copy_in(self, wanted: list[_Parked], new: list[Any], progress: _Progress) -> None:
        assert self._copies is not None
        advance = _meter(sum(each.nbytes for each in wanted), progress)
        for each, storage in zip(wanted, new, strict=True):
            self._copies.read(each.place, storages.as_bytes(storage), advance)
        for ordinal in {each.device for each in wanted}:
            torch_cuda.synchronize(ordinal)

    def content(self, storage: Any) -> Iterator[Any]:
        """Yield the bytes of a parked storage, as parts of the host's copies."""
        assert self._copies is not None
        with plain_functions():
            for _, _, part in self._copies.parts(self._places[storage._cdata], storage.nbytes()):
                yield memoryview(part.numpy())

    def wait_and_bring_back(
        self,
        waiting: Callable[[NoRoomError], None],
        *,
        progress: _Progress | None = None,
        seconds: float = 1.0,
    ) -> Unparked:
        """Try until there is enough memory; call ``waiting`` at each failure, then sleep.

        Raises:
            DeviceError: it fails for another reason; everything stays parked.
        """
        while True:
            try:
                return self.bring_back(progress=progress)
            except NoRoomError as error:
                waiting(error)
            time.sleep(seconds)

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
        return (
            f"Parked in host memory for {units.seconds(round(self.seconds, 1))}: {shown}; "
            f"{self.way_back()}."
        )


def _meter(total: int, progress: _Progress) -> Callable[[int], None]:
    """Return a function that takes the bytes of each step, and reports the part that is done."""
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(done / total)

    return advance


def _copied(
    chosen: list[ParkableStorage], copies: HostCopies, progress: _Progress
) -> list[_Parked]:
    """Copy all content to the host; nothing on the device is changed."""
    advance = _meter(sum(each.nbytes for each in chosen), progress)
    parked = []
    for each in chosen:  # no comprehension: the function of one would refer to the copies
        place = copies.add(storages.as_bytes(each.storage), advance)
        reference = storages.weak_reference(each.storage)
        parked.append(_Parked(reference, each.device, each.stream, each.nbytes, place))
    for ordinal in {each.device for each in chosen}:
        torch_cuda.synchronize(ordinal)
    return parked


def _sizes(found: FoundStorages) -> dict[int, int]:
    """Return by CUDA ordinal the bytes that are parked, as the allocator counts them."""
    parked = dict.fromkeys(found.blocks.allocated, 0)
    for each in found.parkable:
        parked[each.device] += each.size
    return parked


#: The one of this process.
PARKING = Parking()
