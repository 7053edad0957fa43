"""The objects to which pickles refer by number, and notes on what is in a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tables:
    """Objects to which pickles refer by number; it lives while pickles are written."""

    tensors: list[Any] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    #: Byte strings and buffers, with the kind of object to restore.
    raw: list[tuple[Any, str]] = field(default_factory=list)
    _numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    _references: list[Any] = field(default_factory=list)

    def number(self, kind: str, value: Any, entry: Any) -> int:
        """Return the number of ``value`` in a table; ``entry()`` is added at its first use."""
        key = (kind, id(value))
        if key not in self._numbers:
            table = getattr(self, kind)
            self._numbers[key] = len(table)
            self._references.append(value)
            table.append(entry())
        return self._numbers[key]


@dataclass
class PickleNotes:
    """What was found while one pickle was written."""

    #: Global names that functions of the notebook use.
    used: set[str] = field(default_factory=set)
    #: What is not kept of it, a phrase each.
    omitted: set[str] = field(default_factory=set)
    #: Whether all of it certainly loads in another process with the same packages.
    trusted: bool = True
    #: The file names of the notebook's functions.
    files: set[str] = field(default_factory=set)
    #: The ordinals of CUDA devices; None for the current one.
    devices: set[int | None] = field(default_factory=set)
    #: The identities of objects that are also data of the user's modules.
    shared: set[int] = field(default_factory=set)
