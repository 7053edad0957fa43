"""What of a process goes on after a restart, what ends, and which shells are not restarted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import psutil
import pytest

from gpumagic.errors import RestartError
from gpumagic.restart import before, handover, program, running
from gpumagic.system import child_process
from tests.restart import AUTORELOAD, FREEZE, PID, answers, report
from tests.support.kernels import Kernel, end_client, manage, running_kernel
from tests.support.terminal import Terminal
from tests.support.waiting import until

Kernels = Callable[..., Kernel]

#: What a session leaves open: files, folders, descriptors, exit functions, timers, threads.
LEFT = """
import atexit, os, signal, socket, sys, threading, time
out = open('half', 'w'); _ = out.write('buffered')
atexit.register(lambda: open('ran', 'w').close())
os.set_inheritable(null := os.open('/dev/null', os.O_RDWR), True); os.dup2(null, 200)
listening = socket.create_server(('127.0.0.1', 0)); os.dup2(listening.fileno(), 201)
signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ctypes.CDLL(None).signal(signal.SIGINT, 0)  # a handler that is none of Python's
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): self.stream.write(text)
    def flush(self): raise ValueError
"""

#: Objects with a file, which goes when they do.
FINALISED = """
class Scratch:
    def __init__(self, name):
        self.path = folder / name; self.path.touch()
    def __del__(self):
        self.path.unlink()
class Bad:
    def __setstate__(self, state):
        raise ValueError("no more")
class Watched:
    def __init__(self, name):
        self.path = folder / name; self.path.touch()
        weakref.finalize(self, self.path.unlink)
pair, b, watched = [Scratch('a.out'), Bad()], Scratch('b.out'), Watched('c.out')
pair[1].n = 1
"""


@pytest.fixture(scope="class")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("kernel")
    with running_kernel(folder) as k:
        noted = SimpleNamespace(kernel=k, folder=folder, pid=k.value(PID))
        k.run(f"{FREEZE}\n{LEFT}")
        # With such a stream ipykernel itself sends no reply to any cell.
        k.submit("sys.stdout = Tee(sys.stdout)")
        (noted.asked,) = answers(k.client, [k.submit("%gpu 1 --restart --force")])
        yield noted


class TestTheEnd:
    """Of a process with all that is `LEFT`, as Python and ipykernel end it; the next one is new."""

    def test_it_is_answered(self, ended: SimpleNamespace) -> None:
        assert ended.asked.status == "ok"
        assert ended.kernel.value(PID) == ended.pid

    def test_files_and_exit_functions(self, ended: SimpleNamespace) -> None:
        assert (ended.folder / "half").read_text() == "buffered"
        assert (ended.folder / "ran").exists()

    def test_objects_that_go_on_are_not_finalised(self, kernel: Kernels, tmp_path: Path) -> None:
        """Nor are their copies in the child, whether the restart is refused or not."""
        k = kernel()
        k.run(f"import pathlib, weakref; {FREEZE}; folder = pathlib.Path({str(tmp_path)!r})")
        k.run(FINALISED)
        refused = k.run("%gpu 1 --restart", raising=False).stderr
        assert "cannot keep pair (no more)" in refused
        assert sorted(each.name for each in tmp_path.glob("*.out")) == ["a.out", "b.out", "c.out"]
        k.run("del pair[1]")
        assert "No variable was lost." in k.run("%gpu 1 --restart").text
        assert sorted(each.name for each in tmp_path.glob("*.out")) == ["a.out", "b.out", "c.out"]
        k.run("del pair, b")
        assert sorted(each.name for each in tmp_path.glob("*.out")) == ["c.out"]

    def test_descriptors(self, ended: SimpleNamespace) -> None:
        """Those of GPUs, for example, would hold the memory of the old program."""
        descriptors = ended.kernel.value("__import__('os').listdir('/proc/self/fd')")
        assert {"200", "201"}.isdisjoint(descriptors)

    def test_signals_and_timers(self, ended: SimpleNamespace) -> None:
        k = ended.kernel
        k.run("import signal, time; time.sleep(1.2)")
        assert k.value("[*signal.pthread_sigmask(signal.SIG_BLOCK, [])]") == []
        assert k.run("raise KeyboardInterrupt", raising=False).status == "error"
        running = k.submit("print('runs'); time.sleep(100)")
        k.until(running, "runs")
        k.interrupt()
        assert "KeyboardInterrupt" in k.wait(running).shown

    def test_what_programs_write(self, ended: SimpleNamespace) -> None:
        assert "from a child" in ended.kernel.run("!echo from a child").stdout


def test_standard_streams_stay_connected(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """What a process writes to its descriptors reaches the server's log, before and after."""
    from jupyter_client.manager import KernelManager

    file = tmp_path / "log"
    with file.open("wb") as log:
        manager = manage(KernelManager(kernel_name="python3"), fresh=True)
        manager.start_kernel(env=child_environment(), stdout=log, stderr=log)
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=300)
            say = "import os; os.write(1, b'{0} out\\n'); os.write(2, b'{0} err\\n')"
            for cell, lines in (
                ("%load_ext gpumagic", ()),
                (FREEZE, ()),
                (say.format("before"), ("before out\n", "before err\n")),
                ("%gpu off --restart", ()),
                (say.format("after"), ("after out\n", "after err\n")),
            ):
                reply = client.execute_interactive(cell, timeout=300, output_hook=lambda _: None)
                assert reply["content"]["status"] == "ok", reply["content"]
                for line in lines:
                    until(lambda line=line: line in file.read_text(), file.read_text)
        finally:
            end_client(client)
            manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
    text = file.read_text()
    for line in ("before out", "before err", "after out", "after err"):
        assert text.count(line) == 1


