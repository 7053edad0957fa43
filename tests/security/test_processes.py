"""What is told of the processes of others, and what they cannot do by what they call themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from gpumagic import cli
from gpumagic.cuda import devices
from gpumagic.cuda.processes import command_name, looked_up
from gpumagic.memory import oom, remedies
from gpumagic.render import as_html, as_text
from gpumagic.restart import execve, losses
from gpumagic.results import Device, DeviceTable, OutOfMemory, Process
from tests.security.neighbour import UID, needs_neighbour

GIB = 2**30
SECRET = "--token=hunter2"


@contextmanager
def running(virtual_gpu: Any, *words: str, **options: Any) -> Iterator[int]:
    """A process on GPU 0 with these arguments; its pid."""
    command = [sys.executable, "-c", "input()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, **options) as other:
        virtual_gpu.add_process(0, other.pid, GIB, "other")
        try:
            yield other.pid
        finally:
            other.communicate(b"\n")


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "in_first_pid_namespace", lambda: True)


def found(pid: int, **options: Any) -> Process:
    (one,) = (p for p in gpumagic.devices(**options)[0].processes or () if p.pid == pid)
    return one


def test_arguments_are_not_told(
    virtual_gpu: Any, run_cell: Callable[..., Any], capsys: Any
) -> None:
    """Nor shown, nor in the data; one's own only where they are asked for."""
    with running(virtual_gpu, SECRET) as pid:
        one = found(pid)
        assert one.command is not None
        assert one.command.endswith(" -c")
        assert one.mine is True
        assert SECRET in str(found(pid, arguments=True).command)
        shown = run_cell("%gpu -p -o")
        assert SECRET not in shown.text + shown.html + shown.value.to_json()
        asked = run_cell("%gpu -p --arguments -o")
        assert SECRET in asked.value.to_json()
        assert cli.main(["table", "--json"]) == 0
        assert SECRET not in capsys.readouterr().out
        assert cli.main(["table", "--json", "--arguments"]) == 0
        assert SECRET in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")
@pytest.mark.parametrize("psutil", [True, False])
def test_children_that_a_restart_would_end_are_told_by_name(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch, psutil: bool
) -> None:
    if not psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    program = Path(sys.executable).name
    with running(virtual_gpu, SECRET) as pid, running(virtual_gpu, "forkserver") as other:
        refused = " ".join(losses.named({}))
        assert f"{pid} ({program} -c)" in refused
        assert f"{other} ({program} -c)" in refused
        assert SECRET not in refused
    helper = [sys.executable, "-c", "input()", "torch_shm_manager"]
    with subprocess.Popen(helper, stdin=subprocess.PIPE) as ends_by_itself:
        assert ends_by_itself.pid not in execve.children()
        assert ends_by_itself.pid in execve.children(helpers=True)
        ends_by_itself.communicate(b"\n")


