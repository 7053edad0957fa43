"""Take pictures of what the magics show, on virtual GPUs, and write the page if they are its.

In a notebook with JupyterLab's styles, light and dark, 1280 and 700 px wide, on one sheet an item
(NAME-after.png), and in a terminal of 80 columns (NAME-terminal-after.png). With --commit of an
earlier version, whose files end in -before.png.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.frontends import lab
from tests.tools.gallery import page as gallery_page
from tests.tools.gallery import pictures, session


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.tools.gallery", description=__doc__)
    options.add_argument("folder", type=Path, help="where the pictures go (docs/gallery)")
    options.add_argument("--commit", help="take them of the package in this commit")
    given = options.parse_args()
    if lab.browser() is None:
        print(lab.missing(), file=sys.stderr)
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    when = "before" if given.commit else "after"
    with tempfile.TemporaryDirectory() as name, lab.page() as page:
        folder, photographer = Path(name), pictures.Photographer(page, Path(name))
        for where, run in (("", session.as_notebook), ("-terminal", session.in_terminal)):
            place = folder / f"session{where}"
            place.mkdir()
            with session.environment(place, given.commit) as variables:
                shown = run(variables, place, when == "before")
            if where:
                taken = {item: photographer.terminal(lines) for item, lines in shown.items()}
            else:
                sheets = photographer.notebook(shown).items()
                taken = {item: pictures.sheet(each) for item, each in sheets}
            for item, picture in taken.items():
                target = given.folder / f"{item}{where}-{when}.png"
                pictures.write(picture, target)
                print(target, flush=True)
    if given.folder.resolve() == gallery_page.FOLDER:
        print(gallery_page.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
