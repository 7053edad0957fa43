"""Show every output of gpumagic, on a machine without a GPU: ``python -m tests.results [NAME …]``.

For whoever changes a screen. ``--html FILE`` writes a page as a notebook shows them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpumagic.results.base import as_html, as_text
from tests.results.examples import EXAMPLES


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.results", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(sorted(EXAMPLES)))
    parser.add_argument("--width", type=int, default=shutil.get_terminal_size().columns)
    parser.add_argument("--html", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.names} - {*EXAMPLES}):
        parser.error(f"no result is called {unknown[0]}; there are {', '.join(sorted(EXAMPLES))}")
    chosen = {name: EXAMPLES[name] for name in given.names or EXAMPLES}
    if given.html:
        shown = (f"<h2>{name}</h2>\n{as_html(result)}\n" for name, result in chosen.items())
        given.html.write_text("<!doctype html><meta charset=utf-8>\n" + "".join(shown), "utf-8")
        return
    for name, result in chosen.items():
        title = f"── {name} "
        print(title.ljust(given.width, "─"))
        print(as_text(result, given.width, color=sys.stdout.isatty()), end="\n\n")


if __name__ == "__main__":
    main()
