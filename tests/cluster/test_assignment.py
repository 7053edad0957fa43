"""Which engine gets which device, from the device tables alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpumagic.cluster import assignment
from gpumagic.errors import DeviceError
from gpumagic.results import (
    Claim,
    ClusterTable,
    Device,
    DeviceTable,
    EngineDevices,
    MigInstance,
)
from gpumagic.selection.spec import parse
from tests.support.shells import Ran

Run = Callable[..., Ran]


def machine(*free: int, host: str = "a", error: str | None = None) -> DeviceTable:
    devices = tuple(
        Device(i, uuid=f"GPU-{host}{i}", memory_free=amount) for i, amount in enumerate(free)
    )
    return DeviceTable(devices, error=error)


def everything(devices: DeviceTable) -> tuple[str, ...]:
    return tuple(str(device.uuid) for device in devices)


def table(hosts: dict[str, tuple[DeviceTable, list[int]]]) -> ClusterTable:
    rows = [
        EngineDevices(engine, host, table=devices, given=everything(devices))
        for host, (devices, engines) in hosts.items()
        for engine in engines
    ]
    return ClusterTable(tuple(sorted(rows, key=lambda each: each.engine)))


def test_by_rank_on_each_host() -> None:
    found = table({"a": (machine(1, 1), [0, 2]), "b": (machine(1, 1, host="b"), [3, 1])})
    assert assignment.by_rank(found) == {0: "GPU-a0", 2: "GPU-a1", 1: "GPU-b0", 3: "GPU-b1"}


def test_several_devices_for_each_engine() -> None:
    found = table({"a": (machine(1, 1, 1, 1), [0, 1])})
    assert assignment.by_rank(found, 2) == {0: "GPU-a0,GPU-a1", 1: "GPU-a2,GPU-a3"}


def test_too_few() -> None:
    found = table({"a": (machine(1, 1), [0, 1, 2])})
    with pytest.raises(DeviceError) as raised:
        assignment.by_rank(found)
    assert str(raised.value) == (
        "a has 2 GPUs and 3 engines: --share lets engines share them, -t pins 2 of the engines"
    )
    assert assignment.by_rank(found, share=True) == {0: "GPU-a0", 1: "GPU-a1", 2: "GPU-a0"}
    with pytest.raises(DeviceError, match="no engine can have 3"):
        assignment.by_rank(found, 3, share=True)


def test_no_gpu_at_all() -> None:
    found = table({"a": (machine(error="the NVIDIA driver is not loaded"), [0])})
    with pytest.raises(DeviceError, match="a: the NVIDIA driver is not loaded"):
        assignment.by_rank(found)


def test_containers_under_one_name() -> None:
    one, other = machine(1), machine(1, host="b")
    rows = tuple(
        EngineDevices(i, "a", table=t, given=everything(t)) for i, t in enumerate((one, other))
    )
    with pytest.raises(DeviceError, match="the engines of a do not list the same GPUs"):
        assignment.by_rank(ClusterTable(rows))


def test_mig_instances_are_devices() -> None:
    parts = (MigInstance("MIG-1", memory_total=10, memory_used=4), MigInstance("MIG-2"))
    devices = DeviceTable((Device(0, uuid="GPU-a0", mig=parts), Device(1, uuid="GPU-a1")))
    found = table({"a": (devices, [0, 1, 2])})
    assert assignment.by_rank(found) == {0: "MIG-1", 1: "MIG-2", 2: "GPU-a1"}
    with pytest.raises(DeviceError, match="1 GPU and 3 engines for 2 each: no engine can have 2"):
        assignment.by_rank(found, 2)
    divided = DeviceTable((Device(0, uuid="GPU-a0", mig=parts),))
    with pytest.raises(DeviceError, match="a has only MIG instances: an engine can have one"):
        assignment.by_rank(table({"a": (divided, [0])}), 2)
    assert [unit.memory_free for unit in assignment.units(devices)] == [6, None, None]


def given(*uuids: tuple[str, ...], devices: DeviceTable) -> ClusterTable:
    """Engines of one host that were started with these."""
    rows = [EngineDevices(i, "a", table=devices, given=mine) for i, mine in enumerate(uuids)]
    return ClusterTable(tuple(rows))


def test_each_gets_of_what_it_was_given() -> None:
    of_tasks = given(("GPU-a1",), ("GPU-a0",), devices=machine(5, 9))
    assert assignment.by_rank(of_tasks) == {0: "GPU-a1", 1: "GPU-a0"}
    assert assignment.by_rank(of_tasks, share=True) == {0: "GPU-a1", 1: "GPU-a0"}
    assert assignment.most_free(of_tasks, 2) == {0: "GPU-a1", 1: "GPU-a0"}
    partly = given(("GPU-a0", "GPU-a1"), ("GPU-a0",), devices=machine(9, 5))
    assert assignment.by_rank(partly) == {0: "GPU-a1", 1: "GPU-a0"}
    assert assignment.most_free(partly, 2) == {0: "GPU-a1", 1: "GPU-a0"}
    both_one = given(("GPU-a0",), ("GPU-a0",), ("GPU-a1", "GPU-a2"), devices=machine(1, 1, 1))
    with pytest.raises(DeviceError, match="a has 3 GPUs, but an engine was given too few of them"):
        assignment.by_rank(both_one)
    with pytest.raises(DeviceError, match="which is enough for 2"):
        assignment.most_free(both_one, 3)


def test_an_instance_that_an_engine_was_not_given_is_not_its() -> None:
    parts = (MigInstance("M1", memory_total=10, memory_used=0), MigInstance("M2"))
    devices = DeviceTable((Device(0, uuid="GPU-a0", mig=parts),))
    assert assignment.by_rank(given(("M2",), devices=devices)) == {0: "M2"}
    assert assignment.most_free(given(("M2",), ("M1",), devices=devices), 1) == {1: "M1"}


def test_what_others_have_taken() -> None:
    found = table({"a": (machine(1, 1), [1])})
    assert assignment.by_rank(found, taken={"GPU-a0"}) == {1: "GPU-a1"}
    with pytest.raises(DeviceError) as raised:
        assignment.by_rank(found, taken={"GPU-a0", "GPU-a1"})
    assert str(raised.value) == (
        "a has 2 GPUs (2 pinned to other engines) and 1 engine: --share lets engines share them"
    )
    # A device that is taken as a whole is taken with its instances.
    devices = DeviceTable((Device(0, uuid="GPU-a0", mig=(MigInstance("M1"), MigInstance("M2"))),))
    parts = table({"a": (devices, [0])})
    assert assignment.by_rank(parts, taken={"M1"}) == {0: "M2"}
    with pytest.raises(DeviceError, match="2 pinned to other engines"):
        assignment.by_rank(parts, taken={"GPU-a0"})


def test_a_lost_device_is_not_assigned() -> None:
    devices = DeviceTable((Device(0, uuid="GPU-a0", error="lost"), Device(1, uuid="GPU-a1")))
    assert assignment.by_rank(table({"a": (devices, [0])})) == {0: "GPU-a1"}


def test_the_most_free_memory_of_all_hosts() -> None:
    found = table({"a": (machine(5, 9), [0, 1]), "b": (machine(7, 8, 6, host="b"), [2, 3])})
    assert assignment.most_free(found, 1) == {0: "GPU-a1"}
    assert assignment.most_free(found, 3) == {0: "GPU-a1", 2: "GPU-b1", 3: "GPU-b0"}
    # b has no third engine for its next device, so the next is one of a's.
    assert assignment.most_free(found, 4)[1] == "GPU-a0"
    with pytest.raises(DeviceError) as raised:
        assignment.most_free(found, 5)
    expected = "auto 5: the cluster has 5 GPUs and 4 engines, which is enough for 4"
    assert str(raised.value) == expected


def test_one_machine_under_two_names_has_each_device_once() -> None:
    found = table({"a": (machine(9, 5), [0]), "b": (machine(9, 5), [1])})
    assert assignment.most_free(found, 2) == {0: "GPU-a0", 1: "GPU-a1"}
    with pytest.raises(DeviceError, match="the cluster has 2 GPUs and 2 engines"):
        assignment.most_free(found, 3)


def claimed(devices: DeviceTable, *by: tuple[str, ...]) -> DeviceTable:
    """The table, with claims of the processes 1000, 1001, …; process 7 is an engine."""
    found = {uuids: Claim(7 if not uuids[1:] else 1000 + n, "ann") for n, uuids in enumerate(by)}
    return replace(
        devices,
        devices=tuple(
            replace(device, claims=tuple(c for uuids, c in found.items() if device.uuid in uuids))
            for device in devices
        ),
    )


def test_what_others_claim_comes_last() -> None:
    """The engines' own claims do not count: they choose again."""
    devices = claimed(machine(9, 8, 7), ("GPU-a0", "GPU-a2"), ("GPU-a1",))
    found = table({"a": (devices, [0, 1])})
    found = replace(found, engines=tuple(replace(each, pid=7) for each in found))
    assert assignment.most_free(found, 1) == {0: "GPU-a1"}
    specs = assignment.most_free(found, 2)
    assert {*specs.values()} == {"GPU-a1", "GPU-a0"}
    assert assignment.claimed_by_others(found, specs) == (
        "GPU 0 of a is claimed by process 1000 of ann",
    )
    assert assignment.most_free(found, 1, claims=False) == {0: "GPU-a0"}
    assert assignment.known_claims(found) == {
        **{"GPU-a0": [7, 1000], "GPU-a1": [7], "GPU-a2": [7, 1000]}
    }


