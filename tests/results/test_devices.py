"""The table of devices, and the line on what the kernel sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpumagic.render.colors import STATES
from gpumagic.results.base import as_html, as_text
from gpumagic.results.claims import Claim
from gpumagic.results.devices import Device, DeviceTable, MigInstance
from gpumagic.results.processes import Process
from tests.results.examples import DEVICES

GIB = 2**30


def test_a_closed_gate() -> None:
    devices = tuple(Device(i, ordinal=i, visible=True) for i in range(2))
    table = DeviceTable((*devices, Device(2, visible=False)), gated=True)
    lines = as_text(table, width=140).splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["gated", "gated", "hidden"]
    assert lines[5].startswith("! Gated: '%gpu off --soft' sends new code to the CPU")
    assert lines[5].endswith("lift it: %gpu on")
    assert "! Gated" in as_text(DeviceTable(gated=True), width=140)  # no GPU is listed


def test_uuids_are_shortened_with_the_whole_on_hover() -> None:
    uuid = "GPU-8f1d2c3e-0000-1111-2222-333344445555"
    table = replace(DEVICES, environment={"CUDA_VISIBLE_DEVICES": uuid}, cuda_initialized=False)
    assert "CUDA_VISIBLE_DEVICES=GPU-8f1d2c3e…;" in as_text(table, width=140)
    assert f'title="CUDA_VISIBLE_DEVICES={uuid}"' in as_html(table)


@pytest.mark.parametrize(
    ("visible", "fields", "says"),
    [
        (
            [True],
            {},
            "sees the GPU: CUDA_VISIBLE_DEVICES=0; CUDA is initialised, so only a restart",
        ),
        (
            [True, True],
            {"mask_is_late": True},
            "all 2 GPUs: CUDA_VISIBLE_DEVICES=0; without effect here, where CUDA was",
        ),
        ([True, False], {"gated": True}, "Behind the gate this process sees 1 of 2 GPUs"),
        ([], {"no_gpu": "no driver"}, "This machine has no GPU that CUDA can use: no driver."),
        ([False, True], {"cuda_failed": True}, "CUDA has failed in this process, which is final"),
        (
            [False],
            {"cuda_initialized": False},
            "none of 1 GPU: CUDA_VISIBLE_DEVICES=0; CUDA is not",
        ),
        ([], {"cuda_initialized": None}, "driver does not report whether it is initialised"),
    ],
)
def test_what_the_process_sees(visible: list[bool], fields: dict[str, Any], says: str) -> None:
    devices = tuple(Device(i, i if seen else None, visible=seen) for i, seen in enumerate(visible))
    given = {"cuda_initialized": True, **fields}
    table = DeviceTable(devices, {"CUDA_VISIBLE_DEVICES": "0"}, **given)
    assert says in as_text(table, 200).splitlines()[-1]
    unordered = replace(table, devices=(Device(0, visible=True),), no_gpu=None)
    assert "CUDA's own order (fastest first) is not known" in as_text(unordered, 200)


def test_mig_instances_have_a_table() -> None:
    parts = (MigInstance("MIG-a", "1g.10gb", 10 * GIB, GIB), MigInstance("MIG-b"))
    device = Device(0, ordinal=0, visible=True, instance="MIG-a", mig=parts)
    lines = as_text(DeviceTable((device,)), 120).splitlines()
    assert [line.split() for line in lines[3:7]] == [
        "GPU MIG instance UUID Memory used / total".split(),
        ["─" * len(lines[4])],
        "0 1g.10gb MIG-a ✓ 1.00 GiB / 10.0 GiB".split(),
        "0 – MIG-b – / –".split(),
    ]
    seen = device.as_seen()
    assert (seen.name, seen.memory_free) == ("1g.10gb", 9 * GIB)
    assert Device(1).as_seen() == Device(1)


def test_processes_that_are_not_listed() -> None:
    none = as_text(DeviceTable((Device(0, processes=()),), show_processes=True), 120)
    assert none.endswith("No process uses a GPU, as far as NVML lists them.")
    blind = as_text(DeviceTable((Device(3),), show_processes=True), 120)
    assert blind.endswith("NVML does not list the processes of GPU 3.")


def test_claims_are_shown_by_process_and_notebooks_by_name() -> None:
    two_gpus, own = Claim(7, "ann"), Claim(9, "me", own=True, mine=True)
    process = Process(5, GIB, mine=True, command="python", notebook="train.ipynb")
    table = DeviceTable(
        (
            Device(0, uuid="GPU-a", claims=(two_gpus,), processes=(process,)),
            Device(1, uuid="GPU-b", claims=(two_gpus, replace(own, instance="MIG-1"), own)),
        ),
        show_processes=True,
    )
    text = str(table)
    assert "GPU 0–1: claimed by process 7 of ann.\n" in text
    assert [str(Claim(7, "me", mine=True)), str(Claim(7)), str(Claim())] == [
        *("process 7", "process 7 of another user", "a process outside of this container")
    ]
    assert text.count("GPU 1: claimed by this process.\n") == 1
    assert "train.ipynb" in text
    assert table.to_dict()["devices"][0]["claims"][0]["pid"] == 7


def test_of_many_processes_those_with_the_most_memory_are_shown() -> None:
    many = tuple(Process(pid, memory=(pid % 60) * 2**20 if pid else None) for pid in range(60))
    table = DeviceTable((Device(0, processes=(*many, Process(99, 1, mine=True))),))
    lines = as_text(replace(table, show_processes=True), 100).splitlines()
    assert lines[-1] == "and 11 more, with 45.0 MiB in all"
    assert [line.split()[1] for line in lines[-4:-1]] == ["12", "11", "10"]
    claims = tuple(Claim(pid, "ann") for pid in range(10_000))
    text = str(DeviceTable((Device(0, claims=claims),)))
    assert text.count("claimed by process") == 50
    assert "and 9,950 more claims" in text


def test_the_users_own_processes_come_first_and_only_their_commands_are_on_hover() -> None:
    def process(pid: int, **fields: bool) -> Process:
        return Process(pid, pid, command="x" * 100, **fields)

    table = DeviceTable(
        (Device(0, processes=(process(30), process(10, mine=True), process(20, mine=False))),),
        show_processes=True,
    )
    lines = as_text(table, 140).splitlines()
    assert [line.split()[1] for line in lines[-3:]] == ["10", "30", "20"]
    assert as_html(table).count("x" * 100) == 1


def test_an_error_of_several_devices_is_said_once() -> None:
    lost = "the GPU is lost: it needs a reset, or the machine a reboot"
    devices = (*(Device(i, error=lost) for i in range(3)), Device(3, error=f"{lost} soon"))
    lines = as_text(DeviceTable(devices), 200).splitlines()
    assert [line for line in lines if "lost" in line] == [
        f"✗ GPU 0–2: {lost}",
        f"✗ GPU 3: {lost} soon",
    ]


def test_memory_that_is_nearly_full_has_a_sign_beside_the_colour() -> None:
    table = DeviceTable(tuple(Device(i, memory_total=100, memory_used=i) for i in (89, 90, 97)))
    rows = [row for row in as_text(table, 120).splitlines() if "/ 100 B" in row]
    assert ["!" in row for row in rows] == [False, True, True]
    assert [STATES[tone] in as_html(table) for tone in ("warn", "bad")] == [True, True]
