"""Check this process: the environment variables, CUDA, the gate, CPU threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpumagic.cuda import failure, init_trace, torch_cuda, visible_devices
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.selection import cpu_threads
from gpumagic.selection import gate as closed_gate
from gpumagic.system.text import plural

FORK_REMEDY = (
    "start workers by 'spawn' (multiprocessing.set_start_method('spawn'), DataLoader(…, "
    "multiprocessing_context='spawn')), or use CUDA in the parent only after they are started"
)
#: Variables that are read when CUDA is initialised, and by ``import torch``.
_AT_INIT = (visible_devices.ORDER, "CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel, which is slow",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver, which is slow",
}


def mask(facts: Facts) -> Iterator[Finding]:
    """Check which GPUs ``CUDA_VISIBLE_DEVICES`` shows, and whether it was read in time."""
    name, table = visible_devices.MASK, facts.table
    value = os.environ.get(name)
    evidence = "not set" if value is None else f"'{value}'"
    wanted = visible_devices.view(visible_devices.variables(os.environ), table).visible
    started = facts.state.initialized or facts.state.failed
    if not table:
        yield Finding(name, "ok", evidence)
        return
    if wanted is None or (started and any(device.visible is None for device in table)):
        yield Finding(name, "unknown", f"{evidence}; the driver does not report what it shows")
        return
    evidence += f", shows {len(wanted)} of {plural(len(table), 'GPU')}"
    seen = {device.index for device in table if device.visible}
    if started and seen != wanted:
        shown = ", ".join(f"GPU {index}" for index in sorted(seen)) or "no GPU"
        evidence += f": too late, this process sees {shown}"
        remedy = "%gpu SPEC --restart, or restart the kernel and select before CUDA is used"
        yield Finding(name, "warn", evidence, remedy)
    elif started:
        yield Finding(name, "ok", f"{evidence}, in time: this process sees them")
    elif wanted:
        yield Finding(name, "ok", f"{evidence}, not yet read")
    else:
        cause = f"every GPU is hidden from this process: {name}={value}"
        yield Finding(name, "bad", evidence, "%gpu on", cause)


def too_late(_: Facts) -> Iterator[Finding]:
    """Check whether variables were changed after they were read, as far as that was observed."""
    then, settings = init_trace.environment_then(), torch_cuda.allocator_settings()
    read = {} if then is None else {name: then.get(name) for name in _AT_INIT}
    given = [name for name in _ALLOCATOR if name in os.environ]  # the newer takes precedence
    if given and settings is not None:
        read[given[0]] = settings
    for name, value in read.items():
        now = os.environ.get(name)
        if (now or "") != (value or ""):
            evidence = f"{_quoted(now)} now: too late, it was read as {_quoted(value)}"
            moment = "'import torch'" if name in _ALLOCATOR else "CUDA is used"
            remedy = f"restart the kernel and set it before {moment}"
            yield Finding(name, "warn", evidence, remedy)


def _quoted(value: str | None) -> str:
    return f"'{value}'" if value else "not set"


def slow(_: Facts) -> Iterator[Finding]:
    """Warn of variables that make CUDA slow."""
    for name, effect in _SLOW.items():
        value = os.environ.get(name)
        if value and value != "0":
            yield Finding(name, "warn", f"'{value}': {effect}", "unset it and restart the kernel")


def cuda(facts: Facts) -> Iterator[Finding]:
    """Check CUDA in this process: forked, failed, dead, initialised (and where), or not."""
    state, subject = facts.state, "this process"
    dead, location = failure.check_context(), init_trace.location()
    if torch_cuda.in_bad_fork():
        cause = "this process was forked from one in which CUDA was initialised"
        yield Finding("fork", "bad", f"{cause} (reported by torch)", FORK_REMEDY, cause)
    if state.failed:
        cause = failure.start_cause()
        yield Finding(subject, "bad", cause, "%gpu on --restart", cause)
    elif dead is not None:
        cause = f"CUDA has failed in this process ({dead})"
        remedy = "%gpu reset --restart --keep all"
        yield Finding(subject, "bad", f"{cause}, which lasts until it ends", remedy, cause)
    elif state.initialized is None:
        yield Finding(subject, "unknown", "the driver does not report its state")
    elif not state.initialized:
        evidence = "CUDA is not initialised; the GPUs can still be selected"
        yield Finding(subject, "ok", evidence)
    else:
        count = "" if state.uuids is None else f", sees {plural(len(state.uuids), 'device')}"
        contexts = ", ".join(f"cuda:{ordinal}" for ordinal in state.contexts) or "no device"
        where = "" if location is None else f". {location}"
        evidence = f"CUDA is initialised{count}; contexts on {contexts}{where}"
        if state.uuids == ():
            cause = "CUDA was initialised in this process when no GPU was visible"
            yield Finding(subject, "bad", evidence, "%gpu on --restart", cause)
        else:
            yield Finding(subject, "ok", evidence)


def gate(_: Facts) -> Iterator[Finding]:
    """Report a closed gate (``%gpu off --soft``)."""
    if closed_gate.is_closed():
        command = "'%gpu off --soft'"
        evidence = f"closed: {command} allows no device"
        yield Finding("gate", "warn", evidence, "%gpu on", f"{command} blocks it")


def start(facts: Facts) -> Iterator[Finding]:
    """Check that CUDA starts, without initialising it in this process."""
    if not facts.build.compiled or torch_cuda.in_bad_fork():
        return
    copied = facts.torch_loaded and not facts.state.initialized
    how = "a copy of this process" if copied else facts.torch_in
    subject, count, reason = "start of CUDA", facts.start.count, facts.start.reason
    if count:
        found = plural(count, "device")
        yield Finding(subject, "ok", f"torch's CUDA runtime starts and finds {found} (in {how})")
    elif count is None:
        evidence = f"not tried: {reason}" if reason else "could not be tried"
        yield Finding(subject, "unknown", evidence)
    else:
        evidence = f"finds no device (in {how})" + (f": {reason}" if reason else "")
        expected = any(device.visible for device in facts.table)
        cause, remedy = reason, None
        if expected and not reason and not facts.state.initialized:
            cause = "CUDA finds no device, although the environment variables show some"
            remedy = "restart the kernel: a failed start of CUDA lasts until the process ends"
        hidden = facts.table and not expected
        yield Finding(subject, "ok" if hidden else "bad", evidence, remedy, cause)


def threads(_: Facts) -> Iterator[Finding]:
    """Compare torch's CPU threads with the allowed cores."""
    number, cores = torch_cuda.cpu_threads(), cpu_threads.cores()
    if number is None:
        yield Finding("CPU threads", "ok", f"{cores}; torch is not loaded here")
        return
    evidence = f"torch computes with {plural(number, 'thread')}; {cores}"
    if number <= cores.allowed:
        yield Finding("CPU threads", "ok", evidence)
    else:
        remedy = f"torch.set_num_threads({cores.allowed}), or %gpu off --threads {cores.allowed}"
        yield Finding("CPU threads", "warn", f"{evidence}: more threads than cores", remedy)
