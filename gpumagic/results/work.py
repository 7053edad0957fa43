"""Lines on the work of timed code: operations, energy, compilations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumagic.render.blocks import Block, Line, cut, dim_lines
from gpumagic.results.base import Result
from gpumagic.results.compilation import Compilation, GraphBreak
from gpumagic.system.text import plural

#: Characters of a line that are shown; torch's reasons are long.
_LONGEST = 240
#: Rows of graph breaks at most.
_MOST_BREAKS = 10


@dataclass(frozen=True)
class Work(Result):
    """Lines on operations or energy, shown below the times when these have been measured."""

    lines: Sequence[str]
    notes: Sequence[str] = ()

    def _blocks(self) -> list[Block]:
        return [*map(Line.of, self.lines), *dim_lines(self.notes)]


def work_lines(
    flops: int | None,
    seconds: float | None,
    peak_share: float | None,
    energy: float | None,
    power: float | None,
    *,
    at_most: bool = False,
) -> list[str]:
    """Return a line for the operations and one for the energy of a loop, if they are known.

    ``seconds`` is the GPU time of a loop; with ``at_most`` an upper bound, so that rates are lower
    bounds.
    """
    lines = []
    if flops == 0:
        lines.append(
            "0 FLOP by torch's counter, which does not count element-wise operations, and sees "
            "only what torch launches"
        )
    elif flops is not None:
        line = f"{_scaled(flops, 'FLOP')} per loop"
        if seconds:
            bound = "≥ " if at_most else ""
            line += f" · {bound}{_scaled(flops / seconds, 'FLOP/s')}"
            if peak_share is not None:
                line += f" · {bound}{peak_share * 100:.3g} % of the card's dense peak"
        lines.append(line)
    if power is not None:
        each = "" if energy is None else f"{_scaled(energy, 'J')} per loop · "
        lines.append(f"{each}{power:.4g} W")
    return lines


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    if 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} m{unit}"
    return f"{value:.3g} {unit}"


def compilation_lines(
    compiled: Sequence[Compilation], graph_breaks: Sequence[GraphBreak] = ()
) -> list[Line]:
    """Return lines on the compilations by torch.compile: a summary, and one for each reason."""
    if not compiled and not graph_breaks:
        return []
    known = [each.seconds for each in compiled if each.seconds is not None]
    took = f" in {sum(known):.3g} s" if known else ""
    breaks = sum(each.count for each in graph_breaks)
    broke = f", with {plural(breaks, 'graph break')}" if breaks else ""
    done = [each for each in compiled if each.failure is None]
    passes = sum(each.backward for each in done)
    count = plural(len(done) - passes, "time")
    if passes:
        count += f" and {plural(passes, 'backward pass', 'backward passes')}"
    lines = [f"torch.compile compiled {count}{took}{broke}"]
    for each in compiled:
        what = _where(each)
        if each.failure:  # its reason was one to compile again, which then was not done
            at = _at(each, each.failed_file, each.failed_line)
            named = f" {what}{at}:" if each.function or each.file else ""
            lines.append(f"not compiled:{named} {each.failure}")
        elif each.reason:
            at = _at(each, each.reason_file, each.reason_line)
            lines.append(f"recompiled {what}{at}: {each.reason}")
    for broken in graph_breaks[:_MOST_BREAKS]:
        place = "" if broken.file is None else f" in {_where(broken)}"
        lines.append(f"{plural(broken.count, 'graph break')}{place}: {broken.reason}")
    if len(graph_breaks) > _MOST_BREAKS:
        lines.append(f"graph breaks at {len(graph_breaks) - _MOST_BREAKS} more lines")
    return [Line((cut(line, _LONGEST, "dim"),)) for line in lines]


def _where(each: Compilation | GraphBreak) -> str:
    """Return a function with its file and line; the line of a graph break."""
    return f"{each.function or '?'} ({each.file or '?'}:{each.line or '?'})"


def _at(each: Compilation, file: str | None, line: int | None) -> str:
    """Return the line that torch's reason names, if it is not the function's first one."""
    if line is None or (file, line) == (each.file, each.line):
        return ""
    return f", line {line}" if file == each.file else f", at {file or '?'}:{line}"