@pytest.mark.parametrize(
    "gone",
    [
        "os.rmdir(os.getcwd()); os.environ['TMPDIR'] = '/nowhere'",
        "get_ipython().starting_dir = os.getcwd(); os.rmdir(os.getcwd())",
    ],
)
def test_a_folder_that_is_gone(kernel: Kernels, gone: str) -> None:
    k = kernel()
    k.run(f"{FREEZE}; x = 5\nimport os, tempfile\nos.chdir(tempfile.mkdtemp())\n{gone}")
    k.run("tempfile.tempdir = None")
    assert k.run("%gpu 1 --restart --keep x").text.startswith("restarted: this process sees 1 GPU")
    assert k.value("(x, __import__('os').path.isdir(__import__('os').getcwd()))") == (5, True)


FIRST = """
def load_ipython_extension(shell): shell.user_ns['first'] = shell.execution_count
"""


def test_the_users_extensions_and_lines_are_run_again(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Those of the command line, and those that a cell has loaded; one that has gone is named."""
    (tmp_path / "first_ext.py").write_text(FIRST)
    (tmp_path / "second_ext.py").write_text(FIRST.replace("first", "second"))
    environment = child_environment()
    path = os.pathsep.join([environment["PYTHONPATH"], str(tmp_path)])
    options = ("extra_extensions=first_ext", "exec_lines=started = 1")
    arguments = [f"--IPKernelApp.{each}" for each in options]
    with running_kernel(tmp_path, {**environment, "PYTHONPATH": path}, *arguments) as k:
        k.run("%load_ext second_ext")
        if AUTORELOAD:
            k.run("%load_ext autoreload\n%autoreload 2\n%aimport json")
        k.run(FREEZE)
        assert k.run("%gpu 0 --restart").text.startswith("restarted: ")
        assert k.value("(first > 0, second > 0, started)") == (True, True, 1)
        if AUTORELOAD:
            reloader = "get_ipython().magics_manager.registry['AutoreloadMagics']._reloader"
            asked = f"({reloader}.enabled, {reloader}.check_all, [*{reloader}.modules])"
            assert k.value(asked) == (True, True, ["json"])
        assert k.value("__import__('os').environ['PYTHONPATH']") == path
        (tmp_path / "second_ext.py").unlink()
        k.run(f"import shutil; shutil.rmtree({str(tmp_path / '__pycache__')!r}, True)\n{FREEZE}")
        shown = k.run("%gpu 1 --restart").text
        assert "Not loaded again: second_ext (ModuleNotFoundError" in shown


def test_a_gpumagic_that_only_the_notebook_finds(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Its folder is in ``sys.path`` by a cell; a new program alone would not find it."""
    environment = {**child_environment(), "PYTHONPATH": ""}
    with running_kernel(tmp_path, environment, load=False, fresh=True) as k:
        k.run(f"import sys; sys.path.append({str(Path(before.__file__).parents[2])!r})")
        k.run(f"%load_ext gpumagic\n{FREEZE}")
        assert k.run("%gpu 1 --restart").text.startswith("restarted: ")
        assert k.value("__import__('os').environ.get('PYTHONPATH')") == ""


def test_terminal(terminal: Terminal) -> None:
    t = terminal
    t.run(FREEZE + "; x = [1, 2]; y = 3")
    pid = t.run("import os; print(os.getpid())")
    shown = report(t.run("%gpu 0 --restart --keep x"))
    assert shown.startswith("restarted: this process sees 1 GPU")
    assert "Kept: x.\nImported anew: ctypes, os.\nIt took " in shown
    assert t.run("import os; print(os.getpid(), x, 'y' in globals())") == f"{pid} [1, 2] False"
    assert "%gpu 0 --restart --keep x" in t.run("%history")
    assert t.run("1 + 1").startswith("Out[7]: 2")
    t.run(FREEZE)
    assert "Kept: x.\nImported anew: ctypes, os.\nIt took " in report(
        t.run("r = %gpu 1 --restart --keep x -o")
    )
    assert t.run("print(r.status, x)") == "restarted [1, 2]"


@pytest.mark.parametrize(
    ("words", "given", "options", "said"),
    [
        (["python", "app.py"], [], {}, "part of another program"),
        (["python", "app.py", "-f", "x"], ["--other"], {}, "part of another program"),
        (["python", "-m", "IPython"], [], {"file_to_run": "a.py"}, "has run a file or a command"),
        (["python", str(Path(sys.executable).with_name("ipython"))], [], {}, None),
        (["python", "-m", "ipykernel_launcher", "-f", "x"], ["-f", "x"], {}, None),
        (["python", "-m", "mine.kernel", "-f", "x"], ["-f", "x"], {}, "mine.kernel, which has st"),
        (["python", "mine.py", "-f", "x"], ["-f", "x"], {}, "mine.py, which has started"),
    ],
)
def test_which_programs_can_start_again(
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    given: list[str],
    options: dict[str, str],
    said: str | None,
) -> None:
    run = {"file_to_run": "", "code_to_run": "", "module_to_run": "", **options}
    app = SimpleNamespace(argv=given, extra_extensions=["mine", "ours"], **run)
    shell = app.shell = SimpleNamespace(parent=app, starting_dir="/tmp")
    monkeypatch.setattr(sys, "orig_argv", words)
    if said is None:
        before.check(shell, force=True)
        made = program.command(app, "ours")
        assert made[1 : len(words)] == words[1:]
        assert [word.rpartition("=")[2] for word in made[len(words) :]] == ["mine", "ours", "False"]
        monkeypatch.setattr(sys, "orig_argv", made)
        assert program.command(app, "ours") == made  # and again
    else:
        with pytest.raises(RestartError, match=said):
            before.check(shell, force=True)


def test_a_shell_of_another_program_is_not_restarted(run_cell: Callable[..., Any]) -> None:
    shell = run_cell("get_ipython()").value
    with pytest.raises(RestartError, match="only a Jupyter kernel or IPython in a terminal"):
        before.check(shell)


def test_other_systems_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        RestartError, match=r"restart the notebook process .*, and choose its GPUs in the first"
    ):
        before.check(None)