def test_what_was_claimed_after_the_choice_is_not_known() -> None:
    """The first engine's table decides; the second one's was read later, when more was claimed."""
    devices = machine(9, 8)
    found = table({"a": (devices, [0, 1])})
    first, second = (replace(each, pid=7) for each in found)
    later = replace(second, table=claimed(devices, ("GPU-a0",)))
    found = replace(found, engines=(first, later))
    assert assignment.most_free(found, 1) == {0: "GPU-a0"}
    assert assignment.known_claims(found) == {"GPU-a0": [7], "GPU-a1": [7]}


def test_devices_that_are_named() -> None:
    """On each host by its own numbers; an engine that has none such says so itself."""
    found = table({"a": (machine(9, 8), [0, 1]), "b": (machine(9), [2])})
    uuids = assignment.named(found, parse("0,1"))
    assert uuids == dict.fromkeys((0, 1), "GPU-a0,GPU-a1")
    found = replace(found, engines=(*found.engines[:1], replace(found.engines[1], table=None)))
    assert assignment.named(found, parse("1")) == {0: "GPU-a1"}


def test_a_claim_on_an_instance_is_not_one_on_its_sister() -> None:
    parts = (MigInstance("M1"), MigInstance("M2"))
    device = Device(0, uuid="GPU-a0", mig=parts, claims=(Claim(1000, "ann", instance="M1"),))
    assert [len(unit.claims) for unit in assignment.units([device])] == [1, 0]
