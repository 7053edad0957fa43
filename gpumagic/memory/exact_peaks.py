"""Exact peaks of GPU memory for any part of a program; the user's own peaks stay.

torch's allocator keeps one peak a counter for the whole process, and a reset of it (peak = current)
cannot be undone. To know the peak of a part of a program it must be reset where the part begins.
So there is a ledger: before a reset of ours the old peaks are added to every open scope and to the
*user's peaks*; while those are higher than torch's counters, the functions of ``torch._C`` through
which Python reads and resets the counters are wrapped. So ``torch.cuda.max_memory_allocated()``,
``memory_stats()``, ``memory_summary()``, the same functions of ``torch.accelerator`` and the user's
own resets do what they would have done without gpumagic. The wrappers are removed as soon as
torch's counters have reached these peaks again and no scope is open.

What remains: a name bound before to one of those functions of ``torch._C`` reads torch's raw
counters; memory that another thread allocates and frees in the some 20 µs between a reading and the
reset that follows it is in no peak; nor is what came before a reset by the user in the scope in
which torch was first imported. Failures before the user's reset of the accumulated statistics are
in no scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, cast

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta

#: The functions of ``torch._C`` through which the peaks are read and reset. Those of
#: ``torch.accelerator`` came with torch 2.9.
_READ = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESET = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")

#: A reading of a device's counters, as torch nests them: each with its ``current`` and ``peak``.
_Stats: TypeAlias = "dict[Any, Any]"


class Counters(NamedTuple):
    """The counters of a device that a scope compares. Bytes, and numbers of events."""

    allocated: int = 0
    reserved: int = 0
    ooms: int = 0
    retries: int = 0


def _grown(start: int, end: int) -> int:
    """Return how much a number of events has grown; the user may have set it to 0 in between."""
    return end - start if end >= start else end


class Scope:
    """A part of the program, from `Ledger.open` to `Ledger.close`."""

    def __init__(self) -> None:
        #: By ordinal. A device that is missing had no context, and so held nothing.
        self.start: dict[int, Counters] = {}
        #: By ordinal, the highest allocated bytes before the last reset inside the scope.
        self.folded: dict[int, int] = {}
        #: Why it has no figures: the counters could not be read when it was opened.
        self.error: Exception | None = None


def _counters(stats: _Stats) -> Counters:
    allocated = stats["allocated_bytes"]["all"]
    # By position: by name it takes twice as long.
    return Counters(
        allocated["current"],
        stats["reserved_bytes"]["all"]["current"],
        stats["num_ooms"],
        stats["num_alloc_retries"],
    )


def _peak(stats: _Stats) -> int:
    return int(stats["allocated_bytes"]["all"]["peak"])


def _pairs(now: _Stats, before: _Stats) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield each counter that has a peak, of two readings; one that is gone (a pool's) is not."""
    for key, value in before.items():
        if key in now and isinstance(value, dict):
            yield from [(now[key], value)] if "peak" in value else _pairs(now[key], value)


