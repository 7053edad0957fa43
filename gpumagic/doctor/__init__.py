"""The doctor: why the GPU is, or is not, usable here, each finding with evidence and remedy.

Initialises no CUDA in this process and imports no torch: what only torch can tell is asked in a
child process, or in a forked copy of this one. `facts` gathers, `diagnose` judges; each module
judges one subject, from the facts alone.
"""

from __future__ import annotations

from gpumagic.doctor import build, environment, machine, packages, process, verdict
from gpumagic.doctor.facts import Facts, gather
from gpumagic.results import Diagnosis

__all__ = ["diagnose", "judge"]


def diagnose() -> Diagnosis:
    """Examine the machine, torch and this process. Takes some seconds if torch is not loaded."""
    return judge(gather())


def judge(facts: Facts) -> Diagnosis:
    """The verdict and the findings, in the order in which things depend on each other."""
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
