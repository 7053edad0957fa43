"""Measure everything, print one table, write build/bench.json; fail where a bar is missed.

Each row is printed and written as it is measured, and a benchmark that fails is a row that says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpumagic.render.units import bytes_, seconds
from tests.benchmarks.row import Row
from tests.benchmarks.running import run
from tests.support.kernels import ROOT
from tests.virtual_gpu import Scenario, ensure

#: The benchmarks themselves run on so many virtual GPUs; processes of theirs on what they need.
DEVICES = 4
RECORD = ROOT / "build" / "bench.json"


def modules() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    options.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these: " + ", ".join(m[6:] for m in modules()),
    )
    names = options.parse_args().names
    if unknown := {*names} - {m[6:] for m in modules()}:
        options.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    ensure(Scenario(devices=DEVICES))
    wanted = [name for name in modules() if not names or name[6:] in names]
    rows: list[Row] = []
    code = 0
    try:
        for row in run({name[6:]: partial(_rows, name) for name in wanted}):
            rows.append(row)
            print(line(row), flush=True)
            write(rows, RECORD)
    except KeyboardInterrupt:
        print("interrupted: the rest was not measured")
        code = 130
    # A log has no width: wide enough to read there.
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows))
    missed = [row.name for row in rows if row.passed is False]
    print(
        f"{len(rows)} figures, {len(missed)} below their bar; written to {RECORD.relative_to(ROOT)}"
    )
    return code or (1 if missed else 0)


def _rows(name: str) -> Iterable[Row]:
    found: Iterable[Row] = import_module(f"tests.benchmarks.{name}").rows()
    return found


def line(row: Row) -> str:
    """A row as it is measured: the table comes when all are."""
    if row.ours is None:
        return f"{'FAILED' if row.passed is False else '':6}  {row.name}: {row.note}"
    verdict = {True: "ok", False: "MISSED", None: ""}[row.passed]
    ratio = "" if row.ratio is None else f", ratio {row.ratio:.4g}"
    bar = f" (bar: {row.bar})" if row.bar else ""
    figures = f"{_figure(row.ours, row.unit)} to {_figure(row.reference, row.unit)}"
    return f"{verdict:6}  {row.name}: {figures}{ratio}{bar}"


def write(rows: list[Row], file: Path) -> None:
    """Write what has been measured so far; the file is complete at any time."""
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_text(
        json.dumps(record(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    fresh.replace(file)


def table(rows: list[Row]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "dim"])
    for header in ("what", "ours", "reference", "ratio", "bar", ""):
        shown.add_column(
            header, justify="right" if header in ("ours", "reference", "ratio") else "left"
        )
    shown.columns[0].no_wrap = True
    shown.add_column("reference, and how measured", overflow="fold")
    verdicts = {True: "[green]ok[/]", False: "[red bold]MISSED[/]", None: ""}
    for row in rows:
        failed = row.ours is None and row.passed is False
        verdict = "[red bold]FAILED[/]" if failed else verdicts[row.passed]
        ratio = "–" if row.ratio is None else f"{row.ratio:.4g}"
        shown.add_row(
            escape(row.name),
            _figure(row.ours, row.unit),
            _figure(row.reference, row.unit),
            ratio,
            row.bar,
            verdict,
            escape(row.note),
        )
    return shown


def record(rows: list[Row]) -> dict[str, object]:
    packages = ("gpumagic", "torch", "ipython", "ipykernel", "nvidia-ml-py", "rich")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, virtual GPU",
        "versions": {name: version(name) for name in packages},
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit in ("B", "bytes"):
        return bytes_(int(value))
    return f"{value:.4g} {unit}"


if __name__ == "__main__":
    sys.exit(main())
