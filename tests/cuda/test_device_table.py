"""The fields that the table adds to NVML's readings: visibility and memory of this process."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from gpumagic.cuda import device_table, processes
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.visible_devices import MASK
from gpumagic.results.devices import Device, MigInstance
from gpumagic.results.processes import Process

PID = os.getpid()
MINE, OTHER = Process(PID, 50), Process(PID + 1, 7)
UNKNOWN = Process(PID + 2, None)
BEFORE = DriverState(initialized=False)


def readings(*listed: tuple[Process, ...] | None) -> list[Device]:
    """NVML's readings of equal devices with these processes."""
    return [
        Device(index, uuid=f"GPU-a{index}", name="H100", processes=processes)
        for index, processes in enumerate(listed)
    ]


def initialized(*uuids: str, contexts: tuple[int, ...] = ()) -> DriverState:
    return DriverState(initialized=True, uuids=uuids, contexts=contexts)


@pytest.mark.parametrize(
    ("environment", "state", "ordinals", "visible"),
    [
        ({}, BEFORE, [0, 1], [True, True]),
        ({MASK: "1"}, BEFORE, [None, 0], [False, True]),
        ({MASK: "-1"}, BEFORE, [None, None], [False, False]),
        # Once the driver is initialised the variables no longer count.
        ({MASK: "-1"}, initialized("GPU-a1", "GPU-a0"), [1, 0], [True, True]),
        ({}, initialized("GPU-A1"), [None, 0], [False, True]),
        ({}, initialized("GPU-zz"), [None, None], [None, None]),
        ({}, DriverState(initialized=True), [None, None], [None, None]),
        ({}, DriverState(initialized=None), [None, None], [None, None]),
        ({}, DriverState(initialized=False, failed=True), [None, None], [False, False]),
    ],
)
def test_what_this_process_sees(
    environment: dict[str, str],
    state: DriverState,
    ordinals: list[int | None],
    visible: list[bool | None],
) -> None:
    found = device_table.compose(readings((), ()), environment, state)
    assert [device.ordinal for device in found] == ordinals
    assert [device.visible for device in found] == visible


def test_a_divided_device_shows_the_instance_that_the_driver_lists() -> None:
    divided = replace(readings(())[0], mig=(MigInstance("MIG-1a"), MigInstance("MIG-2b")))
    (found,) = device_table.compose([divided], {}, initialized("MIG-2b"))
    assert (found.ordinal, found.visible, found.instance) == (0, True, "MIG-2b")


@pytest.mark.parametrize(
    ("listed", "state", "first", "own", "others"),
    [
        # On the machine itself NVML's pids are this process's.
        ((MINE, OTHER), initialized("GPU-a0", contexts=(0,)), True, 50, 7),
        ((OTHER,), initialized("GPU-a0"), True, 0, 7),
        ((MINE, UNKNOWN), initialized("GPU-a0", contexts=(0,)), True, 50, None),
        (None, initialized("GPU-a0", contexts=(0,)), True, None, None),
        ((), BEFORE, True, 0, None),
        # In a container they may be the host's: ours only at exactly our contexts.
        ((MINE, OTHER), initialized("GPU-a0", contexts=(0,)), False, 50, 7),
        ((MINE, OTHER), initialized("GPU-a0"), False, 0, None),
        ((OTHER,), initialized("GPU-a0", contexts=(0,)), False, None, None),
    ],
)
def test_memory_of_this_process_and_of_others(
    monkeypatch: pytest.MonkeyPatch,
    listed: tuple[Process, ...] | None,
    state: DriverState,
    first: bool,
    own: int | None,
    others: int | None,
) -> None:
    monkeypatch.setattr(processes, "in_first_pid_namespace", lambda: first)
    (found,) = device_table.compose(readings(listed), {}, state)
    assert (found.memory_own, found.memory_others) == (own, others)


@pytest.mark.parametrize(("used", "others"), [(2**20, 0), (2**30, None), (None, None)])
def test_an_empty_list_is_complete_where_no_memory_is_in_use(
    used: int | None, others: int | None
) -> None:
    device = replace(readings(())[0], memory_used=used)
    (found,) = device_table.compose([device], {}, BEFORE)
    assert found.memory_others == others
