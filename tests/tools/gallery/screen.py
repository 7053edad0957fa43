"""What is to be seen of a terminal, as lines of coloured text."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pyte


class Screen(pyte.Screen):  # type: ignore[misc]
    """A terminal's screen, in which dim text is dim: pyte has no attribute for it."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        """Set the attributes of the text that follows."""
        super().select_graphic_rendition(*attributes, **options)
        if 2 in attributes and 38 not in attributes and 48 not in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(blink=True)
        if 22 in attributes:
            self.cursor.attrs = self.cursor.attrs._replace(blink=False)

    def spans(self) -> list[list[tuple[str, str]]]:
        """Return the lines down to the last that has text."""
        lines = []
        for row in range(self.lines):
            characters = [self.buffer[row][column] for column in range(self.columns)]
            runs = groupby(characters, lambda each: _css(each))
            lines.append([("".join(c.data for c in run), style) for style, run in runs])
        while lines and not "".join(text for text, _ in lines[-1]).strip():
            lines.pop()
        return lines


def overwritten(line: str) -> str:
    """Return what is to be seen of a line in which each carriage return leads to its beginning."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


#: xterm's colours.
_COLORS = {
    "black": "#000", "red": "#cd3131", "green": "#0dbc79", "brown": "#e5e510", "blue": "#2472c8",
    "magenta": "#bc3fbc", "cyan": "#11a8cd", "white": "#e5e5e5", "brightblack": "#666",
    "brightred": "#f14c4c", "brightgreen": "#23d18b", "brightbrown": "#f5f543",
    "brightblue": "#3b8eea", "brightmagenta": "#d670d6", "brightcyan": "#29b8db",
    "brightwhite": "#fff",
}  # fmt: skip


def _css(character: Any) -> str:
    def color(name: str, default: str) -> str:
        if name == "default":
            return default
        return _COLORS.get(name, f"#{name}")

    ink, ground = color(character.fg, "#ddd"), color(character.bg, "#111")
    if character.reverse:
        ink, ground = ground, ink
    style = f"color:{ink};background:{ground}"
    style += ";font-weight:bold" * character.bold + ";opacity:.6" * character.blink
    return style + ";text-decoration:underline" * character.underscore
