"""The new process is like a newly started one: same configuration, nothing of the old one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from tests.restart import FREEZE, report
from tests.support.kernels import Kernel
from tests.support.terminal import Terminal

LOADED = "sorted(n.rpartition('.')[2] for n in get_ipython().extension_manager.loaded)"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ext=autoreload",),
        ("--InteractiveShellApp.extra_extensions=autoreload",),
        ("--IPKernelApp.extra_extensions=autoreload",),
    ],
)
def test_extensions_of_the_command_line(
    kernel: Callable[..., Kernel], arguments: tuple[str, ...]
) -> None:
    k = kernel(None, None, *arguments)
    k.run(FREEZE)
    asking, rest = k.submit("%gpu 1 --restart"), k.submit(LOADED)
    assert k.wait(asking).text.startswith("restarted: this kernel sees 1 GPU")
    assert k.wait(rest).value == "['autoreload', 'gpumagic', 'storemagic']"


def test_extensions_and_lines_of_the_profile(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(
        "c.IPKernelApp.extra_extensions = ['autoreload', 'gpumagic']\n"
        "c.IPKernelApp.exec_lines = ['from_line = 1']\n"
    )
    (profile / "startup" / "00.py").write_text("from_file = 2; kept = 'of the startup file'")
    k = kernel(env={"IPYTHONDIR": str(tmp_path / "ipython")}, load=False)
    k.run(f"{FREEZE}; from_line = from_file = 0; kept = 'of the user'")
    assert report(k.run("%gpu 1 --restart --keep kept").text)
    assert k.run(LOADED).value == "['autoreload', 'gpumagic', 'storemagic']"
    assert k.run("from_line, from_file, kept").value == "(1, 2, 'of the user')"
    # As a choice that is saved: it is not made again over the one that was asked for.
    k.run("%gpu 0 --save")
    assert "Saved: applied again" in k.run("%gpu 2 --restart --save").text
    k.run(FREEZE)
    assert k.run("%gpu 3 --restart").text.startswith("restarted")
    assert "GPU 3" in k.run("%gpu 3").text


def test_the_script_of_a_terminal_does_not_run_again(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('the script runs')\nmodel = [0]\n")
    t = terminal(None, None, "--ext=autoreload", "-i", "train.py")
    t.run(f"{FREEZE}; model[0] += 5")
    shown = report(t.run("%gpu 1 --restart --keep model"))
    assert "the script runs" not in shown
    assert shown.startswith("restarted: this kernel sees 1 GPU")
    assert t.run("model").endswith("[5]")  # it ran once, before
    assert "autoreload" in t.run(LOADED)
    assert t.run("import sys; print(sys.argv[-1], sys.orig_argv[-2:])") == (
        "train.py ['-i', 'train.py']"
    )
    # And once more, over the loader.
    t.run(FREEZE)
    assert "Kept: model." in t.run("%gpu 2 --restart --keep model")
    t.process.sendline("print('be' + 'gun'); import time; time.sleep(600)")
    t.process.expect("begun")
    t.process.sendintr()
    t.process.expect("KeyboardInterrupt")


def test_a_script_alone_is_not_restarted(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    import subprocess

    (tmp_path / "script.ipy").write_text(f"%load_ext gpumagic\n{FREEZE}\n%gpu 1 --restart\n")
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "script.ipy"],
        env=child_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "this is a script (ipython FILE)" in done.stdout + done.stderr


LEFT = """
import atexit, multiprocessing, os, signal, tempfile
from multiprocessing import shared_memory
folder = tempfile.TemporaryDirectory(prefix="left-", dir={folder!r})
memory = shared_memory.SharedMemory(create=True, size=100)  # has a process watch it
atexit.register(lambda: open({folder!r} + "/ran", "w").close())
atexit.register(lambda: 1 / 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
"""
CHILDREN = """
import os
def children():
    found = []
    for entry in os.listdir("/proc"):
        try:
            state, parent = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append((entry, state))
    return found
"""


def test_nothing_of_the_old_process_stays(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """Folders, helper processes, ignored and blocked signals end, as at the end of a kernel."""
    k = kernel()
    k.run(f"{FREEZE}{LEFT.format(folder=str(tmp_path))}")
    assert list(tmp_path.glob("left-*"))
    assert k.run("%gpu 1 --restart").text.startswith("restarted")
    assert not list(tmp_path.glob("left-*"))
    assert (tmp_path / "ran").exists()
    k.run(CHILDREN)
    deadline = time.monotonic() + 60
    while k.value("children()"):
        assert time.monotonic() < deadline
    k.run("import signal, subprocess")
    assert k.value("[signal.getsignal(s).value for s in (signal.SIGTERM, signal.SIGCHLD)]") == [
        0,
        0,
    ]
    assert k.value("list(signal.pthread_sigmask(signal.SIG_BLOCK, []))") == []
    assert k.value("subprocess.run('exit 3', shell=True).returncode") == 3


TEE = """
import sys
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): self.stream.write(text)
    def flush(self): self.stream.flush()
sys.stdout = Tee(sys.stdout)
"""


def test_what_c_code_writes_is_shown_after_a_tee(kernel: Callable[..., Kernel]) -> None:
    """The descriptors are restored whatever the user has assigned to sys.stdout."""
    k = kernel()
    k.run(FREEZE + TEE)
    assert k.run("%gpu 1 --restart").status == "ok"
    running = k.submit("import os; [os.write(1, b'z' * 1000) for _ in range(300)]; print('end')")
    k.until(running, "end")
    assert k.wait(running).status == "ok"


#: Python does not start in a folder that is gone where its path has a relative entry.
WITH_PATH = """
get_ipython().starting_dir = os.getcwd()
os.environ['PYTHONPATH'] = os.environ.get('PYTHONPATH', '') + ':modules'
os.rmdir(os.getcwd())
"""


@pytest.mark.parametrize(
    "gone", ["os.rmdir(os.getcwd())", "os.environ['TMPDIR'] = '/nowhere'", WITH_PATH]
)
def test_a_folder_that_is_gone(kernel: Callable[..., Kernel], gone: str) -> None:
    k = kernel()
    k.run(f"{FREEZE}; x = 5\nimport os, tempfile\nos.chdir(tempfile.mkdtemp())\n{gone}")
    k.run("tempfile.tempdir = None")
    shown = k.run("%gpu 1 --restart")
    assert shown.text.startswith("restarted: this kernel sees 1 GPU")
    assert k.run("import os; os.path.isdir(os.getcwd())").value == "True"


def test_a_kernel_removes_the_connection_file_that_it_has_made(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """``python -m ipykernel``, started by hand."""
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-m", "ipykernel", "-f", str(tmp_path / "own.json")],
        env=child_environment(),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    client = BlockingKernelClient(connection_file=str(tmp_path / "own.json"))
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "own.json").exists() or not (tmp_path / "own.json").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        for cell in (f"%load_ext gpumagic\n{FREEZE}", "%gpu 1 --restart", "%gpu 1"):
            reply = client.execute_interactive(cell, output_hook=lambda _: None, timeout=60)
            assert reply["content"]["status"] == "ok"
        client.shutdown()
        process.wait(60)
        assert not (tmp_path / "own.json").exists()
    finally:
        client.stop_channels()
        process.kill()
        process.wait()
