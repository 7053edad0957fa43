"""The benchmarks' own machinery: no benchmark takes the others' figures with it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as program
from tests.benchmarks.row import Row
from tests.benchmarks.running import run


def good() -> list[Row]:
    return [Row.at_most("good", 1.0, 2.0, 1)]


def breaks_off() -> Iterator[Row]:
    yield Row.shown("half of it", 1.0, 1.0)
    raise RuntimeError("a benchmark's script failed:\nTraceback\nValueError: [no] kernel")


def test_one_that_fails_is_a_row_and_the_others_go_on() -> None:
    rows = list(run({"first": breaks_off, "second": good}))
    assert [row.name for row in rows] == ["half of it", "first", "good"]
    failed = rows[1]
    assert (failed.ours, failed.reference, failed.passed) == (None, None, False)
    assert failed.note == "not measured: RuntimeError: ValueError: [no] kernel"
    assert program.line(failed) == f"FAILED  first: {failed.note}"
    shown = program.table(rows)
    assert [str(cell) for cell in shown.columns[5].cells] == [
        "",
        "[red bold]FAILED[/]",
        "[green]ok[/]",
    ]


def test_a_peer_that_is_missing_is_a_row_and_fails_nothing() -> None:
    row = Row.missing("a peer", "ModuleNotFoundError: No module named 'peer'")
    assert program.line(row) == (
        "        a peer: not measured: ModuleNotFoundError: No module named 'peer'"
    )
    shown = program.table([row])
    assert [*shown.columns[1].cells, *shown.columns[5].cells] == ["–", ""]
    assert row.passed is None


def test_one_that_hangs_is_given_up_and_cleans_up() -> None:
    cleaned = []
    handler = signal.getsignal(signal.SIGALRM)
    timed = signal.getitimer(signal.ITIMER_REAL)[0] > 0  # by pytest-timeout

    def hangs() -> Iterator[Row]:
        try:
            signal.pause()
        finally:
            cleaned.append(True)
        yield from good()

    (row,) = run({"hangs": hangs}, patience=0.05)
    assert row.note == "not measured: TooLongError: it took too long and was given up"
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGALRM) == handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) is timed


def test_rows_are_written_as_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the second benchmark: the first one's figures are there, and the table."""
    file = tmp_path / "build" / "bench.json"

    def interrupted(name: str) -> Iterator[Row]:
        yield from good()
        assert [row["name"] for row in json.loads(file.read_text())["rows"]] == ["good"]
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["bench", "load"])
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(program, "RECORD", file)
    monkeypatch.setattr(program, "_rows", interrupted)
    assert program.main() == 130
    printed = capsys.readouterr().out
    assert printed.startswith("ok      good: 1.00 s to 2.00 s, ratio 0.5 (bar: ≤ 1)\n")
    assert "1 figures, 0 below their bar; written to build/bench.json" in printed
    monkeypatch.setattr(program, "_rows", lambda name: breaks_off())
    assert program.main() == 1
    assert [row["passed"] for row in json.loads(file.read_text())["rows"]] == [None, False]
