"""Why the GPU is, or is not, usable here: what the doctor found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gpumagic.results.base import Result, Series

Health = Literal["ok", "warn", "bad", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at."""

    #: What was looked at, for example ``"driver"``, ``"torch"``, ``"GPU 0"``.
    subject: str
    status: Health
    #: What was read, and where.
    evidence: str
    #: What to type or to do; None where there is nothing to be done.
    remedy: str | None = None
    #: Why torch cannot use a GPU here, as a clause after "because", if this alone prevents it.
    cause: str | None = None


@dataclass(frozen=True)
class Diagnosis(Series[Finding]):
    """The doctor's report: a verdict, and what it rests on: a sequence of `Finding`."""

    items_in: ClassVar[str] = "findings"

    #: One sentence: what torch can use here, or why it cannot.
    verdict: str
    #: How many GPUs torch can use in this process, as far as it was verified; None where not known.
    usable: int | None = None
    findings: tuple[Finding, ...] = ()

    def about(self, subject: str) -> Finding | None:
        """The finding on a subject, or None if nothing was found on it."""
        return next((found for found in self.findings if found.subject == subject), None)

    def __repr__(self) -> str:
        worst = [found.subject for found in self.findings if found.status in ("warn", "bad")]
        return f"<Diagnosis: {self.verdict} To look at: {', '.join(worst) or 'nothing'}>"


@dataclass(frozen=True)
class Explanation(Result):
    """One line on why a cell failed."""

    text: str

    def __repr__(self) -> str:
        return f"<Explanation: {self.text}>"
