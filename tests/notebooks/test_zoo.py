"""The objects of `zoo.ipy`, each in five states, over one restart of a kernel that has them all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.notebooks.runner import KEEP, named
from tests.support.kernels import Kernel

#: The cell that makes the animal number N in all states, the last of which is displayed.
MAKE = """plain_N = MADE
alias_N = again_N = MADE
listed_N = [MADE]; holder_N = Plain(it=listed_N[0])
closed_N = (lambda value: lambda: value)(MADE)
shown_N = MADE
shown_N"""
STATES = ("plain", "alias", "again", "listed", "holder", "closed", "shown")


class Zoo(NamedTuple):
    """The cells that define what the animals need, and the animals: how made, and what holds."""

    cells: list[str]
    kept: list[tuple[str, str]]
    refused: list[tuple[str, str]]


def zoo() -> Zoo:
    text = (Path(__file__).parent / "zoo.ipy").read_text()
    *cells, kept, refused = re.split(r"^# %%.*\n", text, flags=re.MULTILINE)[1:]
    return Zoo(cells, *(list(map(animal, part.splitlines())) for part in (kept, refused)))


def animal(line: str) -> tuple[str, str]:
    made, _, wanted = line.partition("  # ")
    return made, wanted or "same(x, y)"


def test_every_animal_comes_back_as_it_was_or_is_named(kernel: Callable[..., Kernel]) -> None:
    k, (cells, kept, refused) = kernel(), zoo()
    for cell in cells:
        k.run(cell)
    for number, (made, _) in enumerate([*kept, *refused]):
        k.run(MAKE.replace("N", str(number)).replace("MADE", made))
    said = k.run(KEEP, raising=False).shown
    numbers = range(len(kept), len(kept) + len(refused))
    expected = {f"{state}_{number}" for number in numbers for state in STATES}
    assert named(said) == expected
    for number, (_, why) in zip(numbers, refused, strict=True):
        assert re.search(rf"plain_{number}\b[^;]*{why}", said), said
    k.run(f"del {', '.join(sorted(expected))}")
    said = k.run(KEEP).text
    assert "No variable was lost." in said
    asked = [(number, *each) for number, each in enumerate(kept)]
    assert k.run(f"for each in {asked}: print(end=wrong(*each))").stdout == ""
