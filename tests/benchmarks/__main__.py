"""Measure everything, print one table, write build/bench.json; fail where a bar is missed.

Each row is printed and written as it is measured, and a benchmark that fails is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.row import Row, reason
from tests.support.device import ROOT
from tests.virtual_gpu import Scenario, ensure

RECORD = ROOT / "build" / "bench.json"
_VERDICTS = {True: "ok", False: "MISSED", None: ""}


def main() -> int:
    known = sorted(path.stem[6:] for path in Path(__file__).parent.glob("bench_*.py"))
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="only: " + ", ".join(known))
    names = options.parse_args().names
    if unknown := {*names} - {*known}:
        options.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    ensure(Scenario(devices=4))
    rows: list[Row] = []
    RECORD.parent.mkdir(exist_ok=True)
    for name in names or known:
        for row in measured(name):
            rows.append(row)
            print(line(row), flush=True)
            RECORD.write_text(record(rows), encoding="utf-8")
    missed = [row for row in rows if row.passed is False]
    print(f"{len(rows)} figures, {len(missed)} not within their bar; see {RECORD}")
    return 1 if missed else 0


def measured(name: str) -> Iterator[Row]:
    """Yield the rows of a benchmark; one that fails ends with a row that says so."""
    try:
        rows: Iterable[Row] = import_module(f"tests.benchmarks.bench_{name}").rows()
        yield from rows
    except Exception as error:
        traceback.print_exc()
        yield Row(name, None, None, f"{type(error).__name__}: {reason(error)}", failed=True)


def line(row: Row) -> str:
    """Return a row as one line."""
    verdict = "FAILED" if row.failed else _VERDICTS[row.passed]
    if row.ours is None:
        return f"{verdict:6}  {row.name}: {row.note}"
    bar = f"; bar: {row.bar}" if row.bar else ""
    ratio = "–" if row.ratio is None else f"{row.ratio:.4g}"
    figures = f"{row.figure(row.ours)} to {row.figure(row.reference)}"
    return f"{verdict:6}  {row.name}: {figures}, ratio {ratio}{bar} ({row.note})"


def record(rows: list[Row]) -> str:
    """Return what has been measured so far, as JSON."""
    packages = ("gpumagic", "torch", "ipython", "ipykernel", "nvidia-ml-py", "rich")
    found = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, virtual GPU",
        "versions": {name: version(name) for name in packages},
        "rows": [row.to_dict() for row in rows],
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
