"""The processes that use a device, as tables show them."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.render.blocks import Line
from gpumagic.results import Device, DeviceTable, Process
from gpumagic.results.base import as_html, as_text
from gpumagic.results.processes import ProcessRow, most_memory, process_rows

MIB, GIB = 2**20, 2**30
TRAIN = Process(1, GIB, user="me", command="python train.py", mine=True)


def test_of_many_processes_those_with_the_most_memory_are_shown() -> None:
    def rows(processes: list[Process]) -> list[ProcessRow]:
        return process_rows((("0",), process) for process in processes)

    few = rows([Process(pid, pid) for pid in range(50)])
    assert most_memory(few) == (few, [])
    many = rows([Process(pid, memory=(pid % 60) * MIB if pid else None) for pid in range(60)])
    shown, rest = most_memory(many)
    assert [row.first.pid for row in shown] == list(range(10, 60))
    assert rest == [Line.of("and 10 more, with 45.0 MiB in all", "dim")]


def test_a_command_is_shortened_and_the_whole_is_on_hover_where_it_is_the_users_own() -> None:
    def cell(**fields: object) -> tuple[str, str | None]:
        found = ProcessRow(("0",), (Process(1, **fields),)).command  # type: ignore[arg-type]
        return found.text, found.whole

    assert cell() == ("–", None)
    assert cell(command="python train.py") == ("python train.py", None)
    assert cell(command="x" * 100) == ("x" * 79 + "…", None)
    assert cell(command="x" * 100, mine=False) == ("x" * 79 + "…", None)
    assert cell(command="x" * 100, mine=True) == ("x" * 79 + "…", "x" * 100)
    long = "n" * 90 + ".ipynb"
    assert cell(notebook=long, mine=True, folder="/srv", idle=0.0) == (
        "n" * 79 + "…, busy",
        f"{long} in /srv, busy",
    )


def test_equal_processes_share_a_row_with_the_sum_of_their_memory() -> None:
    def shown(*processes: Process, width: int = 100) -> list[str]:
        table = DeviceTable((Device(0, processes=processes),), show_processes=True)
        lines = as_text(table, width).splitlines()
        place = next(i for i, line in enumerate(lines) if "PID" in line)
        return [" ".join(line.split()) for line in lines[place + 2 :]]

    same = [replace(TRAIN, pid=pid) for pid in (11, 12, 13, 14, 15)]
    assert shown(*same[:2]) == ["0 11 and 1 more me 2.00 GiB 2 × python train.py"]
    assert shown(*same) == ["0 11 and 4 more me 5.00 GiB 5 × python train.py"]
    table = DeviceTable((Device(0, processes=tuple(same)),), show_processes=True)
    assert 'title="11, 12, 13, 14, 15"' in as_html(table)
    # The sum of what is not known is not known.
    assert shown(same[0], replace(same[1], memory=None)) == [
        "0 11 and 1 more me – 2 × python train.py"
    ]


def test_what_differs_has_rows_of_its_own() -> None:
    others = [
        replace(TRAIN, pid=2, user="ann", mine=False),
        replace(TRAIN, pid=3, kind="graphics"),
        replace(TRAIN, pid=4, command="python eval.py"),
        # Kernels, each with its notebook; the one that asks; what is not known.
        replace(TRAIN, pid=5, notebook="a.ipynb"),
        replace(TRAIN, pid=6, notebook="a.ipynb"),
        replace(TRAIN, pid=7, own=True),
        Process(8, GIB),
        Process(9, GIB),
    ]
    rows = process_rows((("0",), process) for process in (TRAIN, *others))
    assert [len(row.processes) for row in rows] == [1] * 9
    on_two_devices = [(("0",), TRAIN), (("1",), TRAIN)]
    assert len(process_rows(on_two_devices)) == 2
