"""Debian's sources of packages, with the component that has NVIDIA's libraries."""

from __future__ import annotations

import pytest

from tests.vendor.libraries import with_component


@pytest.mark.parametrize(
    ("source", "with_it"),
    [
        ("deb http://a.example/debian x main\n", "deb http://a.example/debian x main non-free\n"),
        (
            "deb [signed-by=/a b=c] http://a.example/debian x main contrib\n# main\n",
            "deb [signed-by=/a b=c] http://a.example/debian x main contrib non-free\n# main\n",
        ),
        (
            "Types: deb\nSuites: x\nComponents: main\nSigned-By: /a\n",
            "Types: deb\nSuites: x\nComponents: main non-free\nSigned-By: /a\n",
        ),
        ("deb-src http://a.example/debian x main\n", None),
        ("Components: universe\n", None),
    ],
)
def test_a_component_is_added_to_apts_sources(source: str, with_it: str | None) -> None:
    assert with_component(source) == with_it