@needs_neighbour
def test_others_arguments_are_never_told(virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(virtual_gpu, SECRET) as pid:
        # Another user's, as seen by whoever is not root: that would take a Python they can start.
        monkeypatch.setattr(os, "getuid", lambda: UID)
        one = found(pid, arguments=True)
    assert one.mine is False
    assert SECRET not in str(one)


@pytest.mark.parametrize(
    ("words", "name", "told"),
    [
        (
            ["/usr/bin/python3", "/home/ann/secret project/train.py", SECRET],
            "x",
            "python3 train.py",
        ),
        (["python", "-u", "-X", "dev", "-W", "error", "a.py", SECRET], "x", "python a.py"),
        (
            ["python3.11", "-m", "torch.distributed.run", SECRET],
            "x",
            "python3.11 -m torch.distributed.run",
        ),
        (["python", "-m"], "x", "python -m"),
        (["python", "-c", SECRET], "x", "python -c"),
        (["python", f"-c{SECRET}"], "x", "python -c"),
        (["python", "-u"], "x", "python -u".split()[0]),
        (["python3", "-uc", SECRET], "x", "python3 -c"),
        (["python3", "-Ic", SECRET], "x", "python3 -c"),
        (["python3", "-", SECRET], "x", "python3 -"),
        (["python", "-mfoo", SECRET], "x", "python -m foo"),
        (["python", "-BW", "error", "a.py", SECRET], "x", "python a.py"),
        (["python", "-Xdev", "a.py", SECRET], "x", "python a.py"),
        (["python", "--check-hash-based-pycs", "never", "a.py", SECRET], "x", "python a.py"),
        (["pypy-job", SECRET], "x", "pypy-job"),
        (["C:\\Python\\pythonw.exe", "d:\\x\\a.py"], "x", "pythonw.exe a.py"),
        (["java", "-jar", SECRET], "java", "java"),
        ([f"python train.py {SECRET}"], "python train.py", "python"),
        ([f"postgres: ann {SECRET}", ""], "postgres", "postgres"),
        *(([f"python{s}train.py{s}{SECRET}"], "python", "python") for s in "\t\xa0\u2003\n"),
        *(([f"job{s}--url=a/{SECRET}"], "job", "job") for s in " \t\xa0"),
        ([f"job\t{SECRET}"], f"job\t{SECRET}", "job"),
        (["python\t-c", SECRET[2:]], "python", "python"),
        *((["python", f"a.py{s}--url=a/{SECRET}"], "x", "python a.py") for s in " \t\xa0"),
        *((["python", f"/a/a.py{s}{SECRET[2:]}"], "x", "python a.py") for s in " \t\xa0"),
        *((["python", "-m", f"a.b{s}{SECRET}"], "x", "python -m a.b") for s in " \t\xa0"),
        *(
            (["python", option, SECRET[2:]], "x", "python")
            for option in (
                "-V",
                "-VV",
                "-uV",
                "-?",
                "-h",
                "-Z",
                "-u\t",
                "--help-all",
                "--",
                "--x=y",
            )
        ),
        (["\t"], "", ""),
        (["python", "\t"], "x", "python"),
        ([], "Xorg", "Xorg"),
        (["", ""], "", ""),
        (["/"], "x", "/"),
        (["python", "x" * 10**6], "x", f"python {'x' * 64}"),
        (["y" * 10**6], "x", "y" * 64),
    ],
)
def test_the_name_of_a_command(words: list[str], name: str, told: str) -> None:
    assert command_name(words, name) == told


HOSTILE = "\x1b[2J\x1b]0;owned\x07\nline\r\x9b31m\u202egnp\u2066\u200b\U000e0041é 漢"
SEEN = "�[2J�]0;owned��line��31m�gnp���é 漢"


def test_a_name_does_not_steer_the_terminal(virtual_gpu: Any) -> None:
    with running(virtual_gpu, HOSTILE) as pid:
        table = DeviceTable(
            (Device(0, processes=(found(pid, arguments=True),)),), show_processes=True
        )
    for drawn in (as_text(table, 300), as_html(table)):
        assert SEEN in drawn


def everything_hostile() -> Iterator[Any]:
    process = Process(7, GIB, user=HOSTILE, command=HOSTILE)
    device = Device(0, name=HOSTILE, uuid=HOSTILE, error=HOSTILE, processes=(process,))
    yield DeviceTable(
        (device, Device(1, name=HOSTILE, processes=(process,))),
        environment={"CUDA_VISIBLE_DEVICES": HOSTILE},
        show_processes=True,
        notes=(HOSTILE,),
    )
    yield DeviceTable(error=HOSTILE)
    yield gpumagic.results.ClusterTable(
        (
            gpumagic.results.EngineDevices(0, error=HOSTILE),
            gpumagic.results.EngineDevices(
                1, host=HOSTILE, pid=1, table=DeviceTable((device,), show_processes=True)
            ),
        ),
        HOSTILE,
        1.0,
        True,
    )
    yield gpumagic.results.ProcessGroup({0: 0}, HOSTILE, HOSTILE, {1: HOSTILE}, (HOSTILE,))
    yield OutOfMemory(where=HOSTILE, source=HOSTILE, name=HOSTILE, device=0)


@pytest.mark.parametrize("result", [*everything_hostile()], ids=lambda each: type(each).__name__)
def test_what_is_drawn_is_clean(result: Any) -> None:
    for drawn in (as_text(result, 500), as_html(result)):
        assert "owned" in drawn
        bad = {c for c in drawn if not c.isprintable() and c != "\n"}
        assert not bad
        assert "\nline" not in drawn


def test_an_error_in_one_line_is_clean(run_cell: Callable[..., Any]) -> None:
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster \x1b]0;owned\x07\u202e.json")
    assert str(raised.value).isprintable()


