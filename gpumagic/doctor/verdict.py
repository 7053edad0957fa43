"""State how many GPUs torch can use here, or why none; only what was verified."""

from __future__ import annotations

from collections.abc import Sequence

from gpumagic.doctor.build import runs_on
from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding
from gpumagic.system.text import plural


def verdict(facts: Facts, findings: Sequence[Finding]) -> tuple[int | None, str]:
    """Return the number of GPUs that torch can use, None if unknown, and the sentence for it."""
    unusable = facts.state.failed or facts.context_failure is not None
    if unusable or (facts.gate is not None and not facts.gate_allows):
        number: int | None = 0
    elif not facts.build.compiled:
        number = 0 if facts.build.error is None or "not installed" in facts.build.error else None
    else:
        number = facts.start.count
    if number is None:
        if facts.build.error is not None:
            return None, f"torch cannot use a GPU here, because {_because(facts, findings)}."
        reason = facts.start.message or "CUDA could not be tried"
        return None, f"Whether torch can use a GPU here is unknown: {reason}."
    unfit = _unfit(facts, number)
    if facts.gate_allows and number:
        number = len(facts.gate_allows)
        return (
            number,
            f"torch can use {plural(number, 'GPU')} here: '--soft' blocks the others.",
        )
    if number > unfit:
        more = f"; it has no kernels for {plural(unfit, 'more GPU')}" if unfit else ""
        return number - unfit, f"torch can use {plural(number - unfit, 'GPU')} here{more}."
    return 0, f"torch cannot use a GPU here, because {_because(facts, findings)}."


def _because(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the first cause of the most severe findings, in their order of dependence."""
    for status in ("bad", "warn", "ok", "unknown"):
        for found in findings:
            if found.status == status and found.cause is not None:
                return found.cause.rstrip(".")
    return facts.start.message or "CUDA finds no device"


def _unfit(facts: Facts, number: int) -> int:
    """Return the number of visible devices for which torch has no kernels; 0 if not known."""
    visible = [device for device in facts.table if device.visible]
    if len(visible) != number or not facts.build.architectures or facts.build.hip is not None:
        return 0
    return sum(
        device.compute_capability is not None
        and not runs_on(device.compute_capability, facts.build.architectures)
        for device in visible
    )
