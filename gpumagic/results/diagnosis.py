"""Why the GPU is, or is not, usable: what the doctor found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpumagic.render.blocks import Block, Cell, Line, Style
from gpumagic.results.base import Result, Series

Health = Literal["ok", "warn", "bad", "unknown"]

_STYLES: Mapping[Health, Style] = {"ok": "good", "warn": "warn", "bad": "bad", "unknown": "dim"}
_WORDS: Mapping[Health, str] = {"ok": "ok", "warn": "warn", "bad": "bad", "unknown": "?"}


@dataclass(frozen=True)
class Finding:
    """What the doctor found on one subject."""

    #: For example ``"driver"``, ``"torch"``, ``"GPU 0"``.
    subject: str
    status: Health
    #: What was found, and where.
    evidence: str
    #: What to type or to do; None where nothing is to be done.
    remedy: str | None = None
    #: Why torch cannot use a GPU here, as a clause after "because", if this alone prevents it.
    cause: str | None = None


@dataclass(frozen=True)
class Diagnosis(Series[Finding]):
    """The doctor's report: a verdict, and the findings that it is based on."""

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
        for found in self.findings:
            blocks.append(_finding(found))
            if found.remedy is not None:
                blocks.append(Line((Cell("      → "), Cell(found.remedy, "strong"))))
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


def _finding(found: Finding) -> Line:
    return Line(
        (
            Cell(f"{_WORDS[found.status]:<6}", _STYLES[found.status]),
            Cell(found.subject, "strong"),
            Cell(f": {found.evidence}"),
        )
    )
