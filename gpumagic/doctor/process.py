"""Check this process: CUDA, the gate, forks, CPU threads."""

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
    """Check that this is no forked child of a process that used CUDA."""
    if facts.bad_fork:
        yield Finding(
            "fork",
            "bad",
            "this process was forked from one in which CUDA was initialised (reported by torch)",
            FORK_REMEDY,
            "this process was forked from one in which CUDA was initialised",
        )


def cuda(facts: Facts) -> Finding:
    """Return the finding on CUDA in this process: initialised, where, or failed."""
    state = facts.state
    if state.failed:
        return Finding(
            "this process",
            "bad",
            "CUDA failed to start, as it does while all GPUs are hidden; that lasts until the "
            "process ends",
            "%gpu on --restart",
            "CUDA failed to start in this process, which lasts until the process ends",
        )
    if facts.context_failure is not None:
        over = f"CUDA has failed: {facts.context_failure}; that lasts until the process ends"
        return Finding(
            "this process",
            "bad",
            over,
            "%gpu reset --restart --keep all; --blocking to find the line that fails",
            f"CUDA has failed in this process: {facts.context_failure}",
        )
    if not state.initialized:
        if state.initialized is None:
            return Finding("this process", "unknown", "the driver does not report its state")
        return Finding(
            "this process", "ok", "CUDA is not initialised; the GPUs can still be selected"
        )
    count = "" if state.uuids is None else f", sees {plural(len(state.uuids), 'device')}"
    contexts = ", ".join(f"cuda:{ordinal}" for ordinal in state.contexts) or "no device"
    evidence = f"CUDA is initialised{count}; contexts on {contexts}"
    if facts.initialized_at is not None:
        evidence += f". {facts.initialized_at}"
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
    """Report an active gate (``%gpu … --soft``)."""
    if facts.gate is None:
        return
    allowed = ", ".join(f"cuda:{ordinal}" for ordinal in facts.gate_allows) or "no device"
    yield Finding(
        "gate",
        "warn",
        f"active: '%gpu {facts.gate} --soft' allows {allowed}",
        "%gpu on",
        None if facts.gate_allows else f"'%gpu {facts.gate} --soft' blocks it",
    )


def cpu_threads(facts: Facts) -> Finding:
    """Compare torch's CPU threads with the allowed cores."""
    if facts.threads is None:
        return Finding("CPU threads", "ok", f"{facts.cores}; torch is not loaded here")
    evidence = f"torch computes with {plural(facts.threads, 'thread')}; {facts.cores}"
    if facts.threads > facts.cores.allowed:
        number = facts.cores.allowed
        return Finding(
            "CPU threads",
            "warn",
            f"{evidence}: more threads than cores",
            f"torch.set_num_threads({number}), or %gpu off --threads {number}",
        )
    return Finding("CPU threads", "ok", evidence)
