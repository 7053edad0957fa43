"""The line where an error has destroyed the CUDA context."""

from __future__ import annotations

from gpumagic.results import DeadContext
from gpumagic.results.base import as_html, as_text
from tests.support.drawing import check_drawing

BEGINS = "gpumagic: CUDA has failed in this process: a kernel failed. Restart it."


def test_drawing() -> None:
    check_drawing(DeadContext("a kernel failed", "Restart it"), BEGINS)
    check_drawing(DeadContext("a kernel failed", "Restart it", ()), BEGINS)
    check_drawing(
        DeadContext("a kernel failed", "Restart it", ("a", "b")),
        f"{BEGINS} Lost with it: 2 variables on the GPU (a, b).",
    )
    check_drawing(
        DeadContext("a kernel failed", "Restart it", ("a",), complete=False),
        f"{BEGINS} Lost with it: 1 variable on the GPU (a), and perhaps others.",
    )


def test_many_names_are_folded() -> None:
    found = DeadContext("a kernel failed", "Restart it", tuple("abcdefghijkl"))
    assert as_text(found).replace("\n", " ").endswith("(a, b, c, d, e, f, g, h and 4 more).")
    html = as_html(found)
    assert html.count("<details") == html.count("</details>") == 1
    assert "a, b, c, d, e, f, g, h, i, j, k, l" in html


def test_repr() -> None:
    assert repr(DeadContext("a kernel failed", "Restart it")) == "<DeadContext: a kernel failed>"
