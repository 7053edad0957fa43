"""Execute every notebook, and say where to look, or commit what they show (``--write``)."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

import nbformat
from nbclient.exceptions import CellExecutionError

from tests.tools.demo.committed import clean
from tests.tools.demo.runner import (
    RESULTS,
    ROOT,
    VIRTUAL_DEVICES,
    as_html,
    execute,
    notebooks,
    this_machine,
    virtual_machine,
)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.demo", description=__doc__)
    options.add_argument(
        "--write", action="store_true", help="into demo_notebooks/ too, from virtual GPUs"
    )
    write = options.parse_args().write
    machine = virtual_machine() if write else this_machine()
    print(f"Executing the demo notebooks on {machine.name}.")
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    for source in notebooks():
        started = time.perf_counter()
        try:
            notebook = execute(source, machine)
        except CellExecutionError as error:
            print(f"  {source.name} failed:\n{error}", file=sys.stderr)
            return 1
        target = RESULTS / source.name
        nbformat.write(notebook, target)
        if write:
            nbformat.write(clean(notebook), source)
        target.with_suffix(".html").write_text(as_html(notebook, source.stem), encoding="utf-8")
        print(f"  {target.relative_to(ROOT)} and .html  ({time.perf_counter() - started:.0f} s)")
    where = RESULTS.relative_to(ROOT)
    print(f"\nLook at {where}/*.html in a browser; or, in JupyterLab, at the notebooks themselves:")
    print("  .venv/bin/python -m pip install jupyterlab")
    lab = f".venv/bin/jupyter lab {where}"
    if machine.virtual:
        lab = f".venv/bin/python -m tests.virtual_gpu --devices {VIRTUAL_DEVICES} -- {lab}"
    print(f"  {lab}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
