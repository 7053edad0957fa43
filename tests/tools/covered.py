"""Run the tests, and print the lines and branches of the package that none of them reaches.

``make coverage``; ``ARGS=tests/memory`` measures a part. Child processes are measured too: kernels,
engines, restarts in place, forked copies. Fails below `LEAST` per cent of the lines (not for a
part), and where no test ran. Whether the tests pass is what ``make test`` tells: a few cannot while
a tracer is at work, as those that set a tracer of their own; their number is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.kernels import ROOT

#: Per cent of the package's lines that the tests have to reach.
LEAST = 92.0
FOLDER = ROOT / "build" / "coverage"
_COVERAGE = (sys.executable, "-m", "coverage")


def main(arguments: Sequence[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    # pytest's own timeout counts seconds in which the tracer works, too.
    tests = subprocess.call([*_COVERAGE, "run", "-m", "tests", *arguments], cwd=ROOT)
    files = len(list(FOLDER.glob("data.*")))
    if subprocess.call([*_COVERAGE, "combine", "--quiet"], cwd=ROOT):
        return 1
    subprocess.call([*_COVERAGE, "report"], cwd=ROOT)
    report = FOLDER / "coverage.json"
    subprocess.check_call([*_COVERAGE, "json", "--quiet", "-o", str(report)], cwd=ROOT)
    reached = percent(json.loads(report.read_text()))
    partial = any(Path(word.partition("::")[0]).exists() for word in arguments)
    bar = "a part of the tests" if partial else f"the lines' bar is {LEAST:g} %"
    print(
        f"{reached['lines']:.1f} % of the lines and {reached['branches']:.1f} % of the branches "
        f"are reached, measured in {files} processes; {bar}"
    )
    if tests:
        print("some tests failed under the tracer; 'make test' tells whether they do without it")
    return 0 if partial or reached["lines"] >= LEAST else 1


def percent(report: dict[str, dict[str, int]]) -> dict[str, float]:
    """Per cent of lines and of branches that were reached, each by itself."""
    totals = report["totals"]
    counts = {
        "lines": (totals["covered_lines"], totals["num_statements"]),
        "branches": (totals["covered_branches"], totals["num_branches"]),
    }
    return {name: 100 * hit / (of or 1) for name, (hit, of) in counts.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