class Ledger:
    """The open scopes and the user's peaks of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._scopes: list[Scope] = []
        #: By ordinal: a reading with the user's peaks, which torch's counters no longer show.
        self._user: dict[int, _Stats] = {}
        #: By name: torch's own function, and ours in its place.
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        #: Where they are wrapped; not read from torch again, which the user may have unloaded.
        self._home: Any = None

    # --- scopes ----------------------------------------------------------------------------------

    def open(self) -> Scope:
        """Begin a scope. Reads the counters of every device that has a context; makes none.

        Where they cannot be read, `close` and `restart` raise the error.
        """
        scope = Scope()
        with self._lock:
            try:
                self.restart(scope)
                self._scopes.append(scope)
            except Exception as error:  # a pluggable allocator has no counters
                scope.error = error.with_traceback(None)
            finally:
                self._tidy()
        return scope

    def close(self, scope: Scope) -> dict[int, DeviceMemoryDelta]:
        """End a scope and return the change on each device in use; scopes end in any order.

        A device whose context was made inside the scope counts from 0.
        """
        with self._lock:
            try:
                return {i: self._change(scope, i, self._read(i)) for i in torch_cuda.contexts()}
            finally:
                self.drop(scope)

    def restart(self, scope: Scope) -> dict[int, DeviceMemoryDelta]:
        """End a scope and begin it again at the same time, by one reading a device."""
        with self._lock:
            self._wrap()  # torch may have been imported since
            found: dict[int, DeviceMemoryDelta] = {}
            for ordinal in torch_cuda.contexts():
                stats = self._read(ordinal)
                found[ordinal] = self._change(scope, ordinal, stats)
                if _peak(stats) > found[ordinal].allocated_now:  # a reset would lose it
                    self._fold(ordinal, stats)
                    self._call("_cuda_resetPeakMemoryStats", ordinal)
                scope.start[ordinal] = _counters(stats)
                scope.folded.pop(ordinal, None)
            return found

    def drop(self, scope: Scope) -> None:
        """End a scope without a result. Reads nothing, and cannot fail."""
        with self._lock:
            self._scopes = [each for each in self._scopes if each is not scope]
            self._tidy()

    def _change(self, scope: Scope, ordinal: int, stats: _Stats) -> DeviceMemoryDelta:
        if scope.error is not None:
            raise scope.error
        self._catch_up(ordinal, stats)
        start, end = scope.start.get(ordinal, Counters()), _counters(stats)
        peak = max(_peak(stats), scope.folded.get(ordinal, 0))
        return DeviceMemoryDelta(
            allocated=end.allocated - start.allocated,
            reserved=end.reserved - start.reserved,
            peak=peak - start.allocated,
            allocated_now=end.allocated,
            reserved_now=end.reserved,
            ooms=_grown(start.ooms, end.ooms),
            retries=_grown(start.retries, end.retries),
        )

    def leave(self) -> None:
        """Restore torch's functions: now, or when no peak of the user's needs ours any more."""
        with self._lock:
            try:
                for ordinal in list(self._user):
                    self._catch_up(ordinal, self._read(ordinal))
            finally:
                self._tidy()

    # --- the ledger ------------------------------------------------------------------------------

    def _fold(self, ordinal: int, stats: _Stats) -> None:
        """Store the peaks that the reset that follows would lose."""
        self._fold_into_scopes(ordinal, stats)
        for now, before in _pairs(stats, self._user.get(ordinal, {})):
            now["peak"] = max(now["peak"], before["peak"])
        self._user[ordinal] = stats

    def _fold_into_scopes(self, ordinal: int, stats: _Stats) -> None:
        for scope in self._scopes:
            scope.folded[ordinal] = max(_peak(stats), scope.folded.get(ordinal, 0))

    def _catch_up(self, ordinal: int, stats: _Stats) -> None:
        """Drop the user's peaks if torch's counters have reached them all again."""
        pairs = _pairs(stats, self._user.get(ordinal, {}))
        # Stops at the first that is higher: an idle scope takes little more than its reading.
        if all(now["peak"] >= before["peak"] for now, before in pairs):
            self._user.pop(ordinal, None)

    # --- torch's functions -----------------------------------------------------------------------

    def _call(self, name: str, ordinal: int) -> Any:
        """Call torch's own function, also while it is wrapped."""
        wrapped = self._wrapped.get(name)
        function = wrapped[0] if wrapped else getattr(torch_cuda.c_functions(), name)
        return function(ordinal)

    def _read(self, ordinal: int) -> _Stats:
        return cast(_Stats, self._call("_cuda_memoryStats", ordinal))

    def _wrap(self) -> None:
        home = torch_cuda.c_functions()
        if home is None or self._wrapped:
            return
        self._home = home
        for name in (*_READ, *_RESET):
            original = getattr(home, name, None)
            if original is not None:
                method = self._user_reads if name in _READ else self._user_resets
                ours = functools.wraps(original)(functools.partial(method, original))
                self._wrapped[name] = original, ours
                setattr(home, name, ours)

    def _tidy(self) -> None:
        """Restore torch's functions if they would return the same peaks."""
        if self._scopes or self._user or not self._wrapped:
            return
        home = self._home
        if any(getattr(home, name) is not ours for name, (_, ours) in self._wrapped.items()):
            return  # wrapped by another library: its wrapper stays, and ours passes all calls on
        for name, (original, _) in self._wrapped.items():
            setattr(home, name, original)
        self._wrapped, self._home = {}, None

    def _user_reads(
        self, original: Callable[..., Any], ordinal: int, *more: object, **named: object
    ) -> Any:
        with self._lock:
            stats = original(ordinal, *more, **named)
            self._catch_up(ordinal, stats)
            for now, before in _pairs(stats, self._user.get(ordinal, {})):
                now["peak"] = max(now["peak"], before["peak"])
            self._tidy()
            return stats

    def _user_resets(
        self, original: Callable[..., Any], ordinal: int, *more: object, **named: object
    ) -> Any:
        with self._lock:
            before = self._read(ordinal) if self._scopes else None
            result = original(ordinal, *more, **named)
            if before is not None:
                self._fold_into_scopes(ordinal, before)
            self._user.pop(ordinal, None)
            self._tidy()
            return result


#: The counters are the process's, and so is the ledger.
LEDGER = Ledger()
