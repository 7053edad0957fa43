"""Marks at the boundaries between lines: recorded, and read in turn once they are reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from gpumagic.cells import interrupts
from gpumagic.system import text
from gpumagic.timing.line_totals import Boundary
from gpumagic.timing.passed_time import PassedTime, count_as_unknown
from gpumagic.timing.stream_marks import Mark, StreamMarks

_T = TypeVar("_T")

#: So many marks wait to be read, before some are read at each boundary.
_WAITING = 256
#: Seconds in which nothing can be launched: torch takes 3 µs at least, the driver more than 1 µs.
NO_LAUNCH = 1e-6

#: A mark, whether the GPU may have been idle since the last one, and when it was recorded.
NewMark: TypeAlias = tuple[Mark, bool, float]


#: A mark that is not read yet, or None: the last one again, where nothing can have been launched
#: since; the boundaries since the last mark, the last of which is at the mark; whether the GPU may
#: have been idle since the last one; and whether that was at the last boundary before these. No
#: class: a tuple is made in half the time.
_Waiting: TypeAlias = tuple[Mark | None, list[Boundary], bool, bool]


class LineMarks:
    """The marks at boundaries. Raises nothing because of a device: `note` says what has failed."""

    def __init__(self, log: Sequence[tuple[str, float]]) -> None:
        self._streams = StreamMarks()
        self.passed = PassedTime()
        #: The calls that waited, and the seconds.
        self._log = log
        self._waiting: deque[_Waiting] = deque()
        #: The boundaries since the last mark.
        self.unmarked: list[Boundary] = []
        self._has_gap = True
        #: The last boundary with a mark of its own, and the seconds of the last mark that was read.
        self._marked: Boundary | None = None
        self._seconds: tuple[float, ...] = ()
        #: Where a place was left: how many marks are before it, and what holds at its beginning.
        self._place: tuple[int, list[Boundary], bool, Boundary | None] | None = None
        #: Why GPU times are missing.
        self.note: str | None = None

    def new(self) -> NewMark | None:
        """Record a mark behind all work that is queued now; None where that cannot be done now."""
        try:
            return self._streams.record() if self.note is None else None
        except RuntimeError as error:
            self._give_up(error)
            return None

    @property
    def are_none(self) -> bool:
        """Whether there are no marks, because no device is in use, or one has failed."""
        return self.note is not None or not self._streams.ordinals

    def record(self, boundary: Boundary) -> None:
        """Record a mark at the last boundary."""
        new = self.new()
        self.put(boundary, new, perf_counter())
        if len(self._waiting) > _WAITING:
            self._read(2)

    def record_or_repeat(self, boundary: Boundary) -> None:
        """Record a mark, or take the last one again if nothing can have been launched since.

        That is so at the head of a loop, mostly; a mark takes longer than all else of a boundary.
        Never twice in a row: another thread may launch meanwhile.
        """
        marked = self._marked
        if (
            marked is not None
            and boundary.entered - marked.left - boundary.tracing <= NO_LAUNCH
            and len(self.unmarked) == 1
        ):
            self.repeat(boundary)
        else:
            self.record(boundary)

    def put(self, boundary: Boundary, new: NewMark | None, ended: float) -> None:
        """Add a mark at the last boundary; ``ended`` is when recording it had ended."""
        if new is None:
            if self.are_none:
                self.forget()
            return
        mark, idle, begun = new
        boundary.recorded = begun, ended
        self._waiting.append((mark, self.unmarked, idle, not self._has_gap))
        self.unmarked, self._has_gap, self._marked = [], False, boundary

    def repeat(self, boundary: Boundary) -> None:
        """Take the last mark as that of the last boundary."""
        assert self._marked is not None
        boundary.recorded = self._marked.recorded
        self._waiting.append((None, self.unmarked, False, True))
        self.unmarked, self._marked = [], None

    def forget(self) -> None:
        """Count the runs since the last mark as unknown."""
        count_as_unknown(self.unmarked)
        self.unmarked, self._has_gap, self._marked = [], True, None

    def leave_place(self, *, has_mark: bool) -> None:
        """Leave a place for marks that are put later; ``has_mark``: the last of them is one."""
        self._place = len(self._waiting), self.unmarked, self._has_gap, self._marked
        self.unmarked, self._has_gap, self._marked = [], not has_mark, None

    @contextmanager
    def at_place(self) -> Iterator[None]:
        """Open a scope in which marks are put in the place that was left."""
        assert self._place is not None
        place = self._place
        later = [self._waiting.pop() for _ in range(len(self._waiting) - place[0])]
        after = self.unmarked, self._has_gap, self._marked
        _, self.unmarked, self._has_gap, self._marked = place
        try:
            yield
        finally:
            if self.unmarked:  # a device has come into use since
                self.forget()
            self._place = None
            self.unmarked, self._has_gap, self._marked = after
            self._waiting.extend(reversed(later))

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The devices in use, in the order in which they came into use."""
        return self._streams.ordinals

    def start(self) -> None:
        """Prepare the devices that have a context."""
        self._guarded(self._streams.start)

    def begin(self) -> None:
        """Count the time from now on, on devices that are idle."""
        self._guarded(self._streams.begin)

    def stop(self) -> None:
        """Stop following the streams made current."""
        self._streams.stop()

    def read_most(self) -> None:
        """Read those that are reached of more marks than may wait."""
        self._read(max(len(self._waiting) - _WAITING, 0))

    def finish(self) -> None:
        """Read the marks, once the GPU has finished."""
        self._read(len(self._waiting))
        for _, boundaries, *_ in self._waiting:
            self.unmarked = boundaries + self.unmarked
        self.forget()
        self._waiting.clear()

    def release(self) -> None:
        """Free the events."""
        self._waiting.clear()
        self._streams.release()

    def _guarded(self, step: Callable[..., _T], *arguments: Any) -> _T | None:
        """Do a step, or give up the marks where a device fails."""
        try:
            return step(*arguments)
        except RuntimeError as error:
            self._give_up(error)
            return None

    def _give_up(self, error: RuntimeError) -> None:
        if interrupts.is_from_handler(error):
            raise error
        self.note = f"no GPU time of lines: the GPU cannot be asked ({text.reason(error)})"

    def _read(self, most: int) -> None:
        """Read marks that are reached, in their order."""
        if self._place is not None:
            return
        for _ in range(most):
            mark, boundaries, idle, is_next = self._waiting[0]
            if mark is not None:
                if self.note is not None or not self._guarded(self._streams.is_reached, mark):
                    return
                seconds = self._guarded(self._streams.read, mark)
                if seconds is None:
                    return
                self._seconds = seconds
            self._waiting.popleft()
            self.passed.add(self._seconds, boundaries, self._log, idle=idle, is_next=is_next)
