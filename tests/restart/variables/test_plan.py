"""What can be kept, found out before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.restart import variables as keep


def test_what_is_shared_is_counted_once() -> None:
    numpy = pytest.importorskip("numpy")
    namespace: dict[str, Any] = {"a": numpy.zeros(1 << 20)}
    namespace |= {"b": namespace["a"][::2], "c": {"d": namespace["a"]}, "e": b"x" * (1 << 20)}
    namespace |= {"f": namespace["e"], "column": numpy.zeros((1 << 10, 1 << 10))[:, 0]}
    chosen = keep.plan(namespace, namespace, namespace)
    assert (8 << 20) + (1 << 20) <= chosen.size() < (8 << 20) + (1 << 20) + (1 << 16)


def test_the_plan_tells_how_much_it_has_pickled() -> None:
    told: list[int] = []
    chosen = keep.plan({"a": list(range(100_000))}, ["a"], {}, progress=told.append)
    assert len(told) > 2
    assert told[-1] == len(chosen.pickles["a"])