def test_a_child_does_not_take_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It inherits the variable, if the new program starts one before it has read the state."""
    with open(os.memfd_create("state"), "w+b", closefd=False) as file:
        value = handover.give(file, {"a": 1})
    monkeypatch.setenv(handover.VARIABLE, value.partition(":")[0] + ":1")
    assert handover.take() is None
    monkeypatch.setenv(handover.VARIABLE, value)
    assert handover.take() == {"a": 1}
    assert handover.take() is None


def test_packages_in_a_folder_of_pythonpath_are_no_code_of_the_users(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """As on clusters: the kernel's own threads would be the user's, and no restart was possible."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for each in Path(IPython.__file__).parents[1].iterdir():
        if not each.name.startswith(("torch", "nvidia", "triton")):
            (folder / each.name).symlink_to(each)
    fresh = kernel(env={"PYTHONPATH": str(folder)}, fresh=True)
    assert fresh.value("get_ipython().__class__.__module__").startswith("ipykernel")
    assert fresh.value("__import__('IPython').__file__").startswith(str(folder))
    fresh.run("gone = 1")
    fresh.run("%gpu restart --keep none -q")
    assert fresh.value("'gone' in globals()") is False


def test_what_ends_by_itself_is_no_obstacle() -> None:
    """The helper of joblib and scikit-learn; a process that goes on is one."""
    source = "import time; print(flush=True); time.sleep(600)"
    for comment, expected in ((" # loky.backend.resource_tracker", False), ("", True)):
        command = [sys.executable, "-c", source + comment]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert (process.pid in running.children()) is expected
            process.kill()


def test_an_interrupted_child_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next restart would be refused because of it."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        child_process.run([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, 600)
    assert {each.pid for each in psutil.Process().children()} <= before
