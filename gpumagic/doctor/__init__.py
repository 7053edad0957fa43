"""The doctor: findings on why torch can, or cannot, use the GPU, with evidence and remedy.

It neither initialises CUDA nor imports torch in this process: where torch is needed, a child
process or a fork of this one uses it. Each check is a generator that yields its findings, none
where it does not apply; `explanation` is the one line below a cell that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpumagic.cuda import failure
from gpumagic.doctor import build, machine, process
from gpumagic.doctor.diagnosis import Diagnosis, Finding
from gpumagic.doctor.facts import Facts, gather
from gpumagic.selection import gate
from gpumagic.system.text import plural

__all__ = ["diagnose", "judge"]

#: In order of dependence: the driver before torch.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    machine.driver,
    machine.gpus,
    machine.device_files,
    machine.container,
    machine.works_with_nvml,
    machine.pynvml,
    build.torch,
    build.fits_driver,
    machine.toolkit,
    build.kernels,
    process.mask,
    process.too_late,
    process.slow,
    process.cuda,
    process.gate,
    process.start,
    process.threads,
)


def diagnose() -> Diagnosis:
    """Examine the machine, torch and this process; return the report.

    Takes seconds if torch is not loaded, since a child process imports it.
    """
    return judge(gather())


def judge(facts: Facts) -> Diagnosis:
    """Return the verdict, and the findings on which it is based."""
    findings = tuple(found for check in CHECKS for found in check(facts))
    usable, text = _verdict(facts, findings)
    return Diagnosis(text, usable, findings)


#: Why torch cannot use devices that CUDA counts, behind their number.
_LOST, _NO_KERNELS, _BLOCKED = "lost", "without kernels in this torch", "blocked by '--soft'"


def _verdict(facts: Facts, findings: Sequence[Finding]) -> tuple[int | None, str]:
    """Return the number of GPUs that torch can use, None if unknown, and the sentence for it."""
    number = facts.start.count
    if facts.state.failed or failure.dead_context() is not None:
        number = 0
    elif not facts.build.compiled:
        broken = facts.build.error is not None and "not installed" not in facts.build.error
        number = None if broken else 0
    elif number is None:
        reason = facts.start.message or "CUDA could not be tried"
        return None, f"Whether torch can use a GPU here is unknown: {reason}."
    unusable = _unusable(facts, number or 0)
    usable = None if number is None else number - sum(unusable.values())
    if not usable:
        return usable, f"torch cannot use a GPU here, because {_because(facts, findings)}."
    if usable == number:
        return usable, f"torch can use {plural(usable, 'GPU')} here."
    reasons = ", ".join(f"{count} {reason}" for reason, count in unusable.items())
    return usable, f"torch can use {usable} of {number} GPUs here ({reasons})."


def _because(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the first cause of the most severe findings, in their order of dependence."""
    for status in ("bad", "warn", "ok", "unknown"):
        for found in findings:
            if found.status == status and found.cause is not None:
                return found.cause.rstrip(".")
    return facts.start.message or "CUDA finds no device"


def _unusable(facts: Facts, number: int) -> Counter[str]:
    """Return how many of the ``number`` devices that CUDA counts cannot be used, by reason.

    Empty where the table shows other devices than CUDA counts.
    """
    visible = [device for device in facts.table if device.visible]
    if gate.is_closed():
        return Counter({_BLOCKED: number})
    if len(visible) != number:
        return Counter()
    found: Counter[str] = Counter()
    for device in visible:
        kernels = build.kernel(device, facts.build.architectures)
        if device.error is not None and "lost" in device.error:
            found[_LOST] += 1
        elif facts.build.hip is None and kernels is not None and kernels.status == "bad":
            found[_NO_KERNELS] += 1
    return found
