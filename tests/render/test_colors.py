"""Colours: legible and told apart, on light and on dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpumagic.render import colors

#: The text and the background of front ends, as red, green, blue, and the text's opacity.
THEMES = {
    "JupyterLab": ((0, 0, 0), 0.87, (255, 255, 255)),
    "JupyterLab, an even row": ((0, 0, 0), 0.87, (245, 245, 245)),
    "JupyterLab, dark": ((255, 255, 255), 1.0, (17, 17, 17)),
    "JupyterLab, dark, an even row": ((255, 255, 255), 1.0, (33, 33, 33)),
    "VS Code": ((59, 59, 59), 1.0, (255, 255, 255)),
    "VS Code, an output": ((59, 59, 59), 1.0, (248, 248, 248)),
    "VS Code, dark": ((204, 204, 204), 1.0, (31, 31, 31)),
    "VS Code, dark, an output": ((204, 204, 204), 1.0, (37, 37, 38)),
    "Colab, dark": ((227, 227, 227), 1.0, (56, 56, 56)),
}
PLAIN = ("JupyterLab", "JupyterLab, dark")
#: Of what is no text: bars, curves, the series of pictures (WCAG 2.1, 1.4.11).
SHAPES = {
    *colors.STATES.values(),
    *colors.USES.values(),
    *colors.SERIES,
    colors.BAR,
    *(colors.BAD, colors.NEUTRAL),
}


@pytest.mark.parametrize("theme", THEMES)
def test_coloured_text_is_legible(theme: str) -> None:
    """A contrast of 4.5 at least (WCAG 2, level AA), on every front end's background."""
    text, opacity, background = THEMES[theme]
    for style, color in {**colors.STATES, **colors.CODE}.items():
        share = colors.TEXT_SHARE / 100
        alpha = share * opacity + 1 - share  # color-mix weighs by opacity
        mixed = tuple(
            (share * opacity * t + (1 - share) * b) / alpha
            for t, b in zip(text, rgb(color), strict=True)
        )
        assert contrast(mixed, background, alpha) >= 4.5, style
    assert contrast(text, background, 0.75 * opacity) >= 4.5  # dim


@pytest.mark.parametrize("theme", PLAIN)
def test_shapes_are_told_apart_from_the_background(theme: str) -> None:
    background = THEMES[theme][2]
    for color in SHAPES:
        assert contrast(rgb(color), background) >= 3, color


def test_no_colour_is_drawn_that_is_not_tested() -> None:
    package = Path(colors.__file__).parents[1]
    used = {
        path.relative_to(package).as_posix(): found
        for path in package.rglob("*.py")
        if (found := set(re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text(encoding="utf-8"))))
    }
    assert used == {"render/colors.py": {*SHAPES, *colors.CODE.values(), colors.INK}}


def rgb(color: str) -> tuple[float, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def contrast(color: tuple[float, ...], ground: tuple[float, ...], alpha: float = 1.0) -> float:
    shown = tuple(alpha * c + (1 - alpha) * b for c, b in zip(color, ground, strict=True))
    lighter, darker = sorted((luminance(shown), luminance(ground)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: tuple[float, ...]) -> float:
    linear = [
        c / 255 / 12.92 if c <= 0.03928 * 255 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
