"""The base classes of results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from gpumagic.errors import DependencyError
from gpumagic.render.blocks import Block, Grid, Line
from gpumagic.results.base import Series, as_html, as_text


@dataclass(frozen=True, repr=False)
class Example(Series[str]):
    _sequence = "words"
    words: tuple[str, ...] = ("a", "b", "c")

    def _blocks(self) -> list[Block]:
        return [Line.of(" ".join(self.words), "dim")]


def test_a_result_shows_itself() -> None:
    result = Example()
    assert str(result) == as_text(result) == "a b c"
    assert repr(result) == "<Example: a b c>"
    assert repr(Rows()) == "<Rows>", "what has no line outside of tables"
    assert as_text(result, color=True) == "\x1b[2ma b c\x1b[0m"
    assert result._repr_mimebundle_(include=None) == {
        "text/plain": "a b c",
        "text/html": as_html(result),
    }


def test_a_sequence_of_items() -> None:
    result = Example()
    assert [*result] == ["a", "b", "c"]
    assert (len(result), result[0], result[1:]) == (3, "a", ("b", "c"))


@dataclass(frozen=True, repr=False)
class Rows(Series[Mapping[str, int | None]]):
    _sequence = "rows"
    _index: ClassVar[tuple[str, ...]] = ("a",)
    _columns: ClassVar[tuple[str, ...]] = ("b", "c")

    rows: tuple[Mapping[str, int | None], ...] = ()

    def _records(self) -> tuple[Mapping[str, int | None], ...]:
        return self.rows

    def _blocks(self) -> list[Block]:
        return [Grid((), ())]


def test_a_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = Rows(({"a": 1, "b": None, "c": None}, {"a": 2, "b": 3, "d": 4})).to_pandas()
    assert [*frame.columns] == ["b", "c", "d"]
    assert frame.index.names == ["a"]
    assert [str(frame[name].dtype) for name in frame.columns] == ["Int64", "float64", "Int64"]
    assert [*Rows().to_pandas().columns] == ["b", "c"]


def test_without_pandas_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DependencyError, match="pip install pandas"):
        Rows().to_pandas()
