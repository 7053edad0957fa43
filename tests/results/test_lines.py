"""The table of the lines' times, and which lines have a row."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results.base import as_html, as_text
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.line_timings import LineTiming, LineTimings, SourceTimings
from gpumagic.results.timing.sample import Sample
from tests.results.examples import LINE_TEXT, LINES, line, lines_of


def test_a_table() -> None:
    rows = as_text(lines_of(verdict="GPU-bound: so it is", notes=("a note",)), 100).splitlines()
    assert rows[0] == "GPU-bound: so it is"
    assert rows[1].split() == ["Line", "Hits", "GPU", "Host", "Waited", "Source"]
    assert "≤ 50.0 ms" in rows[4]
    assert rows[5].split()[:4] == ["4", "3", "████████", "500"]
    assert rows[5].endswith("    y = model(x)")
    assert sum("pass" in row for row in rows) == 3, "of twenty lines that took nothing"
    assert sum("(between the lines)" in row for row in rows) == 1
    assert rows[-2:] == ["line 5 waited for the GPU in 4 runs: 250 ms", "a note"]
    assert "Waited" not in as_html(lines_of(LINES[:2]))


def test_a_long_cell_shows_what_took_a_thousandth_of_its_time() -> None:
    """On the GPU or on the host: what is much of the host's time alone can be next to nothing."""
    text = ("x = 1",) * 1_000
    kinds = {50: (0.05, 1e-6), 200: (0.0, 9e-4), 400: (0.0, 1.1e-3), 500: (0.95, 1e-6)}
    every = tuple(
        LineTiming(i, text[0], 1, *kinds.get(i, (0.0, i * 1e-9))) for i in range(1, 1_001)
    )
    rows = as_text(LineTimings(SourceTimings("cell", 1, text, every))).splitlines()
    shown = [int(row.split()[0]) for row in rows if row.strip()[:1].isdigit()]
    assert {50, 400, 500} < {*shown}
    assert 200 not in shown
    assert len(rows) < 30
    # Where the host is what takes the time, its lines are.
    slow = LineTimings(SourceTimings("cell", 1, text, (line(2, 0.1, 0.1), line(3, 0.0, 9.0))))
    assert " 9.00 s" in as_text(slow)


def test_lines_that_are_left_out_have_their_sum_where_it_is_much() -> None:
    """A thousandth each, and a fifth of the time together: the rows add up to the cell."""
    text = ("x = 1",) * 404
    lines = [LineTiming(1, "", 1, 0.5, 0.5, at_most=True)]
    lines += [LineTiming(i, "", 1, 0.0, 3e-4) for i in range(2, 404)]
    lines[200] = replace(lines[200], gpu=3e-4)
    shown = as_text(LineTimings(SourceTimings("cell", 1, text, tuple(lines))))
    (together,) = [row for row in shown.splitlines() if "⋯" in row]
    assert together.split() == ["300", "µs", "█▉", "120", "ms", "⋯", "399", "lines"]


def test_in_a_narrow_terminal_the_source_gives_way_to_the_figures() -> None:
    """Where these do not fit, either, the lines below the table say what the columns would."""
    source = "    loss = criterion(model(x), labels)"
    waiting = replace(LINES[2], hits=1_000, at_most=True)
    timing = LineTimings(SourceTimings("cell", 5, (source,), (waiting,)))
    shown = as_text(timing, width=80)
    heading, _, row, *_ = shown.splitlines()
    assert heading.split() == ["Line", "Hits", "GPU", "Host", "Waited", "Source"]
    assert "250 ms      loss = criterio" in row
    assert "left out" not in shown
    shown = as_text(timing, width=56)
    assert "loss = criterio" in shown
    assert "columns left out (too narrow): " in shown
    assert "line 5 waited for the GPU" in shown


def test_where_gpu_times_are_bounds_or_missing_the_host_has_the_bar() -> None:
    bounds = (line(4, 0.01, 0.01), replace(line(5, 0.3, 0.3), at_most=True))
    assert "≤ 300 ms  ████████  300 ms" in as_text(lines_of(bounds), width=100)
    shown = as_text(lines_of((line(4, None, 0.01), line(5, None, 0.3))), width=100)
    assert "GPU" not in shown.splitlines()[0]
    assert "████████  300 ms" in shown


def test_functions_and_what_did_not_run() -> None:
    step = SourceTimings("step", 3, LINE_TEXT[1:4], (line(4, 0.5, 0.01),))
    missing = SourceTimings("other", 1, ("def other(): ...",))
    shown = as_text(lines_of(functions=(step, missing)), width=100)
    assert "\nstep\n" in shown
    assert "other: was not seen to run in this cell's thread" in shown
    empty = LineTimings(SourceTimings("cell", 2, (), (), empty=True))
    assert as_text(empty) == "cell: nothing to run"


def test_a_timing_shows_its_lines_first() -> None:
    lines = lines_of(verdict="so")
    timing = CudaTiming(Sample((0.6,)), Sample((0.6,)), Sample((0.1,)), lines=lines)
    shown = as_text(timing, width=100)
    assert shown.startswith("so\nLine")
    total, waits = map(shown.index, ("\n600 ms on the GPU · wall", "waited for the GPU"))
    assert shown.index("(between the lines)") < total < waits, "the total is below the table"
    assert timing.to_dict()["lines"]["cell"]["lines"][1]["gpu"] == 0.5


def test_the_hosts_time_of_a_line_that_ran_is_never_0() -> None:
    for host, shown in ((0.0, "< 1 µs"), (2e-6, "2.00 µs")):
        assert shown in as_text(lines_of((line(2, None, host),)))
