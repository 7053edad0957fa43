"""Texts from outside cost little, however long they are and whatever is in them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from gpumagic.doctor import explanation
from gpumagic.memory import oom

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


PATTERNS = [
    *(pattern for pattern, _ in explanation._LINES),
    explanation._NO_START,
    *(each.pattern for each in (oom._REQUESTED, oom._DEVICE, oom._UNUSED, oom._HINT)),
]


def unbounded(parsed: Any) -> list[bool]:
    """For each repeat without a limit, whether it is the pattern's end."""
    found: list[bool] = []
    items = list(parsed)
    for place, (kind, value) in enumerate(items):
        last = place == len(items) - 1
        if str(kind) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            inner = unbounded(value[2])
            found += [last] if value[1] == parser.MAXREPEAT and not inner else [False] * len(inner)
        elif str(kind) == "SUBPATTERN":
            found += [end and last for end in unbounded(value[3])]
        elif str(kind) == "BRANCH":
            found += [end and last for branch in value[1] for end in unbounded(branch)]
        elif str(kind) in ("ASSERT", "ASSERT_NOT"):
            found += [False for _ in unbounded(value[1])]
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_tries_again_and_again(pattern: str) -> None:
    """A repeat without a limit before anything else costs the square of a text, two the cube."""
    assert all(unbounded(parser.parse(pattern)))


@pytest.mark.parametrize(
    "unit", ["CUDA error: driver mismatc ", "driver", "1", "CUDA error: out of memory ", "\n"]
)
def test_a_long_message_is_explained_at_once(unit: str) -> None:
    """Not in hours, which the limit of a test's time would end."""
    explanation.explain(RuntimeError("CUDA error: " + unit * (500_000 // len(unit))))
    text = unit * (500_000 // len(unit))
    for pattern in (oom._REQUESTED, oom._UNUSED):
        assert oom._size(pattern, text) is None
    oom._device(text)


@pytest.mark.parametrize("number", ["1.2.3", "9" * 400, "9" * 5000, ".", "1."])
def test_a_size_that_is_none(number: str) -> None:
    text = f"Tried to allocate {number} GiB. GPU {number} has"
    found = oom._size(oom._REQUESTED, text)
    assert found is None
    oom._device(text)
