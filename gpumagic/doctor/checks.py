"""The checks in their order, and the verdict on what they have found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.doctor import build, machine, process
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.doctor.facts import Facts
from gpumagic.selection import soft_off
from gpumagic.wording import plural

#: In order of dependence: the driver before torch.
CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    machine.driver,
    machine.gpus,
    machine.device_files,
    machine.works_with_nvml,
    build.torch,
    build.fits_driver,
    build.kernels,
    process.mask,
    process.variables,
    process.cuda,
    process.start,
)


def judge(facts: Facts) -> Diagnosis:
    """Return the verdict, and the findings on which it is based."""
    findings = tuple(found for check in CHECKS if (found := check(facts)) is not None)
    usable, text = _verdict(facts, findings)
    if facts.table.where is not None:
        text += f" {facts.table.where}."
    return Diagnosis(text, usable, findings)


def _verdict(facts: Facts, findings: Sequence[Finding]) -> tuple[int | None, str]:
    """Return the number of GPUs that torch can use, None if unknown, and the sentence for it."""
    number = facts.start.count
    if facts.state.failed or STATE.dead_context is not None or soft_off.is_closed():
        number = 0
    elif not facts.build.compiled:
        broken = facts.build.error is not None and not facts.build.missing
        number = None if broken else 0
    elif number is None:
        reason = facts.start.message or "CUDA could not be tried"
        return None, f"Whether torch can use a GPU here is unknown: {reason}."
    unusable = _unusable(facts) if number else {}
    usable = None if number is None else number - sum(unusable.values())
    if not usable:
        return usable, f"torch cannot use a GPU here, because {_because(facts, findings)}."
    reasons = ", ".join(f"{count} {reason}" for reason, count in unusable.items() if count)
    by = torch_cuda.replaced_is_available()
    if by is not None:
        hidden = f"but torch.cuda.is_available was replaced by {by}: code that asks it goes by that"
        return usable, f"torch can use {plural(usable, 'GPU')} here, {hidden}."
    if not reasons:
        return usable, f"torch can use {plural(usable, 'GPU')} here."
    return usable, f"torch can use {usable} of {number} GPUs here ({reasons})."


def _because(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the first cause of the most severe findings, in their order of dependence."""
    for status in ("bad", "warn", "ok", "unknown"):
        for found in findings:
            if found.status == status and found.cause is not None:
                return found.cause.rstrip(".")
    return facts.start.message or "CUDA finds no device"


def _unusable(facts: Facts) -> dict[str, int]:
    """Return how many of the devices that CUDA counts cannot be used, by reason.

    Empty where the table shows other devices than CUDA counts.
    """
    visible = [device for device in facts.table if device.visible]
    if len(visible) != facts.start.count:
        return {}
    lost = [device for device in visible if device.lost]
    lacking = [device for device in build.without_kernels(facts) if device not in lost]
    return {"lost": len(lost), "without kernels in this torch": len(lacking)}
