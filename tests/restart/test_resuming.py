"""After ``execve`` there is no way back: in every case the cell that asked gets a reply."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.restart import FREEZE, report
from tests.support import reaper
from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.support.kernels import ROOT, Kernel


def wait_for(path: Path, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} has not come"
        time.sleep(0.01)


class Gate:
    """An IPython profile whose startup file waits for a file, which delays the new process."""

    def __init__(self, folder: Path) -> None:
        startup = folder / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        self.profile = startup.parent
        self.env = {"IPYTHONDIR": str(folder / "ipython")}
        self._opened, self.reached = folder / "opened", folder / "reached"
        (startup / "00.py").write_text(
            "import os, time\n"
            f"open({str(self.reached)!r}, 'w').close()\n"
            f"while not os.path.exists({str(self._opened)!r}): time.sleep(0.01)\n"
        )
        self.open()

    def open(self) -> None:
        self._opened.touch()

    def close(self) -> None:
        self._opened.unlink()
        self.reached.unlink()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_an_interrupt_of_the_new_process_waits_for_the_reply(
    kernel: Callable[..., Kernel], gate: Gate
) -> None:
    """Kept variables are back; the queued cells do not run, as after any interrupt."""
    k = kernel(env=gate.env)
    k.run(f"{FREEZE}; x = [1]")
    gate.close()
    asking, rest = k.submit("%gpu 1 --restart --keep x"), k.submit("print('run')")
    wait_for(gate.reached)
    k.interrupt()
    gate.open()
    reply = k.wait(asking)
    assert reply.status == "error"
    assert report(reply.text).startswith("restarted: this kernel sees 1 GPU")
    assert reply.error is not None
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert k.wait(rest).status == "aborted"
    assert k.run("x").value == "[1]"
    assert k.run("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [])").value == "set()"
    running = k.submit(f"print('begun')\nimport time; {UNTIL_INTERRUPTED}")
    k.until(running, "begun")
    k.interrupt()
    assert k.wait(running).status == "error"


HANGS = """
import os, sys, time

def is_new():
    return getattr(sys.modules.get("gpumagic.restart.loader"), "state", None) is not None

class Hangs:
    def __setstate__(self, state):
        if is_new():
            open({reached!r}, "w").close()
            while True:
                time.sleep(0.01)

    def __getstate__(self):
        return {{"a": 1}}

class Exits(Hangs):
    def __setstate__(self, state):
        if is_new():
            sys.exit("no further")
"""


def _answers(k: Kernel, seconds: float) -> bool:
    """Whether a reply comes. Outputs are looked for too: who does not, does not subscribe again."""
    deadline = time.monotonic() + seconds
    while not k.client.shell_channel.socket.poll(20):
        k.client.iopub_channel.socket.poll(0)
        if time.monotonic() > deadline:
            return False
    return True


def test_an_interrupt_that_is_repeated_ends_what_hangs(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGS.format(reached=str(tmp_path / "reached")))
    k = kernel()
    k.run(f"{FREEZE}; from hanging import Hangs, Exits; hangs = Hangs()")
    count = k.run("1").execution_count
    asking = k.submit("%gpu 1 --restart --keep hangs")
    wait_for(tmp_path / "reached")
    # One at a time: between the answer and the end of its output, one more would be ipykernel's.
    deadline = time.monotonic() + 300
    k.interrupt()
    while not _answers(k, 2.0):
        assert time.monotonic() < deadline
        k.interrupt()
    assert k.wait(asking).status == "error"
    after = k.run("1 + 1")
    assert (after.value, after.execution_count) == ("2", (count or 0) + 2)
    # An end of the process is answered too.
    k.run(f"{FREEZE}; from hanging import Exits; exits = Exits()")
    k.run("%gpu 0 --restart --keep exits", raising=False)
    assert k.run("1 + 1").value == "2"


def test_an_interrupt_before_withdraws_the_restart(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """Until the last moment; here the child that tries the environment is delayed."""
    k = kernel()
    k.run(f"{FREEZE}; kept = 1")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import time\nopen({str(tmp_path / 'tried')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    k.run(f"import os; path = os.environ['PYTHONPATH']\n"
          f"os.environ['PYTHONPATH'] = {str(tmp_path / 'site')!r} + ':' + path")  # fmt: skip
    asking, rest = k.submit("%gpu 1 --restart"), k.submit("1")
    wait_for(tmp_path / "tried")
    k.interrupt()
    reply = k.wait(asking)
    assert reply.shown == "UsageError: interrupted; this kernel goes on as it was\n"
    assert k.wait(rest).status == "aborted"
    assert k.run("kept, os.environ.get('CUDA_VISIBLE_DEVICES')").value == "(1, None)"


#: An interrupt arrives when the child runs, and before the kernel knows it.
INTERRUPTS = """
import signal
from gpumagic.system import child_process
started, start = [], child_process.start
def interrupted(*arguments, **options):
    started.append(start(*arguments, **options))
    signal.raise_signal(signal.SIGINT)
    return started[-1]
