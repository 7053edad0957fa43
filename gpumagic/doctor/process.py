"""Check this process: the environment variables, CUDA, the gate."""

from __future__ import annotations

import os

from gpumagic.cuda import dead_context, init_failure, start_errors, visible_devices
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.cuda.visible_devices import View
from gpumagic.doctor.diagnosis import Finding
from gpumagic.doctor.facts import Facts
from gpumagic.render.units import spans
from gpumagic.selection import soft_off
from gpumagic.wording import plural

FORK_REMEDY = (
    "start workers by 'spawn' (multiprocessing.set_start_method('spawn'), DataLoader(…, "
    "multiprocessing_context='spawn')), or fork in a process that has not used CUDA: %gpu restart"
)

#: Variables that are read when CUDA is initialised, and by ``import torch``.
_AT_INIT = ("CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_SLOW = {"CUDA_LAUNCH_BLOCKING": "the host waits for every GPU kernel, which is slow"}


def mask(facts: Facts) -> Finding:
    """Check which GPUs ``CUDA_VISIBLE_DEVICES`` shows, and whether it was read in time."""
    name, table = visible_devices.MASK, facts.table
    value = os.environ.get(name)
    evidence = "not set" if value is None else f"'{value}'"
    if not table:
        return Finding(name, "ok", evidence)
    wanted = visible_devices.view(os.environ, table)
    seen = frozenset(device.index for device in table if device.visible)
    if wanted.visible is None or (facts.started and any(each.visible is None for each in table)):
        return Finding(name, "unknown", f"{evidence}; the driver does not report what it shows")
    evidence += f", shows {len(wanted.visible)} of {plural(len(table), 'GPU')}"
    if facts.started and not wanted.fits(View(tuple(d.index for d in table.visible), seen)):
        evidence += f": too late, this process sees {f'GPU {spans(seen)}' if seen else 'no GPU'}"
        return Finding(name, "warn", evidence, f"%gpu SPEC{facts.restart}")
    end = visible_devices.list_ends_at({name: value or ""}, table)
    if not wanted.visible and value is not None:
        cause = end or f"every GPU is hidden from this process: {name}={value}"
        return Finding(name, "bad", evidence, f"%gpu on{facts.restart}", cause)
    if end is not None:
        return Finding(name, "bad", f"{evidence}. {end}", f"%gpu SPEC{facts.restart}")
    return Finding(name, "ok", f"{evidence}, {'in time' if facts.started else 'not yet read'}")


def variables(_: Facts) -> Finding | None:
    """Warn of variables that were changed after they were read, and of ones that make CUDA slow."""
    then, settings = STATE.init_environment(), allocator.settings()
    read = {} if then is None else {name: then.get(name) for name in _AT_INIT}
    given = [name for name in _ALLOCATOR if name in os.environ]  # the newer takes precedence
    if given and settings is not None:
        read[given[0]] = settings
    now = os.environ.get
    found = [
        f"{name} is {now(name) or 'not set'}: too late, it was read as {value or 'not set'}"
        for name, value in read.items()
        if (now(name) or "") != (value or "")
    ]
    found += [
        f"{name}: {effect}" for name, effect in _SLOW.items() if now(name, "0") not in ("", "0")
    ]
    if (name := allocator.UNCACHED) in os.environ:  # torch does not look at the value
        found.append(f"{name}: every tensor is allocated by the driver, which is slow")
    remedy = "restart the notebook process, and set or unset them before torch is imported"
    return Finding("variables", "warn", "; ".join(found), remedy) if found else None


def cuda(facts: Facts) -> Finding:
    """Check CUDA in this process: gated, forked, failed, dead, initialised (and where), or not."""
    state, dead, subject = facts.state, dead_context.check(), "this process"
    if soft_off.is_closed():
        cause = "'%gpu off --soft' blocks it"
        return Finding(subject, "warn", cause, "%gpu on", cause)
    if torch_cuda.in_bad_fork():
        cause = "this process was forked from one in which CUDA was initialised"
        return Finding(subject, "bad", f"{cause} (reported by torch)", FORK_REMEDY, cause)
    if state.failed:
        cause = init_failure.cause()
        return Finding(subject, "bad", cause, init_failure.remedy(), cause)
    if dead is not None:
        return Finding(subject, "bad", f"{dead}, which lasts until it ends", "%gpu restart", dead)
    if state.initialized is None:
        return Finding(subject, "unknown", "the driver does not report its state")
    if not state.initialized:
        choice = "" if facts.table.no_gpu else "; the GPUs can still be selected"
        return Finding(subject, "ok", f"CUDA is not initialised{choice}")
    count = "" if state.uuids is None else f", sees {plural(len(state.uuids), 'device')}"
    contexts = ", ".join(f"cuda:{ordinal}" for ordinal in state.contexts) or "no device"
    where = "" if facts.table.where is None else f". {facts.table.where}"
    evidence = f"CUDA is initialised{count}; contexts on {contexts}{where}"
    if state.uuids == ():
        cause = "CUDA was initialised in this process when no GPU was visible"
        return Finding(subject, "bad", evidence, "%gpu on --restart", cause)
    return Finding(subject, "ok", evidence)


def start(facts: Facts) -> Finding | None:
    """Check that CUDA starts, without initialising it in this process."""
    if not facts.build.compiled or torch_cuda.in_bad_fork():
        return None
    copied = facts.torch_loaded and not facts.state.initialized
    how = "a copy of this process" if copied else facts.torch_in
    subject, count, reason = "start of CUDA", facts.start.count, facts.start.reason
    if count:
        evidence = f"torch's CUDA runtime starts and finds {plural(count, 'device')} (in {how})"
        return Finding(subject, "ok", evidence)
    if count is None:
        evidence = f"not tried: {reason}" if reason else "could not be tried"
        return Finding(subject, "unknown", evidence)
    evidence = f"finds no device (in {how})" + (f": {reason}" if reason else "")
    expected = any(device.visible for device in facts.table)
    if facts.table and not expected:
        return Finding(subject, "ok", evidence, cause=reason)
    known = start_errors.known(reason)
    cause, remedy = (reason, None) if known is None else (known.cause, known.remedy)
    if expected and not reason and not facts.state.initialized:
        cause = "CUDA finds no device, although the environment variables show some"
        remedy = "%gpu restart: a failed start of CUDA lasts until the process ends"
    return Finding(subject, "bad", evidence, remedy, cause)
