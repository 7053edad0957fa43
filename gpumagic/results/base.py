"""What all results have in common: they show themselves, and turn into plain data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, TypeVar, overload

_Item = TypeVar("_Item")


class Result:
    """A result that shows itself: as text where there is only text, as HTML in a notebook.

    The rendering lives in ``gpumagic.render`` and is imported when a result is first shown.
    """

    def __str__(self) -> str:
        text: str = import_module("gpumagic.render").as_text(self)
        return text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle: dict[str, str] = import_module("gpumagic.render").mimebundle(self)
        return bundle

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries, lists, strings and numbers."""
        whole = plain(self)
        assert isinstance(whole, dict)
        return whole

    def to_json(self, **options: Any) -> str:
        """The result as JSON; ``options`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **options)


class Series(Result, Sequence[_Item]):
    """A result that is, first of all, a sequence of parts: its field ``items_in``."""

    #: The name of the field that holds the parts, a tuple.
    items_in: ClassVar[str]

    def _items(self) -> tuple[_Item, ...]:
        items: tuple[_Item, ...] = getattr(self, self.items_in)
        return items

    @overload
    def __getitem__(self, key: int) -> _Item: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, key: int | slice) -> _Item | tuple[_Item, ...]:
        return self._items()[key]

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[_Item]:
        return iter(self._items())


def plain(value: Any) -> Any:
    """``value`` with dataclasses turned into dictionaries and mappings' keys kept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
