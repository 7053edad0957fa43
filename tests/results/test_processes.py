"""The processes that use a device, as tables show them."""

from __future__ import annotations

from gpumagic.render.blocks import Line
from gpumagic.results import Process
from gpumagic.results.processes import most_memory, short_command

MIB = 2**20


def test_of_many_processes_those_with_the_most_memory_are_shown() -> None:
    few = [(0, Process(pid, pid)) for pid in range(50)]
    assert most_memory(few) == (few, [])
    many = [(0, Process(pid, memory=(pid % 60) * MIB if pid else None)) for pid in range(60)]
    shown, rest = most_memory(many)
    assert [process.pid for _, process in shown] == list(range(10, 60))
    assert rest == [Line.of("and 10 more, with 45.0 MiB in all", "dim")]


def test_a_command_is_shortened() -> None:
    assert short_command(Process(1)) == "–"
    assert short_command(Process(1, command="python train.py")) == "python train.py"
    assert short_command(Process(1, command="x" * 100)) == "x" * 79 + "…"
