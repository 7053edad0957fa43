"""The devices as a table: NVML's measurements, what this process sees and uses, the processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gpumagic.cuda import driver, nvml, processes, visible_devices
from gpumagic.cuda.this_process import STATE
from gpumagic.cuda.visible_devices import Environment, View
from gpumagic.errors import DeviceError
from gpumagic.results.devices import NO_GPU, VIRTUAL, Device, DeviceTable, MigInstance
from gpumagic.results.processes import Process

#: Below this, memory in use without a process is the driver's own (by NVML's version 2).
IDLE_USE = 64 * 2**20

#: Compute capabilities of GPUs that share the host's memory: Xavier, Orin, Thor (two), GB10.
_SHARES_MEMORY = frozenset({(7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})


def read(*, commands: bool = False, usage: bool = False) -> DeviceTable:
    """Return the GPUs of this machine, and which of them this process sees.

    Does not initialise CUDA and imports no torch. Where NVML does not start, as without a driver,
    the table is empty and its ``error`` says why.

    ``commands`` also looks up the processes' users and commands, ``usage`` asks for utilisation,
    temperature and power.
    """
    state = driver.state()
    environment = visible_devices.variables(os.environ)
    empty = DeviceTable(
        environment={name: value for name, value in environment.items() if value is not None},
        cuda_initialized=state.initialized,
        cuda_failed=state.failed,
        where=STATE.init_location() if state.initialized else None,
        show_processes=commands,
    )
    try:
        with nvml.Session() as session:
            readings = session.read(usage=usage)
    except DeviceError as error:
        code = getattr(error.__cause__, "value", None)
        # CUDA may work where NVML does not, but not without its library or the kernel module.
        works = driver.installed() and code != nvml.DRIVER_NOT_LOADED
        return replace(empty, error=str(error), no_gpu=None if works else str(error))
    no_gpu, end = None if readings else "NVML lists none", None
    if readings and not driver.installed():  # has the effect of hiding all devices
        environment = {**environment, visible_devices.MASK: visible_devices.HIDE_ALL}
        no_gpu = driver.MISSING
    else:
        end = visible_devices.list_ends_at(environment, readings)
    found = compose(readings, environment, state, commands=commands)
    return replace(
        empty,
        devices=found,
        mask_is_late=visible_devices.came_too_late(environment, found),
        no_gpu=no_gpu,
        driver_version=session.driver_version,
        cuda_version=driver.cuda_version(),
        notes=() if end is None else (f"{end}.",),
    )


def check(table: DeviceTable) -> None:
    """Check that devices can be chosen from the table.

    Raises:
        DeviceError: they cannot; the message has the reason and the remedy in one line.
    """
    if table.no_gpu is not None:
        raise DeviceError(f"{NO_GPU}: {table.no_gpu}. {VIRTUAL}")
    if table.error is not None:
        raise DeviceError(f"the GPUs cannot be listed: {table.error}")


def compose(
    readings: Sequence[Device],
    environment: Environment,
    state: driver.DriverState,
    *,
    commands: bool = False,
) -> tuple[Device, ...]:
    """Return the devices that NVML has read, with visibility and memory of this process.

    ``commands`` also looks up the processes' users and commands.
    """
    view = _seen(readings, environment, state)
    ordinals = _numbered(view.indexes or ())
    with_context = {index for index, ordinal in ordinals.items() if ordinal in state.contexts}
    ours = _pids_are_ours(readings, with_context)

    children = dict[int, bool]()

    def described(listed: tuple[Process, ...] | None) -> tuple[Process, ...] | None:
        if listed is None or (state.initialized and not ours):
            return listed
        own = partial(processes.described, known=ours, command=commands, children=children)
        return tuple(map(own, listed))

    def instance(part: MigInstance) -> MigInstance:
        listed = described(part.processes)
        others = _others_memory(listed, part.memory_used)
        return replace(part, processes=listed, memory_others=others)

    def seen(device: Device) -> Device:
        index, listed = device.index, described(device.processes)
        return replace(
            device,
            ordinal=ordinals.get(index),
            # Where a UUID is unknown to NVML it may be any of the other devices.
            visible=(index in ordinals or None) if view.visible is None else index in view.visible,
            instance=view.instances.get(index),
            memory_own=_own_memory(listed, index in with_context, state.initialized),
            memory_others=_others_memory(listed, device.memory_used),
            processes=listed,
            mig=tuple(map(instance, device.mig)),
        )

    return tuple(seen(_with_memory(device)) for device in readings)


# --- what this process sees ----------------------------------------------------------------------


def _seen(readings: Sequence[Device], environment: Environment, state: driver.DriverState) -> View:
    """Return what this process sees, as far as it is known.

    From the driver once it is initialised, since the variables no longer matter then; before, from
    the variables.
    """
    if state.failed:
        return visible_devices.NOTHING
    if state.initialized is False:
        return visible_devices.view(environment, readings)
    return View() if state.uuids is None else visible_devices.shown(state.uuids, readings)


def _numbered(indexes: Sequence[int | None]) -> dict[int, int]:
    """Return the ordinals by index; of several visible MIG instances of a device, the first's."""
    ordinals: dict[int, int] = {}
    for ordinal, index in enumerate(indexes):
        if index is not None:
            ordinals.setdefault(index, ordinal)
    return ordinals


def _with_memory(device: Device) -> Device:
    """Return a device, with the host's memory for a GPU that shares it: NVML reports none."""
    if device.memory_total or device.compute_capability not in _SHARES_MEMORY:
        return device
    import psutil

    host = psutil.virtual_memory()
    total, free = host.total, host.available
    return replace(device, memory_total=total, memory_free=free, memory_used=total - free)


# --- what this process uses ----------------------------------------------------------------------


def _pids_are_ours(readings: Sequence[Device], with_context: set[int]) -> bool:
    """Return whether NVML's pids are those of this process's namespace.

    In a container NVML may list the host's pids, one of which may equal this process's by chance,
    or none. So outside the first pid namespace they count only if exactly the devices on which this
    process has a context list it. Inside it a process without a context is not listed.
    """
    listed = {
        device.index
        for device in readings
        if any(process.pid == os.getpid() for process in device.processes or ())
    }
    if processes.in_first_pid_namespace() and (listed or not with_context):
        return True
    return bool(listed) and listed == with_context


def _own_memory(
    listed: tuple[Process, ...] | None, context: bool, initialized: bool | None
) -> int | None:
    """Return the bytes that this process holds on a device; None if not known.

    ``context``: whether it has one there.
    """
    own = next((process for process in listed or () if process.own), None)
    if own is not None:
        return own.memory
    # A process without a context has no memory.
    return 0 if initialized is False or (initialized and not context) else None


def _others_memory(listed: tuple[Process, ...] | None, used: int | None) -> int | None:
    """Return the bytes that other processes hold: the sum of those listed; None if not known.

    Children of this process do not count. An empty list is not complete where memory is ``used``:
    in a container, NVML does not list the processes outside of it.
    """
    if listed is None:
        return None
    if not listed:
        return 0 if used is not None and used < IDLE_USE else None
    if any(process.own is None for process in listed):
        return None
    others = [process.memory for process in listed if not (process.own or process.child)]
    return None if None in others else sum(memory or 0 for memory in others)
