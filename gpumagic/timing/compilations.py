"""What torch.compile compiled, by torch's own record of compilations. Imports nothing."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from types import CodeType
from typing import Any

from gpumagic.results.compilation import Compilation
from gpumagic.system.text import harmless

#: torch's record is private, bounded, and of another form in other versions: read field by field.
_RECORD = "get_compilation_metrics"
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
        self._breaks_before = _graph_breaks()

    def graph_breaks(self) -> dict[str, int]:
        """Return how often graphs were broken since this object was made, by torch's reason."""
        new = _graph_breaks() - self._breaks_before
        found: dict[str, int] = {}
        for reason, count in new.items():
            short = _shortened(reason)
            found[short] = found.get(short, 0) + count
        return found

    def since(self) -> tuple[Compilation, ...]:
        """Return the compilations since this object was made, the first one first."""
        return tuple(_read(entry) for entry in _entries() if id(entry) not in self._before)


def _entries() -> Sequence[Any]:
    record = getattr(sys.modules.get("torch._dynamo.utils"), _RECORD, None)
    return list(record()) if callable(record) else ()


def _counters() -> Any:
    """Return ``torch._dynamo.utils.counters``; None while torch's compiler is not imported."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def _graph_breaks() -> Counter[str]:
    """Return torch's counter of graph breaks by reason."""
    counters = _counters()
    found = counters.get("graph_break") if isinstance(counters, dict) else None
    return Counter({str(k): v for k, v in found.items()}) if isinstance(found, dict) else Counter()


def _shortened(reason: str) -> str:
    """Return the title and the explanation of a reason, without hints and debug context."""
    title, _, rest = reason.partition("\n")
    explanation = re.search(r"Explanation: (.*)", rest)
    return harmless(title if explanation is None else f"{title}: {explanation[1]}", _LONG)


def _read(entry: Any) -> Compilation:
    def text(name: str) -> str | None:
        found = getattr(entry, name, None)
        return harmless(found, _LONG) if isinstance(found, str) and found else None

    def number(name: str) -> Any:
        found = getattr(entry, name, None)
        return found if type(found) in (int, float) else None

    return Compilation(
        function=text("co_name"),
        file=text("co_filename"),
        line=number("co_firstlineno"),
        seconds=number("entire_frame_compile_time_s"),
        reason=text("recompile_reason"),
        failure=text("fail_reason"),
    )
