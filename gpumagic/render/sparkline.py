"""Render small curves as inline SVG, in the colours of the front end's theme."""

from __future__ import annotations

from html import escape

from gpumagic.render import colors
from gpumagic.render.blocks import Sparkline
from gpumagic.system.text import harmless

#: The size in CSS pixels, and in the units of a curve: integers, since the text is sent often.
_SIZE = 'width="48" height="16" viewBox="0 0 60 30" preserveAspectRatio="none"'
_WIDTH, _HEIGHT = 60, 30
#: How far outside the visible area the lines are that close a curve's area.
_OUTSIDE = 4
_STYLE = (
    # With JupyterLab's style an SVG may shrink to no width, and then overlaps the next cell.
    "max-width:none;display:inline-block;vertical-align:-3px;margin-right:.5em;"
    "border-bottom:1px solid var(--jp-border-color2, rgba(128,128,128,.35))"
)
_INK = f"var(--jp-brand-color1, {colors.CURVE})"
_DIM_INK = f"var(--jp-ui-font-color2, {colors.DIM_CURVE})"


def svg(curve: Sparkline) -> str:
    """Return the curve as an SVG element, with its label for screen readers and on hover."""
    label = escape(harmless(curve.label))
    return (
        f'<svg role="img" aria-label="{label}" {_SIZE} style="{_STYLE};'
        f'color:{_DIM_INK if curve.dim else _INK}"><title>{label}</title>'
        f'<path d="{_path(curve)}" fill="currentColor" fill-opacity=".25" '
        'stroke="currentColor" vector-effect="non-scaling-stroke"/></svg>'
    )


def _path(curve: Sparkline) -> str:
    """Return the steps of the curve as SVG path, with an area for each run of known values.

    Of several values in one unit of time the highest is drawn.
    """
    columns: dict[int, float | None] = {}
    for age, value in curve.points:
        column = max(round((1 - age / curve.seconds) * _WIDTH), 0)
        # Of values at or before the beginning of the curve the last one is drawn.
        other = columns.get(column) if column else None
        columns[column] = value if value is None or other is None else max(value, other)
    steps: list[str] = []
    height: int | None = None
    for column, value in columns.items():
        if value is None:
            if height is not None:
                steps.append(f"H{column}V{_HEIGHT + _OUTSIDE}Z")
            height = None
            continue
        y = _HEIGHT - 1 - round(min(max(value, 0.0), 1.0) * (_HEIGHT - 2))
        if height is None:
            steps.append(f"M{column or -_OUTSIDE},{_HEIGHT + _OUTSIDE}V{y}")
        elif y != height:
            steps.append(f"H{column}V{y}")
        height = y
    if height is not None:
        steps.append(f"H{_WIDTH + _OUTSIDE}V{_HEIGHT + _OUTSIDE}Z")
    return "".join(steps)
