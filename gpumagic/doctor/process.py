"""The state of this process: CUDA, the gate, forks, CPU threads."""

from __future__ import annotations

from collections.abc import Iterator

from gpumagic.doctor.facts import Facts
from gpumagic.results import Finding
from gpumagic.system.text import plural

FORK_REMEDY = (
    "start workers by 'spawn' (multiprocessing.set_start_method('spawn'), DataLoader(…, "
    "multiprocessing_context='spawn')), or use CUDA in the parent only after they are started"
)


def forked(facts: Facts) -> Iterator[Finding]:
    """Whether this is the forked child of a process that used CUDA."""
    if facts.bad_fork:
        yield Finding(
            "fork",
            "bad",
            "this process was forked from one in which CUDA was initialised (torch says so)",
            FORK_REMEDY,
            "this process was forked from one in which CUDA was initialised",
        )


def cuda(facts: Facts) -> Finding:
    """Whether CUDA is initialised here, and by whom."""
    state = facts.state
    if state.failed:
        return Finding(
            "this process",
            "bad",
            "CUDA was asked for, failed (as it does while all GPUs are hidden), and remembers that",
            "%gpu on --restart",
            "CUDA has failed in this process, which remembers that",
        )
    if not state.initialized:
        if state.initialized is None:
            return Finding("this process", "unknown", "the driver does not say its state")
        return Finding(
            "this process", "ok", "CUDA is not initialised; the choice of GPUs is still open"
        )
    seen = "" if state.uuids is None else f", sees {plural(len(state.uuids), 'device')}"
    contexts = ", ".join(f"cuda:{ordinal}" for ordinal in state.contexts) or "no device"
    evidence = f"CUDA is initialised{seen}; contexts on {contexts}"
    if facts.culprit is not None:
        evidence += f". {facts.culprit}"
    if state.uuids == ():
        return Finding(
            "this process",
            "bad",
            evidence,
            "%gpu on --restart",
            "CUDA was initialised in this process when no GPU was visible",
        )
    return Finding("this process", "ok", evidence)


def gated(facts: Facts) -> Iterator[Finding]:
    """Whether the gate is closed."""
    if facts.gate is None:
        return
    allowed = ", ".join(f"cuda:{ordinal}" for ordinal in facts.gate_allows) or "no device"
    yield Finding(
        "gate",
        "warn",
        f"closed by '%gpu {facts.gate} --soft': {allowed} allowed",
        "%gpu on",
        None if facts.gate_allows else f"it is gated by '%gpu {facts.gate} --soft'",
    )


def cpu_threads(facts: Facts) -> Finding:
    """Threads against cores: they matter as soon as the GPU is off."""
    if facts.threads is None:
        return Finding("CPU threads", "ok", f"{facts.cores}; torch is not loaded here")
    evidence = f"torch computes with {plural(facts.threads, 'thread')}; {facts.cores}"
    if facts.threads > facts.cores.allowed:
        number = facts.cores.allowed
        return Finding(
            "CPU threads",
            "warn",
            f"{evidence}: they wait for each other",
            f"torch.set_num_threads({number}), or %gpu off --threads {number}",
        )
    return Finding("CPU threads", "ok", evidence)
