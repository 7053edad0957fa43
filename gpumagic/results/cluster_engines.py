"""The base of the results of engines, and the rows and lines that these results share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpumagic.render.blocks import Block, Line
from gpumagic.render.units import spans

#: The most engines that each have a row; of more engines, half as many have one.
ROWS = 16


@dataclass(frozen=True)
class EngineResult:
    """The fields of every result of one engine."""

    #: ipyparallel's id of the engine.
    engine: int
    #: The name of the engine's host; None if the engine has never replied.
    host: str | None = None
    pid: int | None = None
    #: Its rank in ``torch.distributed``'s group; None where there is none.
    rank: int | None = None
    #: Why there is no result, or only a partial one; one line.
    error: str | None = None


_Each = TypeVar("_Each", bound=EngineResult)


def engine_ids(numbers: Sequence[int]) -> str:
    """Return ``engine 3`` or ``engines 0–3``."""  # noqa: RUF002
    return f"engine{'' if len(numbers) == 1 else 's'} {spans(numbers)}"


def failures(engines: Iterable[EngineResult]) -> dict[int, str]:
    """Return the errors by engine id."""
    return {each.engine: each.error for each in engines if each.error is not None}


def failure_lines(failures: Mapping[int, str]) -> list[Block]:
    """Return a line for each reason, with the engines that have it."""
    engines: dict[str, list[int]] = {}
    for engine, reason in failures.items():
        engines.setdefault(reason, []).append(engine)
    return [Line.of(f"✗ {engine_ids(ids)}: {reason}", "bad") for reason, ids in engines.items()]


def highest(engines: Sequence[_Each], value: Callable[[_Each], float]) -> list[_Each]:
    """Return all engines, or, of more than `ROWS`, those with the highest value, ordered by id."""
    if len(engines) <= ROWS:
        return list(engines)
    chosen = sorted(engines, key=value, reverse=True)[: ROWS // 2]
    return sorted(chosen, key=lambda each: each.engine)
