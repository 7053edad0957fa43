"""What all results have in common: they show themselves, and turn into plain data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any


class Result:
    """A result that shows itself: as text where there is only text, as HTML in a notebook.

    The rendering lives in ``gpumagic.display`` and is imported when a result is first shown.
    """

    def __str__(self) -> str:
        text: str = import_module("gpumagic.display").as_text(self)
        return text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle: dict[str, str] = import_module("gpumagic.display").mimebundle(self)
        return bundle

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries, lists, strings and numbers."""
        whole = plain(self)
        assert isinstance(whole, dict)
        return whole

    def to_json(self, **options: Any) -> str:
        """The result as JSON; ``options`` go to `json.dumps`."""
        return json.dumps(self.to_dict(), **options)


def plain(value: Any) -> Any:
    """``value`` with dataclasses turned into dictionaries and mappings' keys kept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
