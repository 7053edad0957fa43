"""References from unvisited objects are found by Python's counts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory.reference_counts import held_elsewhere


class Value:
    pass


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_reference_that_no_visited_object_has(torch: ModuleType, elsewhere: bool) -> None:
    space: dict[str, Any] = {"outer": [Value()]}
    hidden = iter(space["outer"][:1] if elsewhere else [])
    kept = [space["outer"], space["outer"][0]]
    found = held_elsewhere(kept, [[1], []], [0, 1], [(space["outer"],)], [space])
    assert found == ([1] if elsewhere else [])
    assert len(list(hidden)) == elsewhere


def test_references_through_containers_between_are_known(torch: ModuleType) -> None:
    value = Value()
    space: dict[str, Any] = {"one": {"deep": [(value,)]}, "two": value}
    kept = [value]
    del value
    assert held_elsewhere(kept, [[]], [0], [(space["two"],)], [space]) == []
    del space["one"]
    hidden = iter([kept[0]])
    assert held_elsewhere(kept, [[]], [0], [(space["two"],)], [space]) == [0]
    del hidden


def test_reference_counts_of_classes_are_not_used(torch: ModuleType) -> None:
    kept: list[Any] = [type("Made", (), {})]
    others = [kept[0] for _ in range(5)]
    assert held_elsewhere(kept, [[]], [0], [], []) == []
    assert len(others) == 5
