"""Measure everything, and print a line for each figure; fail where a bar is missed.

A benchmark that fails is missed, too; the others go on.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from tests.virtual_gpu import Scenario, ensure


def main() -> int:
    known = sorted(path.stem[6:] for path in Path(__file__).parent.glob("bench_*.py"))
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="only: " + ", ".join(known))
    names = options.parse_args().names or known
    if unknown := {*names} - {*known}:
        options.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    ensure(Scenario(devices=4))
    print(f"Profile of the virtual GPU: {os.environ.get('VGPU_PROFILE') or 'free'}.", flush=True)
    missed = []
    for name in names:
        try:
            for row in import_module(f"tests.benchmarks.bench_{name}").rows():
                print(row, flush=True)
                if row.passed is False:
                    missed.append(row.name)
        except Exception:
            traceback.print_exc()
            missed.append(name)
    print(f"missed: {'; '.join(missed)}" if missed else "All is within its bar.")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
