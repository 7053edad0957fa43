"""The table of devices, and the line on what the kernel sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.results import Claim, Device, DeviceTable, MigInstance, Process
from gpumagic.results.base import as_html, as_text
from tests.results.examples import DEVICES

GIB = 2**30


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_a_narrow_terminal_drops_columns_not_lines(width: int) -> None:
    lines = as_text(DEVICES, width=width).splitlines()
    rows = [line for line in lines if line.strip().startswith("0 ") and "cuda:1" in line]
    assert len(rows) == 1
    assert "60.0 GiB / 80.0 GiB" in rows[0]


def test_columns_that_do_not_fit_are_named() -> None:
    dropped = "hidden (too narrow): "
    assert dropped not in as_text(DEVICES, width=140)
    assert f"{dropped}Power\n" in as_text(DEVICES, width=80)


def test_names_that_differ_have_a_column_and_the_same_name_is_above_the_table() -> None:
    other = replace(DEVICES, devices=(DEVICES[0], replace(DEVICES[1], name="NVIDIA A2")))
    lines = as_text(other, width=140).splitlines()
    assert lines[0].split()[-1] == "Name"
    assert lines[3].endswith("NVIDIA A2")
    # Where it is narrow, the others' memory is kept rather than the name.
    assert "hidden (too narrow): Temp, Power, Name" in as_text(other, width=75)
    one = as_text(replace(DEVICES, devices=DEVICES[:1]), width=140).splitlines()
    assert one[0] == "NVIDIA H100"


@pytest.mark.parametrize(("allowed", "gated"), [((), {0, 1}), ((1,), {0})])
def test_a_closed_gate(allowed: tuple[int, ...], gated: set[int]) -> None:
    devices = tuple(Device(i, ordinal=i, visible=True) for i in range(2))
    table = DeviceTable((*devices, Device(2, visible=False)), gate="off", allowed=allowed)
    lines = as_text(table, width=140).splitlines()
    assert {i for i in range(3) if lines[2 + i].split()[1] == "gated"} == gated
    assert lines[4].split()[1] == "hidden"
    names = "cuda:1" if allowed else "no GPU"
    assert lines[5:] == [
        f"! Gated: '%gpu off --soft' allows new work on {names}; to lift that: %gpu on",
        "Behind the gate this kernel sees 2 of 3 GPUs: CUDA_VISIBLE_DEVICES is not set; the CUDA "
        "driver does not report whether it is initialised.",
    ]


def test_uuids_are_shortened_with_the_whole_on_hover() -> None:
    uuid = "GPU-8f1d2c3e-0000-1111-2222-333344445555"
    table = replace(DEVICES, environment={"CUDA_VISIBLE_DEVICES": uuid}, cuda_initialized=False)
    assert "CUDA_VISIBLE_DEVICES=GPU-8f1d2c3e…;" in as_text(table, width=140)
    assert f'title="CUDA_VISIBLE_DEVICES={uuid}"' in as_html(table)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"devices": (Device(0, ordinal=0, visible=True),)},
            "This kernel sees the GPU: CUDA_VISIBLE_DEVICES=0; CUDA is initialised, so this is "
            "final for the process.",
        ),
        (
            {"devices": tuple(Device(i, ordinal=i, visible=True) for i in range(2))},
            "This kernel sees all 2 GPUs: CUDA_VISIBLE_DEVICES=0 came after CUDA was "
            "initialised, without effect on this process.",
        ),
        (
            {
                "devices": (
                    Device(0, ordinal=0, uuid="GPU-a1", visible=True),
                    Device(1, uuid="GPU-b2", visible=False),
                ),
                "environment": {"CUDA_VISIBLE_DEVICES": "GPU-b2"},
                "gate": "1",
            },
            "Behind the gate this kernel sees 1 of 2 GPUs: CUDA_VISIBLE_DEVICES=GPU-b2 came "
            "after CUDA was initialised, without effect on this process.",
        ),
        (
            {
                "devices": (Device(0, ordinal=0, uuid="GPU-a1", visible=True),),
                "environment": {"CUDA_VISIBLE_DEVICES": "GPU-a"},
            },
            "This kernel sees the GPU: CUDA_VISIBLE_DEVICES=GPU-a; CUDA is initialised, so this "
            "is final for the process.",
        ),
        (
            {
                "devices": (Device(0, ordinal=0, visible=True),),
                "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
            },
            "This kernel sees the GPU: CUDA_VISIBLE_DEVICES=-1 came after CUDA was "
            "initialised, without effect on this process.",
        ),
        (
            {"devices": (Device(0, visible=False),), "cuda_missing": True},
            "This kernel sees none of 1 GPU: CUDA_VISIBLE_DEVICES=0; there is no CUDA driver.",
        ),
        (
            {"devices": (Device(0, visible=False), Device(1, visible=True)), "cuda_failed": True},
            "This kernel sees 1 of 2 GPUs: CUDA_VISIBLE_DEVICES=0; CUDA has failed in this "
            "process, which is final; CUDA's own order (fastest first) is not known before it "
            "starts.",
        ),
        (
            {"devices": (), "cuda_initialized": None},
            "CUDA_VISIBLE_DEVICES=0; the CUDA driver does not report whether it is initialised.",
        ),
    ],
)
def test_what_the_kernel_sees(fields: dict[str, object], line: str) -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "0"}
    table = DeviceTable(**{"environment": mask, "cuda_initialized": True, **fields})  # type: ignore[arg-type]
    assert as_text(table, 200).splitlines()[-1] == line


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
    two_gpus = Claim(("GPU-a", "GPU-b"), 7, "ann", "eval.ipynb", idle=7300.0, parked=True)
    unpublished, own = Claim(("GPU-b",), 8, "bob"), Claim(("GPU-b",), 9, "me", own=True, mine=True)
    process = Process(
        5, GIB, mine=True, command="python", notebook="train.ipynb", folder="/srv/ann", idle=0.0
    )
    table = DeviceTable(
        (
            Device(0, uuid="GPU-a", claims=(two_gpus,), processes=(process,)),
            Device(1, uuid="GPU-b", claims=(two_gpus, unpublished, own), processes=()),
        ),
        show_processes=True,
    )
    text = str(table)
    assert "GPU 0–1: claimed by eval.ipynb of ann, parked, idle 2 h.\n" in text
    assert "GPU 1: claimed by process 8 of bob.\n" in text
    assert "GPU 1: claimed by this kernel.\n" in text
    assert text.endswith("train.ipynb in /srv/ann, busy")
    assert table.to_dict()["devices"][0]["claims"][0]["notebook"] == "eval.ipynb"


@pytest.mark.parametrize(("used", "shown"), [(89, "89.0"), (90, "! 90.0"), (97, "! 97.0")])
def test_memory_that_is_nearly_full_has_a_sign(used: int, shown: str) -> None:
    table = DeviceTable((Device(0, memory_total=100 * GIB, memory_used=used * GIB),))
    (row,) = (line for line in as_text(table, 120).splitlines() if "100 GiB" in line)
    assert f"{shown} GiB / 100 GiB" in row
    assert ("!" in row) == ("!" in shown)
