"""What torch.compile compiled, by torch's own records. Imports nothing, changes nothing there."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from gpumagic.cells.tracebacks import is_users
from gpumagic.results.compilation import Compilation, GraphBreak
from gpumagic.system.text import harmless

#: torch's records are private, bounded, and of another form in other versions: read field by field.
_RECORD, _BREAKS = "get_compilation_metrics", "graph_break_reasons"
#: The entries that torch's record has at most, unless the user has set another number.
_LIMIT = 64
#: What torch calls the function that goes on behind a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
#: torch's reason where only its log says what a jump means.
_JUMP = "generic_jump "
#: Before the calls that led to a guard, which torch appends to a reason of some versions.
_STACK = "\nUser stack trace:"
#: A line of that stack.
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
#: The line of code behind a guard, with the end of its file's name: torch cuts the beginning off.
_GUARDED = re.compile(r"\s+# (?:[^\n]*?  # )?([^\n#]+?):(\d+) in [\w<>.]+")
#: Characters of a reason, at most: torch quotes guards and stacks.
_LONG = 1000


def compiled_frames() -> int:
    """Return how many frames torch.compile has compiled in this process."""
    counters = _counters()
    return 0 if counters is None else int(counters["frames"]["total"])


def has_compiled(code: CodeType) -> bool:
    """Return whether torch.compile keeps compiled code for a function's code."""
    module = sys.modules.get("torch._C._dynamo.eval_frame")
    entries = getattr(module, "_debug_get_cache_entry_list", None)
    return callable(entries) and bool(entries(code))


class CompilationRecord:
    """What torch.compile has compiled since this object was made."""

    def __init__(self) -> None:
        self._before = {id(entry): entry for entry in _entries()}
        self._breaks_before = {id(entry): entry for entry in _break_entries() or ()}
        self._counts_before = _break_counts()

    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        """Return the graph breaks since this object was made, the first one first."""
        entries = _break_entries()
        found: Counter[GraphBreak] = Counter()
        if entries is None:  # another version of torch: no lines are known
            new = _break_counts() - self._counts_before
            for reason, count in new.items():
                found[GraphBreak(_shortened(reason))] += count
        else:
            old = self._breaks_before
            found = Counter(_read_break(entry) for entry in entries if id(entry) not in old)
        return tuple(replace(each, count=count) for each, count in found.items())

    def since(self) -> tuple[Compilation, ...]:
        """Return the compilations since this object was made, the first one first."""
        found = tuple(map(_read, self._new_entries()))
        # An attempt beyond torch's limit has no function: its guard names that by a number.
        known = {_frame(each): each for each in found if each.function and _frame(each)}
        return tuple(
            each
            if each.function or _frame(each) not in known
            else replace(
                each,
                function=known[_frame(each)].function,
                file=known[_frame(each)].file,
                line=known[_frame(each)].line,
            )
            for each in found
        )

    def notes(self) -> tuple[str, ...]:
        """Return a line where torch may have dropped some of them from its record."""
        count = len(self._new_entries())
        if count < _LIMIT or count < len(_entries()):
            return ()
        return (f"torch records the last {count} compilations: there may have been more",)

    def _new_entries(self) -> Sequence[Any]:
        return [
            entry
            for entry in _entries()
            # What a compiled function does at its first run is no compilation.
            if id(entry) not in self._before and getattr(entry, "is_runtime", None) is not True
        ]


def _entries() -> Sequence[Any]:
    record = getattr(sys.modules.get("torch._dynamo.utils"), _RECORD, None)
    return list(record()) if callable(record) else ()


def _counters() -> Any:
    """Return ``torch._dynamo.utils.counters``; None while torch's compiler is not imported."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def _break_entries() -> Sequence[Any] | None:
    """Return torch's list of graph breaks; None where there is none.

    torch appends to it also where nothing is logged. Its counter has no lines, and not the breaks
    at an ``if`` of a tensor.
    """
    found = getattr(sys.modules.get("torch._dynamo.utils"), _BREAKS, None)
    return list(found) if isinstance(found, list) else None


def _break_counts() -> Counter[str]:
    """Return torch's counter of graph breaks by reason."""
    counters = _counters()
    found = counters.get("graph_break") if isinstance(counters, dict) else None
    return Counter({str(k): v for k, v in found.items()}) if isinstance(found, dict) else Counter()


