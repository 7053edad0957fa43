"""Small curves as SVG: steps from left to right over time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gpumagic.render.blocks import Sparkline
from gpumagic.render.sparkline import svg


def path(*points: tuple[float, float | None]) -> str:
    (drawn,) = re.findall(r' d="([^"]*)"', svg(Sparkline(points, 60, "")))
    return str(drawn)


@pytest.mark.parametrize(
    ("points", "drawn"),
    [
        ((), ""),
        (((0, None),), ""),
        # From the left edge, what held before; up to the right edge.
        (((90, 0.0),), "M-4,34V29H64V34Z"),
        (((30, 0.0), (15, 1.0)), "M30,34V29H45V1H64V34Z"),
        # Unknown: a gap.
        (((60, 1.0), (40, None), (20, 1.0)), "M-4,34V1H20V34ZM40,34V1H64V34Z"),
        # Beyond the scale: at its edge.
        (((60, 7.0), (30, -1.0)), "M-4,34V1H30V29H64V34Z"),
        # Many within a second: the highest one; what is older than the curve: the last one.
        (((20.2, 0.0), (20.1, 1.0), (20.0, 0.5)), "M40,34V1H64V34Z"),
        (((80, 1.0), (70, 0.0)), "M-4,34V29H64V34Z"),
    ],
)
def test_the_steps(points: tuple[tuple[float, float | None], ...], drawn: str) -> None:
    assert path(*points) == drawn


def test_it_is_xml_with_a_label() -> None:
    drawn = svg(Sparkline(((0, 0.5),), 60, "<mine> & \x1bothers'"))
    root = ElementTree.fromstring(drawn)
    assert root.attrib["role"] == "img"
    assert "max-width:none" in root.attrib["style"]
    assert root.attrib["aria-label"] == root.findtext("title") == "<mine> & \ufffdothers'"
