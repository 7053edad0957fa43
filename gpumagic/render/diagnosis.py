"""The doctor's report, and the line below a cell that failed, as blocks."""

from __future__ import annotations

from collections.abc import Mapping

from gpumagic.render.blocks import Block, Cell, Line, Style
from gpumagic.results import Diagnosis, Explanation, Finding, Health

_STYLES: Mapping[Health, Style] = {"ok": "good", "warn": "warn", "bad": "bad", "unknown": "dim"}
_WORDS: Mapping[Health, str] = {"ok": "ok", "warn": "warn", "bad": "bad", "unknown": "?"}


def diagnosis(result: Diagnosis) -> list[Block]:
    """The verdict, then each finding with its evidence, and below it what to do."""
    tone: Style = "dim" if result.usable is None else "good" if result.usable else "bad"
    blocks: list[Block] = [Line.of(result.verdict, tone)]
    for found in result.findings:
        blocks.append(_finding(found))
        if found.remedy is not None:
            blocks.append(Line((Cell("      → "), Cell(found.remedy, "strong"))))
    return blocks


def _finding(found: Finding) -> Line:
    return Line(
        (
            Cell(f"{_WORDS[found.status]:<6}", _STYLES[found.status]),
            Cell(found.subject, "strong"),
            Cell(f": {found.evidence}"),
        )
    )


def explanation(result: Explanation) -> list[Block]:
    """One line that steps back behind the traceback."""
    return [Line.of(result.text, "dim")]
