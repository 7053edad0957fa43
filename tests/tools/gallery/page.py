"""The page of the gallery, ``docs/gallery.md``, generated from its items and their pictures."""

from __future__ import annotations

from pathlib import Path

from tests.tools.docs.pages import DOCS
from tests.tools.gallery.items import ITEMS, Item

PAGE, FOLDER = DOCS / "gallery.md", DOCS / "gallery"
#: The last version before the outputs were made anew.
EARLIER = "c2578ae"
_INTRODUCTION = f"""\
<!-- written by `python -m tests.tools.gallery` from its items; not by hand -->

# Before and after

What the magics show, on a virtual machine with eight GPUs that others use, too. On each sheet:
light and dark, in a window of 1280 px and of 700 px, with JupyterLab's styles; below it a terminal
of 80 columns. *Before* is commit `{EARLIER}` of the same repository: the same cells on the same
machine. A click on a picture shows it in its own size.
"""
_IMAGE = """\
```{{image}} gallery/{name}
:alt: {alt}
:width: {width}
```
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *map(_section, ITEMS)])


def pictures(item: Item) -> list[str]:
    """Return the names of an item's pictures in the order of the page, as far as they exist."""
    wheres = ("", "-terminal")
    names = [f"{item.name}{where}-{when}.png" for where in wheres for when in ("after", "before")]
    return [name for name in names if (FOLDER / name).exists()]


def _section(item: Item) -> str:
    parts = [f"## {item.title}\n"]
    for name in pictures(item):
        when = "after" if name.endswith("-after.png") else "before"
        where = "In a terminal, " if "-terminal-" in name else ""
        label = f"{where}{when}" if where else when.capitalize()
        width = "70%" if where else "100%"
        alt = f"{item.title.replace('`', '')}: {label.lower()}"
        parts.append(f"{label}:\n\n{_IMAGE.format(name=name, alt=alt, width=width)}")
    if item.is_new:
        parts.append("There was none before.\n")
    return "\n".join(parts)


def write() -> Path:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return PAGE
