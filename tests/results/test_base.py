"""The base classes of results: their DataFrames; what is drawn: ``test_all_results.py``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from gpumagic.errors import DependencyError
from gpumagic.results.base import Series


@dataclass(frozen=True, repr=False)
class Rows(Series[Mapping[str, int | None]]):
    _sequence = "rows"
    _index: ClassVar[tuple[str, ...]] = ("a",)
    _columns: ClassVar[tuple[str, ...]] = ("b", "c")

    rows: tuple[Mapping[str, int | None], ...] = ()

    def _records(self) -> tuple[Mapping[str, int | None], ...]:
        return self.rows


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
