"""Tables in a real browser: what shows that one goes on at the right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.render.blocks import Cell, Column, Grid
from gpumagic.render.html import render
from tests.frontends import lab

pytestmark = pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing()))

GRID = Grid([Column(f"column {i}") for i in range(8)], [[Cell("some text")] * 8] * 3)
#: Rectangles of the container, the shadow and its cover; and the shadow's own colours.
MEASURE = """() => {
    const box = document.querySelector('.gpumagic > div');
    const [shadow, cover] = box.querySelectorAll(':scope > span');
    const edges = each => { const r = each.getBoundingClientRect(); return [r.left, r.right]; };
    const drawn = [shadow, cover].map(each => {
        const style = getComputedStyle(each);
        return [style.backgroundImage, style.backgroundColor];
    });
    return {
        box: edges(box), shadow: edges(shadow), cover: edges(cover), drawn,
        scrolls: box.scrollWidth - box.clientWidth,
    };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with lab.page() as page:
        yield page


def show(page: Any, width: int, theme: str = "--jp-layout-color0:#111") -> dict[str, Any]:
    """Return what is measured in a window of that width."""
    page.set_viewport_size({"width": width, "height": 400})
    page.set_content(f'<body style="margin:0;{theme}">{render([GRID])}</body>')
    measured: dict[str, Any] = page.evaluate(MEASURE)
    return measured


def test_a_shadow_shows_that_the_table_goes_on(browser: Any) -> None:
    narrow = show(browser, 300)
    assert narrow["scrolls"] > 0
    assert narrow["shadow"][1] == pytest.approx(narrow["box"][1])
    assert narrow["cover"][0] >= narrow["box"][1]  # out of sight
    image, ground = narrow["drawn"][0][0], narrow["drawn"][1][1]
    assert "linear-gradient" in image
    assert ground == "rgb(17, 17, 17)"
    browser.evaluate("() => document.querySelector('.gpumagic > div').scrollTo(9999, 0)")
    end = browser.evaluate(MEASURE)
    assert end["shadow"] == pytest.approx(end["cover"])  # behind its cover


def test_there_is_none_where_all_of_it_is_seen(browser: Any) -> None:
    wide = show(browser, 1200)
    assert wide["scrolls"] == 0
    assert wide["shadow"] == pytest.approx(wide["cover"])


def test_there_is_none_where_the_theme_is_not_known(browser: Any) -> None:
    for image, color in show(browser, 300, theme="")["drawn"]:
        assert (image, color) == ("none", "rgba(0, 0, 0, 0)")
