"""What the results of several engines have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import spans

#: At most so many engines each have a row; of more, half as many have.
ROWS = 16


@dataclass(frozen=True)
class EngineResult:
    """What all results of one engine have in common."""

    #: ipyparallel's id of the engine.
    engine: int
    #: The engine's host by its own name; None if it has never answered.
    host: str | None = None
    pid: int | None = None
    #: Its rank in ``torch.distributed``'s group; None where there is none.
    rank: int | None = None
    #: Why there is no result, or only a partial one: one line.
    error: str | None = None


_Each = TypeVar("_Each", bound=EngineResult)


def engine_ids(numbers: Sequence[int]) -> str:
    """Return ``engine 3`` or ``engines 0–3``."""  # noqa: RUF002
    return f"engine{'' if len(numbers) == 1 else 's'} {spans(numbers)}"


def failures(engines: Iterable[EngineResult]) -> dict[int, str]:
    """Return the errors by engine id."""
    return {each.engine: each.error for each in engines if each.error is not None}


def failure_lines(failures: Mapping[int, str]) -> list[Block]:
    """Return a line for each reason, with the engines that it is the reason of."""
    engines: dict[str, list[int]] = {}
    for engine, reason in failures.items():
        engines.setdefault(reason, []).append(engine)
    return [Line.of(f"{engine_ids(ids)}: {reason}", "bad") for reason, ids in engines.items()]


def highest(engines: Sequence[_Each], value: Callable[[_Each], float]) -> list[_Each]:
    """Return all engines, or, of many, those of the highest value, in the order of their ids."""
    if len(engines) <= ROWS:
        return list(engines)
    chosen = sorted(engines, key=value, reverse=True)[: ROWS // 2]
    return sorted(chosen, key=lambda each: each.engine)
