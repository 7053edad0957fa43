"""The table of devices: NVML's measurements, and what this process sees and uses of each device."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpumagic.cuda import driver, nvml, visible_devices
from gpumagic.cuda.processes import look_up
from gpumagic.cuda.visible_devices import uuid_key
from gpumagic.errors import DeviceError
from gpumagic.results import Device, DeviceTable, Process
from gpumagic.system import system_files

#: Below this, memory in use without a process is the driver's own (by NVML's version 2).
_IDLE_USE = 64 * 2**20

#: Inode of the system's first pid namespace (PROC_PID_INIT_INO, include/linux/proc_ns.h): only in
#: that one are NVML's pids certain to be those of this process's namespace.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def devices(*, processes: bool = True) -> DeviceTable:
    """Return the GPUs of this machine, and which of them this process sees.

    Does not initialise CUDA and imports no torch. Without NVML the CUDA driver lists the devices in
    a child process, and fields that only NVML knows are None. On a machine without GPUs, or without
    a driver, the table is empty and its ``error`` says why.

    ``processes`` also looks up each process's user and command.
    """
    state = driver.state()
    environment = visible_devices.variables(os.environ)
    common: dict[str, Any] = {
        "environment": environment,
        "cuda_initialized": state.initialized,
        "cuda_failed": state.failed,
        "show_processes": processes,
    }
    try:
        session = nvml.session()
        readings = _named_by_driver(session.read())
    except DeviceError as error:
        listed = _read_by_driver()
        if not listed:
            return DeviceTable(error=str(error), **common)
        return DeviceTable(compose(listed, environment, state), notes=(str(error),), **common)
    missing = bool(readings) and not state.loaded and not driver.installed()
    if missing:  # has the effect of hiding all devices
        environment = {**environment, visible_devices.MASK: visible_devices.HIDE_ALL}
        common["notes"] = (f"{driver.MISSING}.",)
    return DeviceTable(
        compose(readings, environment, state, commands=processes),
        cuda_missing=missing,
        driver_version=session.driver_version,
        cuda_version=session.cuda_version,
        **common,
    )


def check(table: DeviceTable) -> None:
    """Check that devices can be chosen from the table.

    Raises:
        DeviceError: they cannot; the message has the reason and the remedy in one line.
    """
    if table.error is not None:
        raise DeviceError(f"the GPUs cannot be listed: {table.error}")
    if table.cuda_missing:
        raise DeviceError(f"no GPU can be used: {driver.MISSING}")


@cache
def _listed_by_driver() -> tuple[driver.ListedDevice, ...]:
    """Return the devices that the driver lists; none if it does not start, which is cached too."""
    try:
        return driver.list_in_child()
    except DeviceError:
        return ()


def _read_by_driver() -> list[dict[str, Any]]:
    """Return the devices' fields as the CUDA driver lists them; empty where there is no driver."""
    return [
        {
            "index": index,
            "uuid": device.uuid,
            "name": device.name,
            "memory_total": device.memory_total,
            "compute_capability": device.compute_capability,
        }
        for index, device in enumerate(_listed_by_driver())
    ]


