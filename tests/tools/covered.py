"""Run the tests, and print the lines and branches of the package that none of them reaches.

``make coverage``; ``ARGS=tests/memory`` measures a part. Child processes are measured too: kernels,
engines, restarts in place, forked copies. Fails below `LEAST` per cent of the lines, and where no
test ran. Whether the tests pass is what ``make test`` tells.

From Python 3.12 on coverage.py uses ``sys.monitoring``, by which it counts branches from 3.14 on.
Before, it is a tracer, and what traces a cell's lines itself cannot work beside it: those tests
fail, and no share is asked for; nor is it for a part.
"""

from __future__ import annotations

import json
import os
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
#: Whether coverage.py measures without a tracer, and whether it counts branches.
MONITORS = sys.version_info >= (3, 12)
BRANCHES = not MONITORS or sys.version_info >= (3, 14)
#: Beside a tracer its cell has no end.
_ENDLESS = "tests/magics/cudatime/test_lines.py::test_what_a_signals_handler_raises_is_the_cells"


def main(arguments: Sequence[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    run = [*_COVERAGE, "run", *(["--branch"] if BRANCHES else []), "-m", "tests", *arguments]
    run += [] if MONITORS else ["--deselect", _ENDLESS]
    core = {"COVERAGE_CORE": "sysmon"} if MONITORS else {}
    tests = subprocess.call(run, cwd=ROOT, env={**os.environ, **core})
    files = len(list(FOLDER.glob("data.*")))
    if subprocess.call([*_COVERAGE, "combine", "--quiet"], cwd=ROOT):
        return 1
    subprocess.call([*_COVERAGE, "report"], cwd=ROOT)
    report = FOLDER / "coverage.json"
    subprocess.check_call([*_COVERAGE, "json", "--quiet", "-o", str(report)], cwd=ROOT)
    reached = percent(json.loads(report.read_text()))
    partial = any(Path(word.partition("::")[0]).exists() for word in arguments)
    bar = f"the lines' bar is {LEAST:g} %"
    if partial or not MONITORS:
        bar = "a part of the tests" if partial else "the lines' bar is for Python 3.12 and newer"
    branches = f"{reached['branches']:.1f} % of the branches" if BRANCHES else "no branch"
    print(
        f"{reached['lines']:.1f} % of the lines are reached, {branches} counted, in {files} "
        f"processes; {bar}"
    )
    if tests:
        print("some tests failed while they were measured; 'make test' tells whether they do else")
    return 0 if partial or not MONITORS or reached["lines"] >= LEAST else 1


def percent(report: dict[str, dict[str, int]]) -> dict[str, float]:
    """Per cent of lines and of branches that were reached, each by itself."""
    totals = report["totals"]
    counts = {
        "lines": (totals["covered_lines"], totals["num_statements"]),
        "branches": (totals.get("covered_branches", 0), totals.get("num_branches", 0)),
    }
    return {name: 100 * hit / (of or 1) for name, (hit, of) in counts.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
