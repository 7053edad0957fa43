"""What the new process needs to load the variables, beside the file of their bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpumagic.restart.variables.data_file import Part
from gpumagic.restart.variables.devices import Devices
from gpumagic.restart.variables.module_objects import Reference


@dataclass(frozen=True)
class Manifest:
    """The variables in a file: their pickles, one after the other, then the bytes of arrays."""

    #: The type of each variable, in their order; "" for what the new process has anyway, and the
    #: content of an object of a module.
    types: Mapping[str, str]
    #: The bytes of all pickles; where the bytes of each array and storage are, by number.
    body: int
    parts: Sequence[Part]
    #: The objects of modules that they refer to, with their types.
    referred: Mapping[Reference, str]
    #: The variables that are such objects, and are as a fresh import makes them.
    anew: Collection[str]
    #: Which of `types` are contents of such objects.
    contents: Collection[str]
    #: The cells in which functions were defined, by file name: their lines, and their numbers.
    sources: Mapping[str, list[str]]
    cells: Mapping[str, int]
    devices: Devices
    #: What is said of some: words, and the names behind them.
    notes: Mapping[str, Sequence[str]]
    settings: Mapping[str, bytes] = field(default_factory=dict)
    #: Why variables that were to be kept are lost.
    failed: Mapping[str, str] = field(default_factory=dict)
