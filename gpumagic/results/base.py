"""The base classes of results: display, and conversion to plain data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from gpumagic.errors import DependencyError
from gpumagic.system.output import Output
from gpumagic.system.text import harmless

if TYPE_CHECKING:
    import pandas

    from gpumagic.render.blocks import Block, Line

_Item = TypeVar("_Item")


class Result:
    """A result that is shown as text in a terminal, and as HTML in a notebook.

    Subclasses define `_blocks`, and `_records` where `to_pandas` has other rows than one with all
    fields. The modules that draw the blocks are imported when a result is first shown.
    """

    #: The columns that are the index of the DataFrame; and the columns of a DataFrame without rows.
    _index: ClassVar[tuple[str, ...]] = ()
    _columns: ClassVar[tuple[str, ...]] = ()
    #: Remarks, a line each below what is shown: a field of the results that have some.
    notes: tuple[str, ...] = ()

    def _blocks(self) -> Iterable[Block]:
        """Yield the blocks that show the result, without its notes."""
        raise NotImplementedError

    def _remarks(self) -> Iterable[Block]:
        """Yield the blocks below: the notes, and what else is said."""
        from gpumagic.render.blocks import Line

        return Line.notes(self.notes)

    def blocks(self) -> list[Block]:
        """Return the blocks that show the result."""
        return [*self._blocks(), *self._remarks()]

    def brief(self) -> list[Block]:
        """Return the blocks that a magic shows: all blocks where these are few."""
        return self.blocks()

    def _headline(self) -> Line | None:
        """Return the result in one line: the first one that is shown outside of tables."""
        from gpumagic.render.blocks import Line

        return next((block for block in self.blocks() if isinstance(block, Line)), None)

    def _records(self) -> Iterable[Mapping[str, Any]]:
        """Return the rows of the DataFrame: values by column."""
        return [self.to_dict()]

    def __str__(self) -> str:
        """Return the text in the characters that standard output has, so that it can be printed."""
        return Output().printable(as_text(self))

    def __repr__(self) -> str:
        """Return the type, and the result in one line."""
        line = self._headline()
        said = "" if line is None else ": " + "".join(part.text for part in line.parts)
        return Output().printable(f"<{type(self).__name__}{harmless(said)}>")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": as_html(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dictionaries, tuples, strings and numbers: `dataclasses.asdict`."""
        return dataclasses.asdict(cast(Any, self))

    def to_json(self, **options: Any) -> str:
        """Return the result as JSON; ``options`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **{"allow_nan": False, **options})

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each item of what the result lists.

        Raises:
            DependencyError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise DependencyError(
                "a DataFrame needs pandas, which is not installed: pip install pandas"
            ) from error
        rows = [*self._records()]
        named = (name for row in rows for name in row)
        frame = pandas.DataFrame(
            rows, columns=[*dict.fromkeys([*self._index, *self._columns, *named])]
        )
        for name in frame.columns:
            kinds = {type(row.get(name)) for row in rows}
            # Integers that are not all known stay integers.
            if kinds == {int, type(None)}:
                frame[name] = frame[name].astype("Int64")
            elif kinds <= {type(None)}:
                frame[name] = frame[name].astype(float)
        return frame.set_index([*self._index]) if self._index else frame


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(Result):
    """One line on why a cell failed."""

    text: str

    def _blocks(self) -> list[Block]:
        from gpumagic.render.blocks import Line

        return [Line.of(self.text, "dim")]


class Series(Result, Sequence[_Item]):
    """A dataclass that is also a sequence, of the items in one of its fields, a tuple."""

    #: The name of that field, ``cells``, or where it is, ``cell.lines``.
    _sequence: ClassVar[str]

    def _items(self) -> tuple[_Item, ...]:
        return cast("tuple[_Item, ...]", attrgetter(self._sequence)(self))

    @overload
    def __getitem__(self, key: int) -> _Item: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, key: int | slice) -> _Item | tuple[_Item, ...]:
        return self._items()[key]

    def __len__(self) -> int:
        return len(self._items())

    def _records(self) -> Iterable[Mapping[str, Any]]:
        return map(dataclasses.asdict, cast(Iterable[Any], self))


def as_text(result: Result, width: int | None = None, *, color: bool = False) -> str:
    """Return ``result`` as text of at most ``width`` columns; by default those of the terminal."""
    from gpumagic.render import text

    return text.render(result.blocks(), width=width, color=color)


def as_html(result: Result) -> str:
    """Return ``result`` as HTML that follows the notebook's light or dark theme."""
    from gpumagic.render import html

    return html.render(result.blocks())
