"""The device table: what it says, in text and in HTML."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pexpect
import pytest

import gpumagic
from gpumagic.results import Device, DeviceTable, Process
from gpumagic.results.base import as_html, as_text

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


def test_the_whole_table_as_text() -> None:
    lines = as_text(FULL, width=140).splitlines()
    assert lines[0].split() == (
        "GPU CUDA Name Memory used / total Util Temp Power Mine Others".split()
    )
    first, hidden, lost = lines[2:5]
    assert first.split() == (
        "0 cuda:1 NVIDIA H100 ██████░░ 60.0 GiB / 80.0 GiB 97 % 61 °C 412 / 700 W "
        "50.0 GiB 10.0 GiB".split()
    )
    assert hidden.split() == "1 hidden NVIDIA H100 – / – – – – – –".split()
    assert "the GPU is lost" in lost
    assert "0 B" not in as_text(FULL, width=140)


def test_what_the_kernel_sees_is_said_below() -> None:
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
def test_a_long_command_is_shortened_to_the_room_there_is(width: int) -> None:
    process = Process(7, GIB, user="ann", command="python train.py " + "--flag " * 40, own=True)
    text = as_text(replace(FULL, devices=(replace(FULL[0], processes=(process,)),)), width=width)
    row = next(line for line in text.splitlines() if "(this kernel)" in line)
    assert "pyth" in row
    assert len(row) <= max(width, 45)
    if width >= 80:
        assert all(part in row for part in ("ann", "compute", "python train.py"))


def test_columns_that_have_no_room_are_named() -> None:
    dropped = "not shown, the output is too narrow: "
    assert dropped not in as_text(FULL, width=140)
    assert f"{dropped}Temp, Power\n" in as_text(FULL, width=80)


def test_a_long_error_leaves_the_other_devices_their_columns() -> None:
    error = "the GPU is lost: it needs a reset, or the machine a reboot"
    table = replace(FULL, devices=(*FULL[:2], replace(FULL[2], error=error)))
    lines = as_text(table, width=110).splitlines()
    assert lines[0].split() == (
        "GPU CUDA Name Memory used / total Util Temp Power Mine Others".split()
    )
    assert "the GPU is lost: it …" in lines[4]
    assert f"GPU 2: {error}." in lines


def test_processes_are_escaped_in_html() -> None:
    html = as_html(FULL)
    assert "python &lt;b&gt;x&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "(this kernel)" in html


def test_no_device_is_said_with_its_reason() -> None:
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


# --- on the virtual GPU --------------------------------------------------------------------------


def test_the_devices_of_the_machine(virtual_gpu: Any) -> None:
    virtual_gpu.set_gpu(1, utilization=33, temperature=55, power=250)
    table = gpumagic.devices()
    assert [device.index for device in table] == [0, 1, 2, 3]
    assert (table[1].utilization, table[1].temperature, table[1].power) == (33, 55, 250.0)
    assert table[0].memory_total is not None
    assert len({device.uuid for device in table}) == 4
    assert table.driver_version


def test_this_kernels_own_memory_and_others(virtual_gpu: Any) -> None:
    import torch

    virtual_gpu.add_process(0, 4242, 3 * GIB, "someone")
    block = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    first, second, *_ = gpumagic.devices()
    assert first.memory_own is not None
    assert first.memory_own >= GIB
    assert first.memory_others == 3 * GIB
    assert [p.own for p in first.processes or () if p.pid == 4242] == [False]
    assert second.memory_others == 0
    del block
    torch.cuda.empty_cache()


def test_only_what_is_printed_to_a_terminal_is_as_wide_as_that() -> None:
    """A kernel's output is not shown in the terminal that its server was started in."""
    source = (
        "import io, os, sys; from gpumagic.render.text import columns\n"
        "printed, real, sys.stdout = columns(), sys.stdout, io.StringIO()\n"
        "elsewhere = columns(); os.environ['COLUMNS'] = '33'; wanted = columns()\n"
        "print(printed, elsewhere, wanted, file=real)"
    )
    # Named, since readline may have written its size into what libc would hand on.
    env = dict(os.environ)
    python = pexpect.spawn(
        sys.executable, ["-c", source], env=env, dimensions=(24, 61), timeout=None
    )
    assert python.read().split() == [b"61", b"80", b"33"]
    python.close()


def test_the_magic_shows_text_and_html(run_cell: Callable[..., Any]) -> None:
    ran = run_cell("%gpu -p")
    assert "cuda:0" in ran.text
    assert "<table" in ran.html


def test_the_result_options(run_cell: Callable[..., Any], ip: Any) -> None:
    assert run_cell("%gpu").value is None
    ran = run_cell("%gpu -o -q")
    assert isinstance(ran.value, DeviceTable)
    run_cell("%gpu -q -v devices")
    assert len(ip.user_ns["devices"]) == 4
    silent = run_cell("%gpu ;")
    assert silent.text == ""
    ip.run_cell("%config GpuMagic.quiet = True")
    assert run_cell("%gpu").text == ""


def test_with_o_the_table_stands_once(run_cell: Callable[..., Any]) -> None:
    ran = run_cell("%gpu -o")
    assert ran.text.count("cuda:0") == 1
    assert repr(ran.value) == "<DeviceTable: 4 devices>"


def test_watch_ends_and_leaves_the_table(run_cell: Callable[..., Any]) -> None:
    ran = run_cell("%gpu watch --every 0.05 --for 0.1 -o")
    assert isinstance(ran.value, DeviceTable)
    assert "cuda:0" in ran.stdout + ran.text


def test_help_is_complete(run_cell: Callable[..., Any]) -> None:
    from gpumagic.magics.gpu.command import help_text, parser

    for option in parser().option_strings():
        assert option in help_text()
    assert "examples:" in help_text()
