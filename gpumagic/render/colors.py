"""All colours that are drawn. The front end's theme is not known: each is for light and dark."""

from __future__ import annotations

from collections.abc import Mapping

#: The colours of states.
STATES: Mapping[str, str] = {"good": "#2e9e44", "warn": "#c77700", "bad": "#e85a5a"}
#: Per cent of the front end's own text colour in a coloured text: it is legible, dark or light.
TEXT_SHARE = 40
#: The colours of the parts of Python source.
CODE: Mapping[str, str] = {
    "keyword": "#9a5fc9",
    "string": "#2e9e44",
    "number": "#c77700",
    "comment": "#808080",
    "name": "#3f86cf",
}
#: The colours of what a device's memory is used for; neighbours also differ in lightness.
USES: Mapping[str, str] = {
    "allocated": "#2a68b0",
    "cached": "#5b97d8",
    "outside": "#8e5aa8",
    "others": "#cf7d2c",
    "unknown": "#707070",
}
#: The colours of a bar, and of the rest of its slot.
BAR, TRACK = "#4a86c5", "rgba(128,128,128,.3)"
#: The colour of text and axes in pictures, which have no background: of all colours it is read
#: best both on white and on a dark theme.
INK = "#797979"
#: The colours of series in pictures, in their order.
SERIES = ("#3f86cf", "#cf7d2c")
BAD, NEUTRAL = "#d9533e", "#8a8f98"


def text(color: str) -> str:
    """Return the style of a text in a colour, mixed with the front end's own text colour."""
    return f"color:color-mix(in srgb, currentColor {TEXT_SHARE}%, {color})"
