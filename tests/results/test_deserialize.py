"""Results read back from JSON, by their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpumagic.results.deserialize import from_json, from_plain


def test_results_that_are_looked_for_by_their_annotations() -> None:
    assert from_plain(Mapping[int, float], {"1": 2}) == {1: 2.0}
    assert from_json(tuple[int, ...], "[]") == ()
    for kind, data in (
        (Mapping[int, float], {"1" * 5000: 2}),
        (tuple[int, str], [1]),
        (int, 1.0),
        (float, True),
        (bytes, "x"),
        (Any, 1),
    ):
        with pytest.raises(ValueError, match=r"expected|no key"):
            from_plain(kind, data)
