"""Run a notebook of ``pages/``: plain, with all of gpumagic on, and restarted between its cells.

A page is a title, a list of what a restart cannot keep, and cells, divided by ``# %%``. A cell that
begins with ``# %% follows`` uses ``_``: no restart stands before it, which has no outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kernels import Kernel, Reply

PAGES = Path(__file__).parent / "pages"
#: A fresh process with the same GPUs.
KEEP = "%gpu restart"
#: A page says of the variables that no restart can keep: this line may only get shorter.
_LOST = "# A restart loses: "
#: What differs from one process, or one second, to the next.
_UNLIKE = re.compile(
    r"\b0x[0-9a-f]+|ipykernel_\d+/\d+|In ?\[\d+\]|ipython-input-\d+|(CPU times|Wall time): .*"
    r"|[█▏▎▍▌▋▊▉]* *\| .*<\d\d:\d\d, .*\]"
)
#: What a later line of a terminal has written over.
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")
#: What a restart must leave as it was: the type of each variable, and the names of its object.
#: Numbers and the like have no identity that anybody could see.
_LOOK = """{name: (type(value).__name__, isinstance(value, (int, float, complex, str, bytes, tuple))
    or sorted(n for n, other in list(globals().items()) if other is value and n[0] != '_'))
    for name, value in list(globals().items()) if name[0] != '_'}"""
#: Those that have an autograd graph, which no process has after a restart.
_GRAPHS = """[name for name, value in list(globals().items())
    if name[0] != '_' and type(value).__name__ == 'Tensor' and value.grad_fn]"""


@dataclass(frozen=True)
class Page:
    """A notebook: its cells, and the variables of it that no restart can keep."""

    name: str
    lost: frozenset[str]
    cells: tuple[str, ...]
    #: The cells before which a restart may stand.
    places: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> Page:
        """Read a page of ``pages/``."""
        head, *parts = re.split(r"^# %%(.*)\n", path.read_text(), flags=re.MULTILINE)
        lost = [line.removeprefix(_LOST) for line in head.splitlines() if line.startswith(_LOST)]
        kinds = [kind.strip() for kind in parts[::2]]
        assert {*kinds} <= {"", "follows"}, kinds
        places = tuple(n for n, kind in enumerate(kinds) if n and kind != "follows")
        cells = tuple(cell.strip() for cell in parts[1::2])
        return cls(path.stem, frozenset(" ".join(lost).split()), cells, places)

    def cuts(self, number: int | None) -> list[int]:
        """Return the cells before which to restart: so many, evenly spread; None is all."""
        if number is None or number >= len(self.places):
            return [*self.places]
        step = len(self.places) / (number + 1)
        return [self.places[int(step * (each + 1))] for each in range(number)]


def pages() -> list[Path]:
    """Return the files of the notebooks."""
    return sorted(PAGES.glob("*.ipy"))


def run(kernel: Kernel, page: Page, cuts: Sequence[int] = ()) -> Iterator[str]:
    """Run the cells; yield what each shows, in a form that is equal in all processes."""
    folder = kernel.value("__import__('os').getcwd()")
    for number, cell in enumerate(page.cells):
        if number in cuts:
            restart(kernel, page.lost)
        yield shown(kernel.run(cell, raising=False)).replace(folder, "…")


def shown(reply: Reply) -> str:
    """Return all that a user sees below a cell, but for gpumagic's lines, in a form to compare."""
    seen = [reply.status]
    for stream in (reply.stdout, reply.stderr):  # in any number of messages
        seen.append(_OVERWRITTEN.sub("", stream))
    for each in reply.outputs:
        if each["output_type"] == "error":
            seen += each["traceback"]
        elif each["output_type"] != "stream" and not _is_ours(each):
            seen.append(str(each["data"]))
    return _UNLIKE.sub("…", "\n".join(filter(None, seen)))


def _is_ours(output: dict[str, Any]) -> bool:
    text = output["data"].get("text/plain", "")
    return output["output_type"] == "display_data" and text.startswith(("GPU ", "wall "))


def restart(kernel: Kernel, lost: frozenset[str] = frozenset()) -> None:
    """Restart with all variables: those of ``lost`` may be refused, by name, and no others go.

    Raises:
        AssertionError: another is refused, goes without a word, or is not what it was.
    """
    before, graphs = kernel.value(_LOOK), {*kernel.value(_GRAPHS)}
    reply, refused = kernel.run(KEEP, raising=False), frozenset[str]()
    if reply.status == "error":
        refused = named(reply.shown)
        assert refused <= lost, reply.shown
        assert kernel.value(_LOOK) == before
        reply = kernel.run(f"{KEEP} --force")
    assert "restarted" in reply.text, reply.shown
    after = kernel.value(_LOOK)
    gone = before.keys() - after.keys()  # what has ended is dropped, with a word
    assert refused <= gone <= lost, reply.text
    assert ("Lost: " in reply.text) is bool(gone), reply.text
    changed = {name: (before[name], now) for name, now in after.items() if before.get(name) != now}
    assert not changed, reply.text
    without = re.search(r"Without their graph: ([^.]*)\.", reply.text)
    assert graphs - refused <= {*(without[1].split(", ") if without else ())}, reply.text


def named(refusal: str) -> frozenset[str]:
    """Return the variables that a refused restart names."""
    found = re.match(r"UsageError: cannot keep (.*)\. Nothing was lost; add --force ", refusal)
    assert found, refusal
    return frozenset(re.findall(r"(\w+)(?=, \w| \()", re.sub(r" \(.*?\)(?=; |$)", " (", found[1])))
