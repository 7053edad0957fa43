"""Why parked memory cannot come back: who holds the memory, or what bounds torch's allocator."""

from __future__ import annotations

from typing import Any

from gpumagic.cuda import allocator, torch_cuda
from gpumagic.errors import DeviceError
from gpumagic.memory.limit import LIMIT
from gpumagic.render.units import bytes_
from gpumagic.system import text


class NoRoomError(DeviceError):
    """A device has too little memory now for what is parked."""


def is_out_of_memory(error: BaseException) -> bool:
    torch: Any = torch_cuda.loaded()
    return isinstance(error, torch.cuda.OutOfMemoryError)


def _limited(needed: dict[int, int]) -> str | None:
    """Return a line with the bound on torch's allocator that leaves too little; None for none."""
    for ordinal, size in needed.items():
        limit = allocator.memory_limit(ordinal)
        left = size if limit is None else limit - torch_cuda.memory_held(ordinal)[1]
        if left >= size:
            continue
        command = f"torch.cuda.set_per_process_memory_fraction(1.0, {ordinal})"
        bound = "the notebook's memory fraction"
        if LIMIT.binds(ordinal):
            command, bound = "%gpumem limit off", f"'%gpumem limit' of {bytes_(LIMIT.size)}"
        return (
            f"parked memory cannot come back: cuda:{ordinal} needs {bytes_(size)}, and {bound} "
            f"leaves {bytes_(max(left, 0))}; everything stays parked, and after {command} it comes "
            "back"
        )
    return None


def not_enough_memory(needed: dict[int, int], error: BaseException) -> DeviceError:
    """Return an error with what is needed and free, and who holds the rest."""
    from gpumagic.cuda.devices import devices

    limited = _limited(needed)
    if limited is not None:
        return DeviceError(limited)  # to wait does not help
    lines = []
    table = {d.ordinal: d for d in devices(processes=True) if d.ordinal is not None}
    for ordinal, size in needed.items():
        free, _ = torch_cuda.memory_info(ordinal)
        if size <= free:
            continue
        device = table.get(ordinal)
        holders = [p for p in (device.processes or () if device else ()) if not p.own]
        holders.sort(key=lambda p: -(p.memory or 0))
        who = "".join(
            f"; {p.command or 'a process'} (pid {p.pid}{f', {p.user}' if p.user else ''}) holds "
            f"{bytes_(p.memory)}"
            for p in holders[:3]
        )
        lines.append(f"cuda:{ordinal} needs {bytes_(size)} and has {bytes_(free)} free{who}")
    number, gpus = ("", "a free GPU")
    if len(needed) > 1:
        number, gpus = (f" {len(needed)}", f"{len(needed)} free GPUs")
    shown = " and ".join(lines) or text.reason(error)
    return NoRoomError(
        f"parked memory cannot come back: {shown}; everything stays parked, and %gpumem unpark "
        "--wait brings it back as soon as there is enough memory; del NAME needs less of it, and "
        f"%gpu auto{number} --restart --keep all takes everything to {gpus}"
    )
