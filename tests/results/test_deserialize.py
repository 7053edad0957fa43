"""Results from plain data: what does not fit the annotations is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from gpumagic.results import DeviceMemoryDelta, MemoryDelta, Selection
from gpumagic.results.base import plain
from gpumagic.results.deserialize import from_json, from_plain

DELTA = MemoryDelta({1: DeviceMemoryDelta(1, 2, 3)}, notes=("a",))


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (Mapping[int, float], {"1": 2}, {1: 2.0}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (tuple[int, ...], [], ()),
        (tuple[int, str], [1, "a"], (1, "a")),
        (int | None, None, None),
        (float | None, 1, 1.0),
        (Literal["a", "b"], "b", "b"),
        (bool, True, True),
        (MemoryDelta, json.loads(DELTA.to_json()), DELTA),
    ],
)
def test_what_fits(kind: Any, data: Any, value: Any) -> None:
    found = from_plain(kind, data)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Mapping[int, float], {"1" * 5000: 2}),
        (Mapping[int, float], {"x": 2}),
        (Mapping[float, int], {"1": 2}),
        (tuple[int, str], [1]),
        (tuple[int, ...], {}),
        (int, 1.0),
        (int, True),
        (int, 2**63),
        (float, True),
        (float, float("inf")),
        (float, float("nan")),
        (str | int, 1.5),
        (Literal["a"], "b"),
        (bytes, "x"),
        (Any, 1),
        (MemoryDelta, {**plain(DELTA), "more": 1}),
        (MemoryDelta, {}),
        (Selection, {**plain(Selection("0", {}, "applied")), "status": "no such status"}),
    ],
)
def test_what_does_not_fit(kind: Any, data: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|no key|no fields"):
        from_plain(kind, data)


def test_json() -> None:
    assert from_json(tuple[int, ...], "[]") == ()
    assert from_json(MemoryDelta, DELTA.to_json()) == DELTA
    for text in ("", "NaN", "[1", "[Infinity]", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            from_json(tuple[float, ...], text)
