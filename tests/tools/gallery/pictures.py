"""Photograph the gallery's cells, and put the pictures of an item together on one sheet."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.tools.demo.runner import as_html
from tests.tools.gallery.session import item_of

THEMES, WIDTHS = ("light", "dark"), (1280, 700)
_COLORS, _EXACT = 48, 16
_GAP, _LABEL = 16, 26
#: Of the pictures: cells as they are in JupyterLab's window, without the page's margin.
_STYLE = (
    "<style>body{padding:0!important;margin:0!important}.jp-Notebook{padding:0!important}</style>"
)
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: #111 }
pre { margin: 0; padding: 8px; width: max-content; font: 14px/1.25 "DejaVu Sans Mono", monospace }
</style><pre>%s</pre>"""


class Photographer:
    """A browser that photographs notebooks and terminals."""

    def __init__(self, page: Any, folder: Path) -> None:
        self._page, self._folder = page, folder

    def notebook(
        self, notebook: nbformat.NotebookNode
    ) -> dict[str, dict[tuple[str, int], Image.Image]]:
        """Return the pictures of each item by theme and width."""
        names = [item_of(cell) for cell in notebook.cells]
        pictures: dict[str, dict[tuple[str, int], Image.Image]] = {name: {} for name in names}
        for theme in THEMES:
            page = as_html(notebook, "gallery", theme=theme).replace("</head>", f"{_STYLE}</head>")
            self._open(page, WIDTHS[0])
            for width in WIDTHS:
                self._fit(width)
                boxes = [cell.bounding_box() for cell in self._page.locator(".jp-CodeCell").all()]
                assert len(boxes) == len(names)
                for name in pictures:
                    own = [box for box, each in zip(boxes, names, strict=True) if each == name]
                    top, bottom = own[0]["y"], own[-1]["y"] + own[-1]["height"]
                    pictures[name][theme, width] = self._photograph(top, bottom, width)
        return pictures

    def terminal(self, lines: Sequence[Sequence[tuple[str, str]]]) -> Image.Image:
        """Return the picture of a terminal's screen."""
        text = "\n".join(
            "".join(f'<span style="{css}">{html.escape(part)}</span>' for part, css in line)
            for line in lines
        )
        self._open(_TERMINAL % text, 1000)
        box = self._page.locator("pre").bounding_box()
        return self._photograph(0, box["height"], box["width"])

    def _open(self, page: str, width: int) -> None:
        path = self._folder / "page.html"
        path.write_text(page, encoding="utf-8")
        self._page.goto(path.as_uri())
        self._fit(width)

    def _fit(self, width: int) -> None:
        """Make the window so high that the page needs no scroll bar of its own."""
        self._page.set_viewport_size({"width": width, "height": 1000})
        height = self._page.evaluate("document.documentElement.scrollHeight")
        self._page.set_viewport_size({"width": width, "height": height + 100})

    def _photograph(self, top: float, bottom: float, width: float) -> Image.Image:
        clip = {"x": 0, "y": top, "width": width, "height": bottom - top}
        taken = self._page.screenshot(clip=clip)
        return Image.open(io.BytesIO(taken)).convert("RGB")


def sheet(pictures: Mapping[tuple[str, int], Image.Image]) -> Image.Image:
    """Return one picture of an item: a column for each width, a row for each theme, with labels."""
    return _grid(
        [[(f"{theme}, {width} px", pictures[theme, width]) for width in WIDTHS] for theme in THEMES]
    )


def beside(pictures: Mapping[str, Image.Image]) -> Image.Image:
    """Return one picture with others side by side, below their labels."""
    return _grid([[*pictures.items()]])


def write(picture: Image.Image, path: Path) -> None:
    """Write a picture with few colours: its most frequent ones, and some that cover the others."""
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    covering = picture.quantize(_COLORS, method=method, kmeans=1, dither=dither)
    palette, chosen = (covering.getpalette() or [])[: 3 * _COLORS], np.array(covering)
    counts = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)
    pixels = np.asarray(picture)
    for _, color in counts[:_EXACT]:
        chosen[(pixels == color).all(axis=2)] = len(palette) // 3
        palette += color
    reduced = Image.fromarray(chosen)
    reduced.putpalette(palette)
    reduced.save(path, optimize=True)


def _grid(rows: Sequence[Sequence[tuple[str, Image.Image]]]) -> Image.Image:
    columns = [max(picture.width for _, picture in column) for column in zip(*rows, strict=True)]
    heights = [max(picture.height for _, picture in row) + _LABEL for row in rows]
    size = sum(columns) + _GAP * (len(columns) + 1), sum(heights) + _GAP * (len(rows) + 1)
    whole = Image.new("RGB", size, "#808080")
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(size=15)
    y = _GAP
    for row, height in zip(rows, heights, strict=True):
        x = _GAP
        for (label, picture), width in zip(row, columns, strict=True):
            draw.text((x, y + 2), label, "white", font)
            whole.paste(picture, (x, y + _LABEL))
            x += width + _GAP
        y += height + _GAP
    return whole
