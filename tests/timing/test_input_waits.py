"""A loop over a container waits for no input."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest
import torch.utils.data
from tqdm import tqdm

from gpumagic.timing.input_waits import is_at_hand, is_container

NAMES: dict[str, Any] = {
    **{"batches": [1, 2], "loader": iter(print, 1), "table": {}, "size": 3},
    "of_list": iter([1]),
}


@pytest.mark.parametrize(
    ("iterated", "expected"),
    [
        *(("range(size)", True), ("[1, 2]", True), ("(1, 2)", True), ("{1: 2}", True)),
        *(("batches", True), ("table.items()", True), ("batches[1:]", True), ("'ab'", True)),
        *(("enumerate(batches)", True), ("zip(range(3), batches)", True)),
        *(("enumerate(range(3), 1)", True), ("list(loader)", True), ("[i for i in loader]", True)),
        *(("loader", False), ("enumerate(loader)", False), ("zip(range(3), loader)", False)),
        *(("open('x')", False), ("make()", False), ("nowhere", False), ("batches[0]", False)),
        *(("tqdm(loader)", False), ("self.batches", False), ("of_list", True)),
    ],
)
def test_is_container(iterated: str, expected: bool) -> None:
    assert is_container(ast.parse(iterated, mode="eval").body, NAMES) is expected


def test_names_in_a_function_are_not_the_cells() -> None:
    name, made = (ast.parse(each, mode="eval").body for each in ("batches", "range(3)"))
    assert not is_container(name, NAMES, is_in_names=False)
    assert is_container(made, NAMES, is_in_names=False)
    assert not is_container(made, {**NAMES, "range": print})


def lazy(*_: Any) -> Any:
    yield 1


async def later() -> Any:
    yield 1


class Made:
    """A class of the user's: what it does when it is made is not known."""


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise AssertionError("the user's code must not run")


class Cheat(metaclass=Meta):
    """One whose module must not be asked for."""


@pytest.mark.parametrize(
    ("iterated", "expected"),
    [
        *(("loader", True), ("self.loader", True), ("enumerate(loader, 1)", True)),
        *(("map(lambda i: i, loader)", True), ("lazy()", True), ("lazy(loader)", True)),
        *(("make()", False), ("made()", False), ("enumerate(made())", False)),
        *(("loader.read()", False), ("batches[0]", False), ("lazy(made())", False)),
        *(("tqdm(loader, total=3)", True), ("enumerate(tqdm(loader))", True)),
        *(("tqdm(made())", False), ("tqdm(loader, total=made())", False)),
        *(("itertools.islice(lazy(), 5)", True), ("itertools.nothing(loader)", False)),
        *(("utils.DataLoader(batches)", True), ("Made(loader)", False), ("Cheat(loader)", False)),
        *(("(i for i in loader)", True), ("(i for i in made())", False)),
        *(("later()", True), ("zip(*loader)", True), ("map(str, made())", False)),
    ],
)
def test_is_at_hand(iterated: str, expected: bool) -> None:
    names = {
        **{**NAMES, "lazy": lazy, "later": later, "made": lambda: [1], "tqdm": tqdm},
        **{"itertools": itertools, "utils": torch.utils.data, "Made": Made, "Cheat": Cheat},
    }
    expression = ast.parse(iterated, mode="eval").body
    assert is_at_hand(expression, names) is expected
    assert "lazy(" not in iterated or not is_at_hand(expression, names, is_in_names=False)