def _named_by_driver(readings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the readings; where NVML refuses UUIDs, with the driver's, in the same PCI order."""
    unnamed = [r for r in readings if r.get("uuid") is None and "error" not in r]
    listed = _read_by_driver() if unnamed else []
    if [each["name"] for each in listed] == [reading.get("name") for reading in readings]:
        for reading in unnamed:
            reading["uuid"] = listed[reading["index"]]["uuid"]
    return readings


def compose(
    readings: Sequence[dict[str, Any]],
    environment: Mapping[str, str],
    state: driver.DriverState,
    *,
    commands: bool = False,
) -> tuple[Device, ...]:
    """Return the readings as devices, with visibility and memory of this process.

    ``commands`` also looks up the processes' users and commands.
    """
    ordinals, visible, instances = _seen(readings, environment, state)
    with_context = {index for index, ordinal in ordinals.items() if ordinal in state.contexts}
    pid = os.getpid()
    own = _own_is_known(readings, with_context, pid)
    found = []
    for fields in readings:
        index = fields["index"]
        fields["ordinal"] = ordinals.get(index)
        fields["visible"] = visible.get(index)
        fields["instance"] = instances.get(index)
        listed: tuple[Process, ...] | None = fields.get("processes")
        if listed:
            marked = own or not state.initialized
            listed = tuple(replace(p, own=own and p.pid == pid if marked else None) for p in listed)
            if commands:
                listed = look_up(listed, _is_here)
            fields["processes"] = listed
        fields["memory_own"] = _own_memory(listed, index in with_context, own, state.initialized)
        fields["memory_others"] = _others_memory(listed, fields)
        found.append(Device(**fields))
    return tuple(found)


def _seen(
    readings: Sequence[dict[str, Any]], environment: Mapping[str, str], state: driver.DriverState
) -> tuple[dict[int, int], dict[int, bool], Mapping[int, str]]:
    """Return, by index, the CUDA ordinal, whether it is visible, and the MIG instance.

    As far as they are known: from the driver once it is initialised, since the variables no longer
    matter then; before, from the variables.
    """
    indexes = [fields["index"] for fields in readings]
    if state.failed:
        return {}, dict.fromkeys(indexes, False), {}
    if state.initialized is False:
        seen = visible_devices.view(environment, [_identity(fields) for fields in readings])
        ordinals = {} if seen.indexes is None else _numbered(seen.indexes)
        known = seen.visible
        visible = {} if known is None else {index: index in known for index in indexes}
        return ordinals, visible, seen.instances
    if state.uuids is None:
        return {}, {}, {}
    index_of = {
        uuid_key(uuid): fields["index"]
        for fields in readings
        for uuid in (fields.get("uuid"), *(part.uuid for part in fields.get("mig", ())))
        if uuid is not None
    }
    shown = [*map(uuid_key, state.uuids)]
    found = [*map(index_of.get, shown)]
    ordinals = _numbered(found)
    visible = dict.fromkeys(ordinals, True)
    if None not in found:  # otherwise a UUID unknown to NVML may be any of the other devices
        visible |= {index: index in ordinals for index in indexes}
    parts = {
        fields["index"]: part.uuid
        for fields in readings
        for part in reversed(fields.get("mig", ()))
        if uuid_key(part.uuid) in shown
    }
    return ordinals, visible, parts


def _identity(fields: Mapping[str, Any]) -> Device:
    names = ("index", "uuid", "name", "compute_capability", "mig")
    return Device(**{name: fields[name] for name in names if name in fields})


def _numbered(indexes: Sequence[int | None]) -> dict[int, int]:
    """Return the ordinals by index; of several visible MIG instances of a device, the first's."""
    ordinals: dict[int, int] = {}
    for ordinal, index in enumerate(indexes):
        if index is not None:
            ordinals.setdefault(index, ordinal)
    return ordinals


def _own_is_known(readings: Sequence[dict[str, Any]], with_context: set[int], pid: int) -> bool:
    """Return whether NVML's entries with this process's pid are this process.

    In a container NVML may list the host's pids, one of which may equal this process's by chance,
    or none. So outside the first pid namespace the entries count only if exactly the devices on
    which this process has a context have one. Inside it a process without a context is not listed.
    """
    listed = {
        fields["index"]
        for fields in readings
        if any(process.pid == pid for process in fields.get("processes") or ())
    }
    if in_first_pid_namespace() and (listed or not with_context):
        return True
    return bool(listed) and listed == with_context


@cache
def in_first_pid_namespace() -> bool:
    """Return whether this process is in the system's first pid namespace, not a container's."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        name = str(system_files.at("/proc/self/ns/pid").readlink())
    except OSError:
        return False
    return name == f"pid:[{_FIRST_PID_NAMESPACE}]"


def _is_here(pid: int) -> bool:
    """Return whether a pid that NVML lists is that of a process in this pid namespace."""
    return in_first_pid_namespace() or _uses_cuda(pid)


def _uses_cuda(pid: int) -> bool:
    """Return whether a process of this pid namespace has loaded the CUDA driver.

    Distinguishes a process in this container from one outside with the same pid.
    """
    try:
        return b"libcuda" in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False


def _own_memory(
    listed: tuple[Process, ...] | None, context: bool, known: bool, initialized: bool | None
) -> int | None:
    """Return the bytes that this process holds on a device; None if not known.

    ``context``: whether it has one there; ``known``: whether NVML's entry for it is known.
    """
    if known:
        for process in listed or ():
            if process.own:
                return process.memory
    if initialized is False or (initialized and not context):
        return 0  # a process without a context has no memory
    return None


def _others_memory(listed: tuple[Process, ...] | None, fields: Mapping[str, Any]) -> int | None:
    """Return the bytes of other processes: the sum of those listed, if the list is complete."""
    if listed is None:
        return None
    if not listed:
        # Memory in use without a process: a container does not list the processes outside it.
        used = fields.get("memory_used")
        return 0 if used is not None and used < _IDLE_USE else None
    total = 0
    for process in listed:
        if process.own is None or (not process.own and process.memory is None):
            return None
        if not process.own:
            total += process.memory or 0
    return total
