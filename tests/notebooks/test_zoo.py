"""The objects of `zoo.ipy`, each in five states, over one restart of one kernel that has them all."""

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
#: Prints what is wrong with the animals of LIST, in the new process.
ASK = """def _ask(number, made, wanted):
    same_object = {"alias": globals()[f"again_{number}"], "holder": globals()[f"listed_{number}"][0]}
    for state in STATES:
        x = globals()[f"{state}_{number}"]
        x = {"listed": lambda: x[0], "holder": lambda: x.it, "closed": lambda: x()}.get(state, lambda: x)()
        if state == "again":
            continue
        globals().update(x=x, y=eval(made, globals()))
        try:
            assert x is same_object.get(state, x), "not shared any more"
            assert type(x) is type(globals()["y"]), f"a {type(x)}"
            assert eval(wanted, globals()), f"is {x!r}"
        except Exception as error:
            yield f"{made}, {state}: {type(error).__name__}: {error}"

print(*(line for animal in LIST for line in _ask(*animal)), sep="\\n")"""


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
        k.run(MAKE.replace("MADE", made).replace("N", str(number)))
    said = k.run(KEEP, raising=False).shown
    numbers = range(len(kept), len(kept) + len(refused))
    expected = {f"{state}_{number}" for number in numbers for state in STATES}
    assert named(said) == expected
    for number, (_, why) in zip(numbers, refused, strict=True):
        assert re.search(rf"plain_{number} \([^;]*{why}", said), said
    k.run(f"del {', '.join(sorted(expected))}")
    said = k.run(KEEP).text
    assert "No variable was lost." in said
    asked = ASK.replace("LIST", repr([(n, *each) for n, each in enumerate(kept)]))
    assert k.run(asked.replace("STATES", repr(STATES))).stdout.strip() == ""
