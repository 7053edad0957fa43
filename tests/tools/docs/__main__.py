"""Write the reference of the magics; with ``--outputs`` what the pages' cells show, too."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.tools.docs.reference import PAGE, ROOT, page


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.tools.docs", description=__doc__)
    options.add_argument("--outputs", action="store_true", help="write what pages' cells show")
    if options.parse_args().outputs:
        write_outputs()
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT), "was written")


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
    main()
