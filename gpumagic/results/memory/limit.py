"""The limit of torch's allocator: ``%gpumem limit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpumagic.render.blocks import Line
from gpumagic.render.units import bytes_, share, spans
from gpumagic.results.base import Result
from gpumagic.wording import grouped

_NO_LIMIT = "No limit: torch may use the whole device. '%gpumem limit 16GiB' sets one."
_BEYOND = (
    "The CUDA context and libraries come on top (300 to 500 MiB). Beyond the limit torch raises "
    "its out-of-memory error."
)
_LIFTED = "'%gpumem limit off' lifts it."


@dataclass(frozen=True, repr=False)
class LimitState(Result):
    """The limit of torch's allocator."""

    #: Bytes that torch may reserve of each device, or, as a float, a part of each; None for no
    #: limit by ``%gpumem limit``.
    size: int | float | None = None
    #: By CUDA ordinal, the bytes in force. A device that is not in use is missing.
    devices: Mapping[int, int] = field(default_factory=dict)
    #: Of these, the devices that torch's own fraction limits, which the user's code has set.
    by_fraction: tuple[int, ...] = ()
    #: Where more is reserved already, or the device has no more.
    notes: tuple[str, ...] = ()

    @property
    def limits(self) -> str | None:
        """The limits: ``1.00 GiB of each GPU``, ``39.8 GiB of cuda:0``; None where none is."""
        if self.size is not None and not self.by_fraction:
            of_each = share(self.size) if isinstance(self.size, float) else bytes_(self.size)
            return f"{of_each} of each GPU"
        sizes = grouped((size, i) for i, size in self.devices.items())
        return ", ".join(f"{bytes_(size)} of cuda:{spans(of)}" for size, of in sizes.items())

    def _blocks(self) -> Iterator[Line]:
        if self.limits:
            yield Line.of(f"torch may use at most {self.limits}.")
            yield Line.of(f"{_BEYOND} {_LIFTED}" if self.size is not None else _BEYOND, "dim")
        elif not self.notes:
            yield Line.of(_NO_LIMIT)
        if self.by_fraction:
            theirs = f"cuda:{spans(self.by_fraction)}"
            why = f"{theirs}: by torch's memory fraction, which '%gpumem limit' leaves."
            yield Line.of(why, "dim")
