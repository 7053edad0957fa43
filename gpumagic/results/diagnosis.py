"""The doctor's report: why the GPU is, or is not, usable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from gpumagic.render.blocks import Block, Cell, Column, Fold, Grid, Line, Style
from gpumagic.render.units import spans
from gpumagic.results.base import Result, Series
from gpumagic.system.text import listed, noun, plural

Health = Literal["ok", "warn", "bad", "unknown"]

_STYLES: Mapping[Health, Style] = {"ok": "good", "warn": "warn", "bad": "bad", "unknown": "dim"}
_SIGNS: Mapping[Health, str] = {"ok": "✓", "warn": "!", "bad": "✗", "unknown": "?"}
_COLUMNS = (Column(""), Column("Check"), Column("Found", least=24, wrap=True))
_TO_DO = Column("To do", least=24, wrap=True)
#: The most names of devices that are shown of findings that are the same for several.
_NAMES = 2


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
    #: The device's name, where the finding is on one.
    name: str | None = None


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
        blocks: list[Block] = [Line.of(self.verdict, self._tone())]
        merged = _merged(self.findings)
        wrong = [f for status in ("bad", "warn") for f in merged if f.status == status]
        if wrong:
            blocks.append(Grid((*_COLUMNS, _TO_DO), _rows(wrong)))
        for status, what in (("unknown", "not known"), ("ok", "passed")):
            if rest := [found for found in merged if found.status == status]:
                number = sum(found.status == status for found in self.findings)
                summary = f"{_SIGNS[rest[0].status]} {plural(number, 'check')} {what}"
                if status == "unknown":
                    summary += f": {', '.join(found.subject for found in rest)}"
                rows = _rows(rest)
                to_do = any(found.remedy for found in rest)
                if not to_do:
                    rows = [row[:-1] for row in rows]
                blocks.append(Fold(summary, [Grid((*_COLUMNS, *[_TO_DO] * to_do), rows)]))
        return blocks

    def _tone(self) -> Style:
        """Return the style of the verdict: good only if no finding is bad."""
        if not self.usable:
            return "dim" if self.usable is None else "bad"
        return "warn" if any(found.status == "bad" for found in self.findings) else "good"

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


class _Check(NamedTuple):
    """What is found on one subject, or on several alike."""

    subject: str
    status: Health
    evidence: str
    remedy: str | None
    #: Names of devices, each once.
    names: tuple[str, ...]


def _merged(findings: Sequence[Finding]) -> list[_Check]:
    """Return what is found; what is the same for several subjects becomes one."""
    alike: dict[tuple[Health, str, str | None], list[Finding]] = {}
    for found in findings:
        alike.setdefault((found.status, found.evidence, found.remedy), []).append(found)
    return [
        _Check(
            _subjects([each.subject for each in same]),
            *key,
            names=tuple(dict.fromkeys(each.name for each in same if each.name is not None)),
        )
        for key, same in alike.items()
    ]


def _subjects(subjects: Sequence[str]) -> str:
    """Return subjects as one: ``GPUs 0–2 and torch``."""  # noqa: RUF002
    #: What follows the GPUs' indexes, or is no GPU, and the indexes.
    parts: dict[str, list[int]] = {}
    for subject in subjects:
        device = re.fullmatch(r"GPU (\d+)(.*)", subject)
        parts.setdefault(subject if device is None else device[2], []).extend(
            [] if device is None else [int(device[1])]
        )
    named = [
        f"{noun(len(numbers), 'GPU')} {spans(numbers)}{rest}" if numbers else rest
        for rest, numbers in parts.items()
    ]
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))


def _rows(checks: Sequence[_Check]) -> list[list[Cell]]:
    """Return a row for each; a remedy that is that of an earlier one refers to it."""
    first: dict[str, str] = {}
    rows = []
    for check in checks:
        remedy = check.remedy or ""
        earlier = first.setdefault(remedy, check.subject)
        repeated = bool(remedy) and earlier != check.subject
        rows.append(
            [
                Cell(_SIGNS[check.status], _STYLES[check.status]),
                Cell(check.subject, "strong"),
                _found(check),
                Cell(f"as for {earlier}", "dim") if repeated else _remedy(remedy),
            ]
        )
    return rows


def _found(check: _Check) -> Cell:
    """Return the evidence, after the devices' names; all of these are shown on hover."""
    if not check.names:
        return Cell(check.evidence)
    text = f"{listed(check.names, _NAMES)}: {check.evidence}"
    return Cell(text, whole=f"{', '.join(check.names)}: {check.evidence}")


def _remedy(remedy: str) -> Cell:
    return Cell(remedy, "command" if remedy.startswith("%") else "")
