"""The current GPU memory, and its change by a cell."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.results import DeviceMemory, DeviceMemoryDelta, MemoryDelta, MemoryReport
from gpumagic.results.base import as_html, as_text
from tests.support.drawing import check_drawing

GIB = 2**30
MIB = 2**20

REPORT = MemoryReport(
    {
        0: DeviceMemory(
            allocated=12 * GIB,
            reserved=16 * GIB,
            peak=13 * GIB,
            free=60 * GIB,
            total=80 * GIB,
            outside=GIB // 2,
            others=3 * GIB,
            name="NVIDIA <H100>",
            index=2,
            allocated_change=GIB // 4,
            reserved_change=0,
            context=True,
        ),
        1: DeviceMemory(
            allocated=0,
            reserved=0,
            peak=0,
            total=80 * GIB,
            name="NVIDIA <H100>",
            index=3,
            context=False,
        ),
    },
    notes=("a note",),
)

WIDE = """\
2 × NVIDIA <H100>
Device                          Free / total  Allocated  Reserved    Others      Peak  Non-PyTorch  GPU
───────────────────────────────────────────────────────────────────────────────────────────────────────
cuda:0  ██▓░             60.0 GiB / 80.0 GiB   12.0 GiB  16.0 GiB  3.00 GiB  13.0 GiB      512 MiB    2
cuda:1                          – / 80.0 GiB        0 B       0 B         –       0 B            –    3
█ allocated  ▓ cached  ▒ non-PyTorch  ░ other processes
Since the last report: cuda:0 allocated +256 MiB
a note"""  # noqa: E501

NARROW = """\
2 × NVIDIA <H100>
Device                     Free / total  Allocated  Reserved
────────────────────────────────────────────────────────────
cuda:0  ██▓         60.0 GiB / 80.0 GiB   12.0 GiB  16.0 GiB
cuda:1                     – / 80.0 GiB        0 B       0 B
hidden (too narrow): Others, Peak, Non-PyTorch, GPU
█ allocated  ▓ cached  ▒ non-PyTorch  ░ other processes
Since the last report: cuda:0 allocated +256 MiB
a note"""

DELTA = MemoryDelta(
    {
        0: DeviceMemoryDelta(512 * MIB, GIB, GIB, 12 * GIB, 14 * GIB),
        1: DeviceMemoryDelta(0, 0, 0, 5, 5),
        2: DeviceMemoryDelta(-512, 0, 512, 1024, 2 * MIB, ooms=1, retries=2),
    }
)

CHANGE = """\
Device  Allocated  Peak above start   Reserved  Allocated now  Reserved now
───────────────────────────────────────────────────────────────────────────
cuda:0   +512 MiB         +1.00 GiB  +1.00 GiB       12.0 GiB      14.0 GiB
cuda:2     −512 B            +512 B        0 B       1.00 KiB      2.00 MiB
cuda:2: out of memory, 1 allocation failed
cuda:2: 2 allocations tried again after emptying the cache"""


def test_the_report_in_a_wide_terminal() -> None:
    check_drawing(REPORT, WIDE, width=120)


def test_the_report_in_a_narrow_terminal() -> None:
    assert as_text(REPORT, 60) == NARROW


def test_the_report_in_a_notebook() -> None:
    html = as_html(REPORT)
    assert html.count("<tr") == 3
    assert "NVIDIA &lt;H100&gt;" in html
    assert "<H100>" not in html
    uses = "allocated 15 %, cached 5 %, non-PyTorch 1 %, other processes 4 %, free 76 %"
    assert f'aria-label="{uses}"' in html
    assert "60.0 GiB" in html


def test_little_free_memory_is_coloured() -> None:
    def html(free: int) -> str:
        row = DeviceMemory(free=free, total=100 * GIB, context=True)
        return as_html(MemoryReport({0: row}))

    assert "#e85a5a" in html(GIB)
    assert "#c77700" in html(9 * GIB)
    assert "currentColor" not in html(50 * GIB)


def test_what_the_driver_reserves_is_not_in_use() -> None:
    row = DeviceMemory(free=15 * GIB, total=16 * GIB)
    assert "?" in as_text(MemoryReport({0: row}))
    shown = as_text(MemoryReport({0: replace(row, driver_reserved=GIB)}))
    assert "?" not in shown
    assert "15.0 GiB / 16.0 GiB" in shown
    told = "Reserved by the driver, in the total and not usable: "
    assert f"{told}cuda:0 1.00 GiB" in shown
    one = replace(row, driver_reserved=GIB)
    assert f"{told}1.00 GiB of each" in as_text(MemoryReport({0: one, 1: one}))
    other = replace(row, driver_reserved=2 * GIB)
    assert f"{told}cuda:0 1.00 GiB; cuda:1 2.00 GiB" in as_text(MemoryReport({0: one, 1: other}))


def test_no_report() -> None:
    shown = as_text(MemoryReport(error="this machine has no GPU"))
    assert shown == "No GPU memory to show: this machine has no GPU"


def test_private_pools_fragmentation_and_pinned_memory() -> None:
    row = DeviceMemory(allocated=1, reserved=1, fragmented=MIB, graph_pools=2 * MIB, mem_pools=3)
    report = MemoryReport({0: row, 1: row}, pinned=4 * MIB, pinned_active=MIB, in_use=True)
    assert str(report).splitlines()[-4:] == [
        "CUDA graphs' pools, of reserved: cuda:0 2.00 MiB; cuda:1 2.00 MiB",
        "MemPools and pools shared by graphs, of reserved: cuda:0 3 B; cuda:1 3 B",
        "Fragmentation, free within segments in use: cuda:0 1.00 MiB; cuda:1 1.00 MiB",
        "Pinned host memory: 4.00 MiB, 1.00 MiB by live tensors",
    ]
    unknown = str(MemoryReport({0: row}, in_use=True))
    assert unknown.endswith("Pinned host memory: – (not counted by this torch)")


def test_noise_has_no_line() -> None:
    row = DeviceMemory(allocated=GIB, reserved=GIB, fragmented=MIB)
    assert "Fragmentation" not in str(MemoryReport({0: row}, pinned=4, pinned_active=4))
    assert "Pinned" not in str(MemoryReport({0: row}, pinned=4, pinned_active=4))


def test_a_device_that_others_have_filled_is_not_empty() -> None:
    """Memory of unknown use is neither free nor counted to other processes."""
    full = DeviceMemory(free=2 * GIB, total=80 * GIB, others=78 * GIB, name="A")
    unknown = replace(full, others=None, name="B")
    lines = as_text(MemoryReport({0: full, 1: unknown}), 120).splitlines()
    assert lines[2].startswith("cuda:0  ░░░░░░░░░░░░░░░  ! 2.00 GiB / 80.0 GiB")
    assert lines[3].startswith("cuda:1  ???????????????  ! 2.00 GiB / 80.0 GiB")
    assert lines[-1] == "░ other processes  ? in use, not known by what"


def test_what_there_is_none_of_has_no_line() -> None:
    row = DeviceMemory(allocated=1, reserved=1, fragmented=0, graph_pools=0, mem_pools=0)
    text = as_text(MemoryReport({0: row}, pinned=0, pinned_active=0, in_use=True))
    for word in ("pools", "Pools", "Fragmentation", "Pinned"):
        assert word not in text


def test_a_change() -> None:
    check_drawing(DELTA, CHANGE)


def test_a_change_in_a_narrow_terminal() -> None:
    assert as_text(DELTA, 60).splitlines()[2] == ("cuda:0   +512 MiB         +1.00 GiB  +1.00 GiB")


def test_no_change() -> None:
    assert as_text(MemoryDelta({0: DeviceMemoryDelta(0, 0, 0, 5, 5)})) == "GPU memory: no change"


def test_no_figures() -> None:
    shown = as_text(MemoryDelta(error="torch is not imported"))
    assert shown == "GPU memory: not measured, torch is not imported"


def test_repr() -> None:
    assert repr(REPORT) == "<MemoryReport: 2 devices>"
    assert repr(MemoryReport()) == "<MemoryReport: 0 devices>"
    assert repr(MemoryDelta({1: DeviceMemoryDelta(-512, 0, 0)})) == "<MemoryDelta 1: -512 B>"
    assert repr(MemoryDelta()) == "<MemoryDelta no device>"
