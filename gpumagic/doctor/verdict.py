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
    without_kernels, lost = _unusable(facts, number)
    if facts.gate_allows and number:
        number = len(facts.gate_allows)
        return (
            number,
            f"torch can use {plural(number, 'GPU')} here: '--soft' blocks the others.",
        )
    usable = number - without_kernels - lost
    if usable <= 0:
        return 0, f"torch cannot use a GPU here, because {_because(facts, findings)}."
    if usable == number:
        return number, f"torch can use {plural(number, 'GPU')} here."
    reasons = [f"it has no kernels for {without_kernels}"] * bool(without_kernels)
    reasons += [f"{lost} {'is' if lost == 1 else 'are'} lost"] * bool(lost)
    return usable, f"torch can use {usable} of {number} GPUs here: {', '.join(reasons)}."


def _because(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the first cause of the most severe findings, in their order of dependence."""
    for status in ("bad", "warn", "ok", "unknown"):
        for found in findings:
            if found.status == status and found.cause is not None:
                return found.cause.rstrip(".")
    return facts.start.message or "CUDA finds no device"


def _unusable(facts: Facts, number: int) -> tuple[int, int]:
    """Return the numbers of visible devices without kernels in torch, and of lost ones.

    CUDA counts both; 0 where not known.
    """
    visible = [device for device in facts.table if device.visible]
    if len(visible) != number:
        return 0, 0
    lost = sum(device.error is not None and "lost" in device.error for device in visible)
    if not facts.build.architectures or facts.build.hip is not None:
        return 0, lost
    known = [d.compute_capability for d in visible if d.error is None and d.compute_capability]
    return sum(not runs_on(each, facts.build.architectures) for each in known), lost
