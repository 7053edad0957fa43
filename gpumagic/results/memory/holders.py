"""What holds GPU memory: variables, the notebook, or none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from gpumagic.render.blocks import Block, Column, Figures, Grid, Line, Styled, Text
from gpumagic.render.units import bytes_
from gpumagic.results.base import Result

#: Where there is no memory to show.
NOTHING = Line.of("No GPU memory is allocated")
#: The most holders that have a row in a table.
_MOST = 15
#: The most holders in the report on an allocation that failed.
_MOST_BRIEF = 6
#: The columns of text in which a longer name is broken, so that bars and figures have room.
_NAME = 18
#: What memory without a known variable is called; and where it is known whose it is.
NO_VARIABLE = "not referenced by any variable"
GARBAGE, _LIVE, IN_CPP = "garbage in cycles", "running code, libraries", "C++ alone"
_ALSO = "Also held by"
_MEANS = {
    _ALSO: "what several variables hold is counted once, in the row of one of them",
    NO_VARIABLE: "there was no time to see whether it is garbage or in use",
    GARBAGE: "no variable leads to it; %gpumem free gives it back",
    _LIVE: "objects in use that no variable leads to, such as a running thread's",
    IN_CPP: "no Python object holds it: libraries' work space, tensors of C++ code",
    "!": "kept by the notebook, not by a variable; %gpumem free gives it back",
}


@dataclass(frozen=True)
class Holder:
    """The memory that one variable, or the notebook, holds on one device. Bytes."""

    #: As the user would name it: ``model``, ``Out[3]``, ``h in forward, In[5] line 3``.
    name: str
    #: ``module``, ``tensor``, ``optimizer``, ``function``, ``list``… or ``notebook``.
    kind: str
    #: The memory counted here. Memory of several variables is counted once, at the first of them.
    bytes: int
    #: The same by role: ``parameters``, ``gradients``, ``optimizer state``…
    parts: Mapping[str, int]
    #: The number of allocations counted here.
    blocks: int
    #: The memory that deleting this variable alone frees: nothing else holds it.
    frees: int
    #: The other variables that hold some of the memory counted here.
    also: tuple[str, ...] = ()
    #: Whether it is referenced by the notebook, not by a variable: ``%gpumem free`` frees it.
    by_notebook: bool = False


@dataclass(frozen=True)
class DeviceHolders:
    """The holders of one device's memory. Bytes.

    ``named + notebook + unattributed + rounding`` is exactly ``allocated``.
    """

    #: Allocated bytes by torch's allocator.
    allocated: int
    #: Held by variables.
    named: int
    #: Held only by the notebook (``Out``, ``_``, the last exception…).
    notebook: int
    #: Not referenced by any variable.
    unattributed: int
    #: The bytes that the allocator adds by rounding requests up.
    rounding: int
    #: Largest first.
    holders: tuple[Holder, ...] = ()
    #: Of ``unattributed``: of objects in reference cycles that Python's collector has not come to;
    #: and of other objects, of running functions or libraries. None where that is not known.
    garbage: int | None = None
    live: int | None = None

    def unreferenced(self) -> dict[str, int]:
        """Return the parts of ``unattributed``, by what they are called."""
        if self.garbage is None or self.live is None:
            return {NO_VARIABLE: self.unattributed}
        rest = self.unattributed - self.garbage - self.live
        return {GARBAGE: self.garbage, _LIVE: self.live, IN_CPP: rest}

    def __getitem__(self, name: str) -> Holder:
        """Return the holder of that name.

        Raises:
            KeyError: no such name.
        """
        return {holder.name: holder for holder in reversed(self.holders)}[name]


@dataclass(frozen=True, repr=False)
class Holders(Result):
    """The holders of GPU memory: one `DeviceHolders` for each CUDA ordinal in use."""

    _index = ("device", "name")

    devices: Mapping[int, DeviceHolders] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why there are no figures, if there are none; one line.
    error: str | None = None

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for ordinal, device in self.devices.items():
            yield from ({"device": ordinal, **asdict(holder)} for holder in device.holders)

    def _blocks(self) -> Iterator[Block]:
        if self.error is not None:
            yield Line.of(f"No GPU memory to show: {self.error}", "dim")
            return
        shown = {i: device for i, device in self.devices.items() if device.allocated}
        if not shown:
            yield NOTHING
        explained: set[str] = set()
        for ordinal, device in shown.items():
            rest = device.unreferenced()
            yield holder_table(f"cuda:{ordinal}", device.holders, device.allocated, rest)
            yield _sum(device)
            shared = any(holder.bytes and holder.also for holder in device.holders)
            sizes = {_ALSO: shared, **rest, "!": device.notebook}
            explained |= {name for name, size in sizes.items() if size}
        yield from Line.notes(f"{name}: {_MEANS[name]}" for name in _MEANS if name in explained)


#: What has a row in a table: its name, its bytes, and the holder if it is one.
_Row: TypeAlias = "tuple[Text, int, Holder | None]"


def holder_table(
    title: str, holders: Sequence[Holder], total: int, rest: Mapping[str, int], brief: bool = False
) -> Grid:
    """Return the largest holders, and the sums of the others and of what has none.

    ``brief``: fewer, without their parts and the columns on the right.
    """
    most = _MOST_BRIEF if brief else _MOST
    counted = [holder for holder in holders if holder.bytes]
    rows: list[_Row] = []
    for holder in counted[:most]:
        warned = Styled(f"! {holder.name}", "warn")
        name = warned if holder.by_notebook else Styled(holder.name, "strong")
        rows.append((name, holder.bytes, holder))
        if len(holder.parts) > 1 and not brief:
            parts = sorted(holder.parts.items(), key=lambda item: -item[1])
            rows += [(f"└ {part or 'tensors'}", size, None) for part, size in parts]
    more = sum(holder.bytes for holder in counted[most:])
    others = {f"{len(counted) - most} more": more, **rest}
    rows += [(name, size, None) for name, size in others.items() if size]

    def memory(row: _Row) -> Styled:
        return Styled(bytes_(row[1]), "" if row[2] else "dim", row[1] / total)

    def of_holder(text: Callable[[Holder], Text]) -> Callable[[_Row], Text]:
        return lambda row: text(row[2]) if row[2] else ""

    columns: list[Column[_Row]] = [
        Column(title, lambda row: row[0], least=_NAME, wrap=True),
        Figures("Memory", memory),
        Column("Kind", of_holder(_kind), rank=2, least=8),
        Figures("Blocks", of_holder(lambda holder: str(holder.blocks)), rank=4),
        Figures("Frees", of_holder(_frees), rank=3),
        Column(_ALSO, of_holder(lambda h: Styled.few(h.also, 3, "dim")), rank=1, least=12),
    ]
    return Grid.of(rows, *(columns[:3] if brief else columns), dim=lambda _: True)


def _frees(holder: Holder) -> str:
    return "all" if holder.frees == holder.bytes else bytes_(holder.frees)


def _kind(holder: Holder) -> str:
    """Return the kind: ``module``, ``optimizer state``, ``function's closure``."""
    part = next(iter(holder.parts), "") if len(holder.parts) == 1 else ""
    if holder.kind in part:
        return part
    return f"{holder.kind}: {part}" if part else holder.kind


def _sum(device: DeviceHolders) -> Line:
    """Return the sum of the rows: exactly the allocated bytes."""
    parts = [
        ("variables", device.named),
        ("notebook", device.notebook),
        *device.unreferenced().items(),
        ("rounding", device.rounding),
    ]
    terms = [f"{name} {bytes_(size)}" for name, size in parts if size]
    exact = f" ({device.allocated:,} B)" if device.allocated >= 1024 else ""
    allocated = Styled(f"{bytes_(device.allocated)} allocated{exact}", "strong")
    return Line.join(allocated, f" = {' + '.join(terms)}")
