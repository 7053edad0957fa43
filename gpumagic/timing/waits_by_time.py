"""Waits for the GPU that no known call explains, by the times of a line between two marks.

At the first mark the GPU is behind the host: it still has work of earlier lines. The line takes the
host just as long as the GPU takes for that work: then a call in it waited for the GPU. Work of the
host that ends with the GPU's by coincidence looks the same, but seldom in a third of a line's runs.
On a busy machine the host often goes on late. So where enough runs of a line ended with the GPU's
work, those that ended later have waited, too. The host may have worked before the wait, and after
it: the time of the line is an upper bound of the wait's.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpumagic.cells.line_tracer import Line
from gpumagic.timing.line_totals import Boundary, Total
from gpumagic.timing.waiting_calls import FUNCTIONS, METHODS, UNNAMED

#: Seconds of the shortest wait.
LEAST = 0.2e-3
#: How long after the GPU the line may end: as a part of its time, and in seconds.
_LATE, _LATE_SECONDS = 0.05, 50e-6
#: The part of a line's long runs that must end with the GPU's work; of few, the half of them: up to
#: this number.
_PART, _FEW = 1 / 3, 3


class WaitsByTime:
    """Finds such waits in runs of lines between two marks, and adds them up by line."""

    def __init__(self) -> None:
        #: By line, the runs in which there may be a wait, and those that ended with the GPU's work.
        self._long: Counter[Total] = Counter()
        self._in_time: Counter[Total] = Counter()
        #: By line, the possible waits in its runs, each with the innermost line and its seconds.
        self._of_lines: defaultdict[Total, list[tuple[Total, float]]] = defaultdict(list)

    def add(self, begin: Boundary, end: Boundary, gpu: float | None, named: float) -> None:
        """Add a run of a line from one mark to the next.

        ``gpu`` is the time between the marks, None where the GPU had not reached the first one when
        the run ended; ``named`` how long known calls waited, in seconds.
        """
        (line, _, owners), host = end.segments[0], end.entered - begin.left
        late = max(_LATE * host, _LATE_SECONDS)
        if not owners or host < LEAST:
            return
        if gpu is None:
            self._long[line] += named <= late
            return
        # The second mark is reached once it is recorded, or later: so long after the GPU had
        # finished what was queued before the line, the line ended, at most.
        after = gpu - (end.recorded[0] - end.entered)
        if host - after < LEAST:  # there was nothing to wait for
            return
        # A known call that waited until the GPU had finished has waited for all that was queued.
        if named > max(late, after):
            return
        self._long[line] += 1
        if after < -late:  # the line ended before the GPU
            return
        is_in_time = after <= late
        self._in_time[line] += is_in_time
        # Later, the host may have waited for what the line itself queued, too.
        longest = host - (max(after, named) if is_in_time else named)
        for owner in owners:
            self._of_lines[owner].append((line, longest))

    def of(self, line: Total, lines: Mapping[Total, Line]) -> tuple[tuple[Line, float], ...]:
        """Return the waits in a line's runs, each with the line that it was in, and its seconds.

        What was between the ``lines`` is none of theirs: other tasks run there.
        """
        found = self._of_lines.get(line, ())
        return tuple(
            (lines[inner], s) for inner, s in found if inner in lines and self._is_sure(inner)
        )

    def _is_sure(self, line: Total) -> bool:
        """Return whether enough runs waited; of a line that is sampled not all waits are known."""
        long = self._long[line]
        enough = max(_PART * long, min(_FEW, long / 2))
        return line.interval == 1 and 0 < enough <= self._in_time[line]


def written_call(lines: Sequence[str]) -> str | None:
    """Return how a wait of a statement is named that is known by its time alone.

    By the one function or method that waits in its text; where there is none, or several, without a
    name. None where the statement sleeps or awaits, which looks like a wait.
    """
    try:
        tree = ast.parse(_complete(textwrap.dedent("\n".join(lines))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return UNNAMED
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    if any(_last_name(call.func) == "sleep" for call in calls):
        return None
    if any(isinstance(each, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for each in ast.walk(tree)):
        return None
    known = {name for name in map(_known_name, calls) if name is not None}
    return known.pop() if len(known) == 1 else UNNAMED


def _complete(text: str) -> str:
    """Return the first lines of a statement as one that can be parsed."""
    text = text.removeprefix("el") if text.startswith("elif ") else text
    return f"{text}\n    pass" if text.rstrip().endswith(":") else text


def _known_name(call: ast.Call) -> str | None:
    function = call.func
    written = ast.unparse(function)
    given = {each.arg for each in call.keywords}
    if written in FUNCTIONS:
        waits = {
            "torch.where": len(call.args) == 1 and not given,
            "torch.tensor": "device" in given,
            "torch.as_tensor": "device" in given,
            "torch.repeat_interleave": "output_size" not in given,
        }
        return f"{written}()" if waits.get(written, True) else None
    if isinstance(function, ast.Attribute) and written.partition(".")[0] != "torch":
        return METHODS.get(function.attr)
    return None


def _last_name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None