child_process.start = interrupted
"""


def test_an_interrupt_while_the_trial_starts_leaves_no_child(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{FREEZE}; kept = 1\n{INTERRUPTS}")
    reply = k.run("%gpu 1 --restart", raising=False)
    assert reply.shown == "UsageError: interrupted; this kernel goes on as it was\n"
    assert k.value("[child.returncode for child in started]") == [-9]  # killed, and waited for
    handler = "signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert k.value(f"(kept, {handler})") == (1, True)


def _adapters(pid: int) -> list[str]:
    """debugpy's processes of this run that the kernel has started, or that have outlived it."""
    import psutil

    run = os.environ[reaper.MARK]

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            near = process.ppid() in (pid, 1) and process.pid != pid
            if "debugpy" in words and near and process.environ().get(reaper.MARK) == run:
                found.append(words)
    return found


@pytest.mark.parametrize("off_again", [False, True], ids=["on", "off again"])
def test_with_the_debugger(kernel: Callable[..., Kernel], off_again: bool) -> None:
    """It replaces os.execve, and makes processes start Python under the debugger."""
    pytest.importorskip("debugpy")
    k = kernel()
    k.run(f"{FREEZE}; import os; pid = os.getpid()\nclass Kept:\n    a = 5\nx = Kept()")
    pid = k.value("pid")
    others = _adapters(-1)
    control, session = k.client.control_channel, k.client.session

    def ask(command: str, **arguments: Any) -> Any:
        content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
        message = session.msg("debug_request", content)
        control.send(message)
        return k._next(control.get_msg, message["header"]["msg_id"], time.monotonic() + 300)

    # As JupyterLab does.
    ask("initialize", clientID="t", adapterID="", pathFormat="path", supportsVariableType=True)
    ask("attach")
    ask("debugInfo")
    cell = ask("dumpCell", code="x = 1\nx")["content"]["body"]["sourcePath"]
    ask("setBreakpoints", source={"path": cell}, breakpoints=[], sourceModified=False)
    ask("configurationDone")
    if off_again:
        ask("disconnect", restart=False, terminateDebuggee=False)
    # A variable that is tried in a child.
    asking, rest = k.submit("%gpu 1 --restart --keep x"), k.submit("x.a, os.getpid()")
    reply = k.wait(asking)
    assert report(reply.text).startswith("restarted: this kernel sees 1 GPU")
    assert "Kept: x." in reply.text
    assert k.wait(rest).value == f"(5, {pid})"
    deadline = time.monotonic() + 300
    while set(_adapters(pid)) - set(others):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_found_only_through_the_path_of_the_notebook(kernel: Callable[..., Kernel]) -> None:
    """The new process finds the gpumagic of the old one nevertheless."""
    without = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(entry for entry in without if entry and Path(entry) != ROOT)
    k = kernel(load=False)
    # As if the kernel had been started without.
    k.run(f"import os, sys; os.environ['PYTHONPATH'] = {path!r}; sys.path.insert(0, {str(ROOT)!r})")
    k.run(f"%load_ext gpumagic\n{FREEZE}; x = 5")
    asking, rest = k.submit("%gpu 1 --restart --keep x"), k.submit("x")
    assert report(k.wait(asking).text).startswith("restarted: this kernel sees 1 GPU")
    assert k.wait(rest).value == "5"
    assert "sees 1 GPU" in k.run("%gpu 1").text


def test_where_gpumagic_fails_in_the_new_process(kernel: Callable[..., Kernel], gate: Gate) -> None:
    """The loader answers by itself: the cell that asked, and those behind it."""
    k = kernel(env=gate.env)
    k.run(FREEZE)
    (gate.profile / "startup" / "01.py").write_text(
        "import sys; sys.modules['gpumagic.magics'] = None"
    )
    count = k.run("1").execution_count or 0
    asking, rest = k.submit("%gpu 1 --restart"), [k.submit(f"print({n})") for n in range(3)]
    reply = k.wait(asking)
    assert (reply.status, reply.execution_count) == ("error", count + 1)
    assert reply.shown.startswith("UsageError: the restart failed: ")
    assert reply.shown.count("\n") == 1
    assert [k.wait(message).status for message in rest] == ["aborted"] * 3
    after = k.run("import os; os.environ.get('CUDA_VISIBLE_DEVICES') is not None")
    assert (after.value, after.execution_count) == ("True", count + 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "os.environ['PYTHONHOME'] = '/nowhere'",
            "would not start: ModuleNotFoundError: No module named 'encodings'",
        ),
        ("os.environ['PYTHONPATH'] = os.getcwd()", "would not start: ZeroDivisionError: "),
        ("os.environ['LARGE'] = 'x' * (1 << 20)", "cannot be started again: "),
    ],
    ids=["no Python", "a broken module", "too large"],
)
def test_a_process_that_would_not_start_is_detected_before(
    kernel: Callable[..., Kernel], tmp_path: Path, change: str, said: str
) -> None:
    k = kernel()
    # Not before: ipykernel 6.29 itself would import it from the working folder.
    (tmp_path / "traitlets.py").write_text("1 / 0")
    k.run(f"{FREEZE}; kept = 1; import os")
    k.run(f"before = dict(os.environ)\n{change}")
    refused = k.run("%gpu 1 --restart", raising=False)
    assert refused.shown.startswith("UsageError: ")
    assert said in refused.shown
    assert refused.shown.count("\n") == 1
    assert k.run("kept").value == "1"
