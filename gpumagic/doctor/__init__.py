"""The doctor: findings on why torch can, or cannot, use the GPU, with evidence and remedy.

It neither initialises CUDA nor imports torch in this process: where torch is needed, a child
process or a fork of this one uses it. `facts` reads all data; each other module judges one subject
by these data alone.
"""

from __future__ import annotations

from gpumagic.doctor import build, environment, machine, packages, process, verdict
from gpumagic.doctor.facts import Facts, gather
from gpumagic.results import Diagnosis

__all__ = ["diagnose", "judge"]


def diagnose() -> Diagnosis:
    """Examine the machine, torch and this process; return the report.

    Takes seconds if torch is not loaded, since a child process imports it.
    """
    return judge(gather())


def judge(facts: Facts) -> Diagnosis:
    """Return the verdict and the findings, ordered by dependence: the driver before torch."""
    findings = (
        machine.driver(facts),
        machine.cuda(facts),
        *machine.devices(facts),
        *machine.device_files(facts),
        *machine.container(facts),
        *machine.nvml(facts),
        *packages.pynvml(facts),
        build.torch(facts),
        *build.fits_driver(facts),
        *build.toolkit(facts),
        *build.kernels(facts),
        *environment.variables(facts),
        *process.forked(facts),
        process.cuda(facts),
        *process.gated(facts),
        *build.starts(facts),
        process.cpu_threads(facts),
    )
    usable, text = verdict.verdict(facts, findings)
    return Diagnosis(text, usable, findings)
