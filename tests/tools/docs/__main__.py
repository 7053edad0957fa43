"""Write the reference of the magics, or check that it is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from pathlib import Path

from tests.tools.docs.reference import PAGE, ROOT, page


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.docs", description=__doc__)
    options.add_argument(
        "--check", action="store_true", help="change nothing; fail on a difference"
    )
    options.add_argument("--pictures", action="store_true", help="take README's pictures too")
    options.add_argument("--outputs", action="store_true", help="write what pages' cells show")
    given = options.parse_args()
    if given.pictures:
        from tests.tools.docs.pictures import take

        for picture in take():
            print(picture.relative_to(ROOT))
    if given.outputs:
        write_outputs()
    name = str(PAGE.relative_to(ROOT))
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    new = page()
    if old == new:
        print(f"{name} is up to date")
        return 0
    if given.check:
        print(f"{name} differs from the magics' help; run: make docs", file=sys.stderr)
        sys.stderr.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "the code", n=1)
        )
        return 1
    PAGE.write_text(new, encoding="utf-8")
    print(f"{name} was written")
    return 0


def write_outputs() -> None:
    """Execute the pages' cells on virtual GPUs, and write what they show below them."""
    from tests.tools.demo.committed import clean
    from tests.tools.demo.runner import execute, virtual_machine
    from tests.tools.docs.pages import as_notebook, has_cells, pages, with_outputs

    machine = virtual_machine()
    for path in filter(has_cells, pages()):
        with tempfile.TemporaryDirectory() as folder:
            executed = clean(execute(as_notebook(path), machine, folder=Path(folder)))
            text = with_outputs(path, executed).replace(f"{Path(folder).resolve()}/", "")
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT), "was written", flush=True)


if __name__ == "__main__":
    sys.exit(main())