def test_many_processes_and_long_names() -> None:
    many = tuple(Process(pid, pid * 2**20, command="python " + "x" * 5000) for pid in range(10_000))
    table = DeviceTable((Device(0, processes=many),), show_processes=True)
    text, html = as_text(table, 200), as_html(table)
    assert "and 9950 more, with " in text
    assert "and 9950 more, with " in html
    assert "9999" in text  # the largest are shown
    assert len(html) < 60_000
    engine = gpumagic.results.EngineDevices(0, host="h" * 10**6, pid=1, table=table)
    cluster = gpumagic.results.ClusterTable((engine,), "x", 1.0, True)
    assert len(as_html(cluster)) < 300_000


def test_an_engine_with_more_devices_than_there_are() -> None:
    table = DeviceTable(tuple(Device(index, name="x" * 10**4) for index in range(5000)))
    engine = gpumagic.results.EngineDevices(0, host="h", pid=1, table=table)
    silent = tuple(
        gpumagic.results.EngineDevices(number, error=f"{number} " + "e" * 10**4)
        for number in range(1, 5000)
    )
    cluster = gpumagic.results.ClusterTable((engine, *silent), "x", 1.0, False)
    for drawn in (as_text(cluster, 200), as_html(cluster)):
        assert drawn.count("and 4001 more") == 2  # rows of devices, and lines of engines
        assert len(drawn) < 10_000_000


def test_only_some_of_many_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    many = [Process(pid, pid, own=False) for pid in range(1000, 11_000)]
    found = looked_up(many, lambda pid: bool(asked.append(pid)))
    assert len(found) == 10_000
    assert sorted(asked) == list(range(10_800, 11_000))


def test_what_is_others_is_not_to_be_ended() -> None:
    """In a report that nobody asked for, and that is saved with the notebook."""
    other = Process(77, 60 * GIB, user="ann", command="python train.py", own=False, mine=False)
    unknown = Process(78, GIB, own=False)
    mine = Process(79, 2 * GIB, user="me", command="python mine.py", own=False, mine=True)

    def told(*processes: Process, roomier: int | None = None) -> list[remedies.Remedy]:
        now: Any = type("Now", (), {"processes": processes, "requested": GIB, "roomier": roomier})
        return [*remedies._processes(now)]

    assert told(other, unknown) == []
    (elsewhere,) = told(other, roomier=2)
    assert elsewhere.what == "use cuda:2"
    report = OutOfMemory(
        device=0, total=80 * GIB, free=0, others=63 * GIB, processes=(other, mine, unknown)
    )
    for drawn in (as_text(report, 200), as_html(report)):
        assert "python mine.py (pid 79) 2.00 GiB, 2 that are not yours" in drawn
        for word in ("ann", "train.py", "77", "78"):
            assert word not in drawn


def test_one_s_own_may_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "fits", lambda *_: True)
    monkeypatch.setattr(remedies, "_outputs", lambda _: set())
    mine = Process(79, 2 * GIB, user="me", command="python mine.py", own=False, mine=True)
    now: Any = type("Now", (), {"processes": (mine,), "requested": GIB, "roomier": None})
    (remedy,) = remedies._processes(now)
    assert remedy.what == "end python mine.py (pid 79)"
    assert remedy.enough


def test_a_device_with_more_room() -> None:
    table = [
        Device(0, ordinal=0, memory_free=0),
        Device(1, ordinal=1, memory_free=3 * GIB),
        Device(2, ordinal=2, memory_free=5 * GIB),
        Device(3, memory_free=50 * GIB),  # hidden: perhaps it was given to somebody else
        Device(4, ordinal=3),
    ]
    assert oom._roomier(table, 0, 4 * GIB) == 2
    assert oom._roomier(table, 0, 6 * GIB) is None
    assert oom._roomier(table, 0, None) is None
