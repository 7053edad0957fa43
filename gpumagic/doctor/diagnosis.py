"""The doctor's report: why the GPU is, or is not, usable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpumagic.render.blocks import Block, Column, Fold, Grid, Line, Style, Styled
from gpumagic.results.base import Series
from gpumagic.wording import plural

Health = Literal["ok", "warn", "bad", "unknown"]

_STYLES: Mapping[Health, Style] = {"ok": "good", "warn": "warn", "bad": "bad", "unknown": "dim"}
_SIGNS: Mapping[Health, str] = {"ok": "✓", "warn": "!", "bad": "✗", "unknown": "?"}


@dataclass(frozen=True)
class Finding:
    """A finding of the doctor on one subject."""

    #: For example ``"driver"``, ``"torch"``, ``"kernels"``.
    subject: str
    status: Health
    #: The state that was found, and its source.
    evidence: str
    #: What to type or to do; None where nothing needs to be done.
    remedy: str | None = None
    #: Why torch cannot use a GPU here, as a clause after "because", if this alone prevents it.
    cause: str | None = None


@dataclass(frozen=True, repr=False)
class Diagnosis(Series[Finding]):
    """The doctor's report: a verdict, and the findings on which it is based."""

    #: One sentence: what torch can use here, or why it cannot.
    verdict: str
    #: The number of GPUs that torch can use in this process, as verified; None where not known.
    usable: int | None = None
    findings: tuple[Finding, ...] = ()

    _sequence = "findings"

    def about(self, subject: str) -> Finding | None:
        """Return the finding on a subject, or None if there is none."""
        return next((found for found in self.findings if found.subject == subject), None)

    def _with_status(self, *statuses: Health) -> list[Finding]:
        return [found for status in statuses for found in self if found.status == status]

    def _blocks(self) -> Iterator[Block]:
        """Yield the verdict and what is wrong; what is not is folded."""
        yield Line.of(self.verdict, self._tone())
        yield _grid(self._with_status("bad", "warn"))
        if unknown := self._with_status("unknown"):
            subjects = ", ".join(found.subject for found in unknown)
            summary = f"? {plural(len(unknown), 'check')} not known: {subjects}"
            yield Fold(Line.of(summary), [_grid(unknown)], in_text=True)
        if passed := self._with_status("ok"):
            summary = f"✓ {plural(len(passed), 'check')} passed"
            yield Fold(Line.of(summary), [_grid(passed)], in_text=True)

    def _tone(self) -> Style:
        """Return the style of the verdict: good only if no finding is bad."""
        if not self.usable:
            return "dim" if self.usable is None else "bad"
        return "warn" if self._with_status("bad") else "good"


def _grid(findings: Sequence[Finding]) -> Grid:
    return Grid.of(
        findings,
        Column("", lambda found: Styled(_SIGNS[found.status], _STYLES[found.status])),
        Column("Check", lambda found: Styled(found.subject, "strong")),
        Column("Found", lambda found: found.evidence, least=24, wrap=True),
        # NVIDIA_DRIVER_CAPABILITIES stays whole.
        Column("To do", lambda found: _to_do(found.remedy or ""), least=27, wrap=True),
    )


def _to_do(remedy: str) -> Styled:
    return Styled(remedy, "command" if remedy.startswith("%") else "")
