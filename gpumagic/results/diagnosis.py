"""The doctor's report: why the GPU is, or is not, usable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from gpumagic.render.blocks import Block, Cell, Column, Fold, Grid, Line, Style
from gpumagic.render.units import spans
from gpumagic.results.base import Result, Series
from gpumagic.system.text import noun, plural

Health = Literal["ok", "warn", "bad", "unknown"]

_STYLES: Mapping[Health, Style] = {"ok": "good", "warn": "warn", "bad": "bad", "unknown": "dim"}
_SIGNS: Mapping[Health, str] = {"ok": "✓", "warn": "!", "bad": "✗", "unknown": "?"}
_COLUMNS = (Column(""), Column("Check"), Column("Found", least=24, wrap=True))
_TO_DO = Column("To do", least=24, wrap=True)


@dataclass(frozen=True)
class Finding:
    """A finding of the doctor on one subject."""

    #: For example ``"driver"``, ``"torch"``, ``"GPU 0"``.
    subject: str
    status: Health
    #: The state that was found, and its source.
    evidence: str
    #: What to type or to do; None where nothing needs to be done.
    remedy: str | None = None
    #: Why torch cannot use a GPU here, as a clause after "because", if this alone prevents it.
    cause: str | None = None


@dataclass(frozen=True)
class Diagnosis(Series[Finding]):
    """The doctor's report: a verdict, and the findings on which it is based."""

    items_in: ClassVar[str] = "findings"

    #: One sentence: what torch can use here, or why it cannot.
    verdict: str
    #: The number of GPUs that torch can use in this process, as verified; None where not known.
    usable: int | None = None
    findings: tuple[Finding, ...] = ()

    def about(self, subject: str) -> Finding | None:
        """Return the finding on a subject, or None if there is none."""
        return next((found for found in self.findings if found.subject == subject), None)

    def _blocks(self) -> list[Block]:
        tone: Style = "dim" if self.usable is None else "good" if self.usable else "bad"
        blocks: list[Block] = [Line.of(self.verdict, tone)]
        merged = _merged(self.findings)
        wrong = [f for status in ("bad", "warn") for f in merged if f.status == status]
        if wrong:
            rows = [[*_row(found), _remedy(found)] for found in wrong]
            blocks.append(Grid((*_COLUMNS, _TO_DO), rows))
        for status, what in (("unknown", "not known"), ("ok", "passed")):
            if rest := [found for found in merged if found.status == status]:
                number = sum(found.status == status for found in self.findings)
                summary = f"{_SIGNS[rest[0].status]} {plural(number, 'check')} {what}"
                if status == "unknown":
                    summary += f": {', '.join(found.subject for found in rest)}"
                rows = [[*_row(found), _remedy(found)] for found in rest]
                to_do = any(found.remedy for found in rest)
                if not to_do:
                    rows = [row[:-1] for row in rows]
                blocks.append(Fold(summary, [Grid((*_COLUMNS, *[_TO_DO] * to_do), rows)]))
        return blocks

    def __repr__(self) -> str:
        worst = [found.subject for found in self.findings if found.status in ("warn", "bad")]
        return f"<Diagnosis: {self.verdict} To look at: {', '.join(worst) or 'nothing'}>"


@dataclass(frozen=True)
class Explanation(Result):
    """One line on why a cell failed."""

    text: str

    def _blocks(self) -> list[Block]:
        return [Line.of(self.text, "dim")]

    def __repr__(self) -> str:
        return f"<Explanation: {self.text}>"


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those that are the same for several GPUs become one."""
    same: dict[Finding, list[int]] = {}
    for found in findings:
        device = re.fullmatch(r"GPU (\d+)(.*)", found.subject)
        alike = found if device is None else replace(found, subject=device[2])
        same.setdefault(alike, []).extend([] if device is None else [int(device[1])])
    return [
        replace(found, subject=f"{noun(len(numbers), 'GPU')} {spans(numbers)}{found.subject}")
        if numbers
        else found
        for found, numbers in same.items()
    ]


def _row(found: Finding) -> list[Cell]:
    return [
        Cell(_SIGNS[found.status], _STYLES[found.status]),
        Cell(found.subject, "strong"),
        Cell(found.evidence),
    ]


def _remedy(found: Finding) -> Cell:
    remedy = found.remedy or ""
    return Cell(remedy, "command" if remedy.startswith("%") else "")
