"""The text of a claim."""

from __future__ import annotations

import pytest

from gpumagic.results.claims import Claim

GPU = ("GPU-aaaa",)


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (Claim(GPU, 7, own=True, mine=True, notebook="a.ipynb", idle=9), "this kernel"),
        (Claim(GPU, 7, mine=True, notebook="eval.ipynb", idle=0), "eval.ipynb, busy"),
        (Claim(GPU, 7, mine=True), "process 7"),
        (Claim(GPU, 7, "ann", "eval.ipynb", 7200), "eval.ipynb of ann, idle 2 h"),
        (
            Claim(GPU, 7, "ann", "eval.ipynb", 7200, parked=True),
            "eval.ipynb of ann, parked, idle 2 h",
        ),
        (Claim(GPU, 7), "process 7 of another user"),
        (Claim(GPU, 7, "ann", parked=True), "process 7 of ann, parked"),
    ],
)
def test_the_text_has_what_is_known(claim: Claim, text: str) -> None:
    assert str(claim) == text
