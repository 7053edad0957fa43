"""Other users' processes: what is shown of them, and what that costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpumagic
from gpumagic.cuda import processes
from gpumagic.doctor import failed_cell
from tests.support.other_user import BECOME, UID, needs_root

pytestmark = needs_root
SECRET = "--token=hunter2"


@pytest.fixture(autouse=True)
def _same_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "in_first_pid_namespace", lambda: True)


@contextmanager
def other_users(source: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """A process of the other user that has run this; its pid, and what it says."""
    words = [sys.executable, "-c", f"{source}\n{BECOME}\nprint('there', flush=True)\ninput()"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, *arguments], cwd="/", **pipes) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


def test_the_length_of_a_command_line_costs_nothing(virtual_gpu: Any) -> None:
    """Here 1.8 MB, as much as can be passed; a process can make it a gigabyte of zeros."""
    with other_users("", *["0" * 120_000] * 15) as (pid, _):
        virtual_gpu.add_process(0, pid, 2**30)
        gpumagic.devices()  # with what is imported for it
        tracemalloc.start()
        try:
            listed = gpumagic.devices()[0].processes or ()
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()
    assert f"{Path(sys.executable).name} -c" in [each.command for each in listed if each.pid == pid]


def test_a_chain_of_processes_is_walked_once(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of which has started the next one, and uses the GPU."""
    parent, asked = psutil.Process.parent, list[int]()

    def counted(process: psutil.Process) -> Any:
        asked.append(process.pid)
        return parent(process)

    monkeypatch.setattr(psutil.Process, "parent", counted)
    source = (
        "import os, time\nfor _ in range(30):\n"
        "    print(os.getpid(), end=' ')\n    sys.stdout.flush()\n"
        "    if os.fork():\n        time.sleep(600)\n"
    )
    with other_users(f"import sys\n{source}") as (pid, said):
        pids = [*map(int, said.split()[:-1])]
        try:
            for each in pids:
                virtual_gpu.add_process(0, each, 2**20)
            listed = gpumagic.devices()[0].processes or ()
        finally:
            for each in pids[1:]:
                os.kill(each, signal.SIGKILL)
    assert {each.pid for each in listed if each.child} >= {pid, *pids}
    assert len(asked) <= len(pids)


def test_no_arguments_are_shown(virtual_gpu: Any, run_cell: Any) -> None:
    with other_users("", SECRET) as (pid, _):
        virtual_gpu.add_process(0, pid, 2**30)
        shown = run_cell("%gpu -p -o")
        assert f"{pid}" in shown.text
        assert SECRET not in shown.text + shown.html + shown.value.to_json()


def test_no_name_controls_the_screen_or_hides(virtual_gpu: Any, run_cell: Any) -> None:
    """A program may have any name, of any length."""
    name = f"\x1b[31m\u202e\u3164\u200c<img>{'x' * 9999}"
    with subprocess.Popen([name, "600"], executable="/bin/sleep", user=UID) as process:
        virtual_gpu.add_process(0, process.pid, 2**30)
        shown = run_cell("%gpu -p -o")
        process.kill()
    assert not {"\u202e", "\u3164", "\u200c"} & {*shown.text, *shown.html}
    assert "\x1b[31m" not in shown.text + shown.html
    assert "\ufffd[31m\ufffd<img" in shown.text
    assert "&lt;img" in shown.html
    assert "<img" not in shown.html
    assert "x" * 99 not in shown.text + shown.html
    (listed,) = (each for each in shown.value[0].processes if each.pid == process.pid)
    assert listed.command.isprintable()  # nor in what is made of the result


def test_no_name_is_typeset(virtual_gpu: Any, run_cell: Any) -> None:
    """MathJax would show ``$python%name$`` as ``python``, and paint what ``\\rule`` says.

    It passes over elements of these classes: version 3, in JupyterLab 4 and Notebook 7, and
    version 2, in Notebook 6 and in pages that nbconvert makes.
    """
    name = "$python%miner$"
    with subprocess.Popen([name, "600"], executable="/bin/sleep", user=UID) as process:
        virtual_gpu.add_process(0, process.pid, 2**30)
        html = run_cell("%gpu -p -o").html
        process.kill()
    outermost = re.search(r'<div class="([^"]+)"', html)
    assert outermost is not None
    assert "$python%miner$" in html[outermost.end() :]
    assert {"mathjax_ignore", "tex2jax_ignore"} <= {*outermost[1].split()}


def test_the_line_on_an_out_of_memory_error_names_none_of_them(virtual_gpu: Any) -> None:
    with other_users("") as (pid, _), other_users("") as (second, _):
        total = gpumagic.devices()[0].memory_total or 0
        virtual_gpu.add_process(0, pid, total - 2**21)
        virtual_gpu.add_process(0, second, 2**20)
        line = str(failed_cell.explain(RuntimeError("CUDA error: out of memory")))
        assert "others have" in line
        assert str(pid) not in line
        assert str(second) not in line