def _shortened(reason: str) -> str:
    """Return the title and the explanation of a reason, without hints and debug context."""
    title, _, rest = reason.strip().partition("\n")
    explanation = re.search(r"Explanation: (.*)", rest)
    if title.endswith(":"):  # of a backend that raised: the exception is in the next line
        title = f"{title} {rest.strip().partition(chr(10))[0]}"
    if title.startswith(_JUMP):
        title = f"data-dependent branching ({title})"
    return harmless(title if explanation is None else f"{title}: {explanation[1]}", _LONG)


def _read(entry: Any) -> Compilation:
    reason, failure = _text(entry, "recompile_reason"), _text(entry, "fail_reason")
    seconds, micros = _number(entry, "entire_frame_compile_time_s"), _number(entry, "duration_us")
    if seconds is None and micros is not None:  # so for backward passes
        seconds = micros / 1e6
    file = _text(entry, "co_filename")
    guarded_file, guarded_line = _guarded_line(reason or "", file)
    return Compilation(
        function=_function(_text(entry, "co_name")),
        file=_file(file),
        line=_number(entry, "co_firstlineno"),
        seconds=seconds,
        backward=getattr(entry, "is_forward", None) is False,
        reason=None if reason is None else _guard(reason),
        reason_file=_file(guarded_file),
        reason_line=guarded_line,
        failure=None if failure is None else _shortened(failure),
        failed_file=_file(_text(entry, "fail_user_frame_filename")),
        failed_line=_number(entry, "fail_user_frame_lineno"),
    )


def _frame(each: Compilation) -> str | None:
    """Return torch's number of a function that was compiled again; None where it is not known."""
    found = re.match(r"(\d+)/\d+: ", each.reason or "")
    return found[1] if found else None


def _guard(reason: str) -> str:
    """Return a reason to compile again in one line, without the code and the calls around it."""
    guard = _GUARDED.sub("", reason.partition(_STACK)[0])
    return harmless(" ".join(guard.split()), _LONG)


def _guarded_line(reason: str, file: str | None) -> tuple[str | None, int | None]:
    """Return the file and the line that a reason to compile again is about, if torch names them.

    ``file`` is that of the compiled function.
    """
    guard, _, stack = reason.partition(_STACK)
    for name, line in reversed(_FRAME.findall(stack)):
        if _is_users(name):
            return name, int(line)
    for name, line in _GUARDED.findall(guard):
        if file is not None and file.endswith(name):
            return file, int(line)
    return None, None


def _read_break(entry: Any) -> GraphBreak:
    """Return one graph break, at the innermost line of the user's, or outside torch, or at all."""
    stack = getattr(entry, "user_stack", None)
    frames = [
        frame
        for frame in reversed(stack if isinstance(stack, list) else [])
        if _text(frame, "filename") and _number(frame, "lineno")
    ]
    reason = _shortened(_text(entry, "reason") or "no reason is known")
    for is_wanted in (_is_users, _is_outside_torch, bool):
        for frame in frames:
            if is_wanted(frame.filename):
                function = _function(_text(frame, "name"))
                return GraphBreak(reason, 1, function, _file(frame.filename), int(frame.lineno))
    return GraphBreak(reason)


def _is_users(filename: str) -> bool:
    return filename.startswith("<ipython-input-") or is_users(filename)


def _is_outside_torch(filename: str) -> bool:
    folders = getattr(sys.modules.get("torch"), "__path__", ())
    return not filename.startswith(tuple(folders))


def _text(entry: Any, name: str) -> str | None:
    found = getattr(entry, name, None)
    return found if isinstance(found, str) and found else None


def _number(entry: Any, name: str) -> Any:
    found = getattr(entry, name, None)
    return found if type(found) in (int, float) else None


def _file(name: str | None) -> str | None:
    return None if name is None else harmless(name, _LONG)


def _function(name: str | None) -> str | None:
    """Return a function's name; of one that goes on behind a graph break the user's."""
    if name is None:
        return None
    resumed = _RESUMED.fullmatch(name)
    return harmless(name if resumed is None else resumed[1], _LONG)
