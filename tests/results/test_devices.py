"""The table of devices, and the line on what the kernel sees."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumagic.results import Claim, Device, DeviceTable, MigInstance, Process
from gpumagic.results.base import as_html, as_text
from tests.support.drawing import check_drawing

GIB = 2**30
FULL = DeviceTable(
    devices=(
        Device(
            0,
            ordinal=1,
            uuid="GPU-a",
            name="NVIDIA H100",
            memory_total=80 * GIB,
            memory_used=60 * GIB,
            memory_free=20 * GIB,
            utilization=97,
            temperature=61,
            power=412.4,
            power_limit=700.0,
            processes=(
                Process(7, 10 * GIB, user="ann", command="python <b>x</b>", own=False),
                Process(9, 50 * GIB, user="me", command="ipykernel", own=True),
            ),
            visible=True,
            memory_own=50 * GIB,
            memory_others=10 * GIB,
        ),
        Device(1, uuid="GPU-b", name="NVIDIA H100", visible=False),
        Device(2, name="NVIDIA H100", error="the GPU is lost", visible=None),
    ),
    environment={"CUDA_VISIBLE_DEVICES": "GPU-a"},
    cuda_initialized=True,
    show_processes=True,
)


TEXT = """\
3 × NVIDIA H100
GPU  Device           Memory used / total  Util      Mine    Others   Temp        Power
───────────────────────────────────────────────────────────────────────────────────────
  0  cuda:1  ██████   60.0 GiB / 80.0 GiB  97 %  50.0 GiB  10.0 GiB  61 °C  412 / 700 W
  1  hidden                             –     –         –         –      –            –
  2  –                  ✗ the GPU is lost     –         –         –      –            –
What this kernel sees is not known: CUDA_VISIBLE_DEVICES=GPU-a; CUDA is initialised, so this is final for the process.
GPU              PID  User    Memory  Command
─────────────────────────────────────────────────────
  0  9 (this kernel)  me    50.0 GiB  ipykernel
  0                7  ann   10.0 GiB  python <b>x</b>
NVML does not list the processes of GPU 1, 2."""  # noqa: E501


def test_drawing() -> None:
    """Unknown is a dash, never 0."""
    check_drawing(FULL, TEXT)
    assert "0 B" not in TEXT
    check_drawing(
        DeviceTable(cuda_initialized=False),
        "No GPU to show: NVML lists none on this machine.\n"
        "CUDA_VISIBLE_DEVICES is not set; CUDA is not initialised, so this can still be changed.",
    )


def test_what_the_kernel_sees_is_below_the_table() -> None:
    text = as_text(FULL, width=140)
    assert (
        "What this kernel sees is not known: CUDA_VISIBLE_DEVICES=GPU-a; CUDA is initialised"
        in text
    )


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_a_narrow_terminal_drops_columns_not_lines(width: int) -> None:
    lines = as_text(FULL, width=width).splitlines()
    rows = [line for line in lines if line.strip().startswith("0 ") and "cuda:1" in line]
    assert len(rows) == 1
    assert "60.0 GiB / 80.0 GiB" in rows[0]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_long_command_is_shortened_to_the_width(width: int) -> None:
    process = Process(7, GIB, user="ann", command="python train.py " + "--flag " * 40, own=True)
    text = as_text(replace(FULL, devices=(replace(FULL[0], processes=(process,)),)), width=width)
    row = next(line for line in text.splitlines() if "(this kernel)" in line)
    assert "pyth" in row
    assert len(row) <= max(width, 45)
    if width >= 80:
        assert all(part in row for part in ("ann", "python train.py"))


def test_columns_that_do_not_fit_are_named() -> None:
    dropped = "hidden (too narrow): "
    assert dropped not in as_text(FULL, width=140)
    assert f"{dropped}Power\n" in as_text(FULL, width=80)


def test_names_that_differ_have_a_column_and_the_same_name_is_above_the_table() -> None:
    other = replace(FULL, devices=(FULL[0], replace(FULL[1], name="NVIDIA A2")))
    lines = as_text(other, width=140).splitlines()
    assert lines[0].split()[-1] == "Name"
    assert lines[3].endswith("NVIDIA A2")
    # Where it is narrow, the others' memory is kept rather than the name.
    assert "hidden (too narrow): Temp, Power, Name" in as_text(other, width=75)
    one = as_text(replace(FULL, devices=FULL[:1]), width=140).splitlines()
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
    table = replace(FULL, environment={"CUDA_VISIBLE_DEVICES": uuid}, cuda_initialized=False)
    assert "CUDA_VISIBLE_DEVICES=GPU-8f1d2c3e…;" in as_text(table, width=140)
    assert f'title="CUDA_VISIBLE_DEVICES={uuid}"' in as_html(table)


def test_a_long_error_leaves_the_other_devices_their_columns() -> None:
    error = "the GPU is lost: it needs a reset, or the machine a reboot"
    table = replace(FULL, devices=(*FULL[:2], replace(FULL[2], error=error)))
    lines = as_text(table, width=110).splitlines()
    assert lines[0] == "3 × NVIDIA H100"
    assert lines[1].split() == "GPU Device Memory used / total Util Mine Others Temp Power".split()
    assert "✗ the GPU is lost: it …" in lines[5]
    assert f"GPU 2: {error}." in lines


def test_processes_are_escaped_in_html() -> None:
    html = as_html(FULL)
    assert "python &lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "(this kernel)" in html


def test_an_empty_table_has_its_reason() -> None:
    table = DeviceTable(error="NVML is not installed", cuda_initialized=False)
    assert as_text(table).startswith("No GPU to show: NVML is not installed.")
    assert len(table) == 0


def test_the_table_as_data() -> None:
    assert FULL[0].ordinal == 1
    assert [device.index for device in FULL] == [0, 1, 2]
    assert len(FULL[1:]) == 2
    assert json.loads(FULL.to_json())["devices"][0]["memory_used"] == 60 * GIB
    assert FULL.to_dict()["devices"][1]["utilization"] is None


def test_the_table_as_a_dataframe() -> None:
    pytest.importorskip("pandas")
    frame = FULL.to_pandas()
    assert frame.loc[0, "memory_used"] == 60 * GIB
    assert list(frame.index) == [0, 1, 2]


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


def test_repr() -> None:
    assert repr(FULL) == "<DeviceTable: 3 devices>"
    assert repr(DeviceTable((Device(0),))) == "<DeviceTable: 1 device>"


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


def test_the_type_of_a_process_is_shown_where_types_differ() -> None:
    compute, graphics = Process(1, 1), Process(2, 1, kind="graphics")
    both = DeviceTable((Device(0, processes=(compute, graphics)),), show_processes=True)
    assert "Type" in as_text(both, 120)
    alone = DeviceTable((Device(0, processes=(compute,)),), show_processes=True)
    assert "Type" not in as_text(alone, 120)
