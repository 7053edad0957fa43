"""The new process is like a newly started one: same configuration, nothing of the old one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_client import BlockingKernelClient

from tests.restart import FREEZE, report
from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.support.kernels import Kernel, shared
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
    t.process.sendline(f"print('be' + 'gun'); import time; {UNTIL_INTERRUPTED}")
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


TEE = """
import sys
class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): self.stream.write(text)
    def flush(self): self.stream.flush()
sys.stdout = Tee(sys.stdout)
"""


def _listening(kernel: Kernel, pid: int) -> dict[int, str]:
    """The kernel's ports on which a process listens, and the inodes of their sockets."""
    ports = kernel.client.get_connection_info()
    found = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        port = int(words[1].partition(":")[2], 16)
        if words[3] == "0A" and port in ports.values():
            found[port] = words[9]
    return found


@pytest.fixture(scope="class")
def one_restart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    noted = SimpleNamespace(folder=tmp_path_factory.mktemp("files"))
    with shared(tmp_path_factory.mktemp("kernel")) as k:
        noted.kernel, pid = k, k.value("__import__('os').getpid()")
        k.run(f"{FREEZE}\nfrom concurrent.futures import ThreadPoolExecutor")
        k.run("pool = ThreadPoolExecutor(2); list(pool.map(abs, range(9)))")
        file = str(noted.folder / "out.txt")
        k.run(f"out = open({file!r}, 'w'); _ = out.write('all of it'); import os, socket")
        k.run("os.set_inheritable(null := os.open('/dev/null', os.O_RDWR), True)")
        k.run("os.dup2(null, 200); listening = socket.create_server(('127.0.0.1', 0))")
        k.run("os.dup2(listening.fileno(), 201); os.dup2(os.pipe()[0], 202)")
        k.run(LEFT.format(folder=str(noted.folder)))
        k.run(TEE)
        noted.left = list(noted.folder.glob("left-*"))
        noted.before = _listening(k, pid)

        asking = k.submit("%gpu 1 --restart")
        completing = k.client.complete("import o", 8)
        info = k.client.kernel_info()
        # Without a number of lines IPython 8 would take its history for a corrupt file.
        others = completing, info, k.client.history(hist_access_type="tail", n=10)
        noted.reply = k.wait(asking)
        noted.others = [
            k._next(k.client.get_shell_msg, message, time.monotonic() + 300)["content"]
            for message in others
        ]
        noted.after = _listening(k, pid)
        yield noted


class TestOneRestart:
    """A kernel with much that could stay or be lost; restarted once, it answers all questions."""

    def test_nothing_of_the_old_process_stays(self, one_restart: SimpleNamespace) -> None:
        """Folders, helper processes, ignored and blocked signals end, as at a kernel's end."""
        k = one_restart.kernel
        assert one_restart.reply.text.startswith("restarted")
        assert one_restart.left
        assert not list(one_restart.folder.glob("left-*"))
        assert (one_restart.folder / "ran").exists()
        k.run(CHILDREN)
        deadline = time.monotonic() + 300
        while k.value("children()"):
            assert time.monotonic() < deadline
        k.run("import signal, subprocess")
        handlers = "[signal.getsignal(s).value for s in (signal.SIGTERM, signal.SIGCHLD)]"
        assert k.value(handlers) == [0, 0]
        assert k.value("list(signal.pthread_sigmask(signal.SIG_BLOCK, []))") == []
        assert k.value("subprocess.run('exit 3', shell=True).returncode") == 3

    def test_files_are_written_out(self, one_restart: SimpleNamespace) -> None:
        """What the end of an interpreter would have flushed."""
        assert (one_restart.folder / "out.txt").read_text() == "all of it"

    def test_descriptors_of_libraries_are_closed(self, one_restart: SimpleNamespace) -> None:
        """Of GPUs, for example: they would hold the memory of the old image."""
        opened = "[d for d in __import__('os').listdir('/dev/fd') if d in ('200', '201', '202')]"
        assert one_restart.kernel.value(opened) == ["202"]

    def test_idle_pools_are_nothing_to_lose(self, one_restart: SimpleNamespace) -> None:
        assert one_restart.reply.status == "ok"
        assert "pool" in one_restart.reply.text  # as a variable

    def test_what_c_code_writes_is_shown_after_a_tee(self, one_restart: SimpleNamespace) -> None:
        """The descriptors are restored whatever the user has assigned to sys.stdout."""
        k = one_restart.kernel
        writes = "import os; [os.write(1, b'z' * 1000) for _ in range(300)]; print('end')"
        running = k.submit(writes)
        k.until(running, "end")
        assert k.wait(running).status == "ok"

    def test_requests_of_other_kinds_are_answered(self, one_restart: SimpleNamespace) -> None:
        completed, info, history = one_restart.others
        assert [answer["status"] for answer in one_restart.others] == ["ok"] * 3
        assert "os" in completed["matches"]
        assert info["language_info"]["name"] == "python"
        assert history["history"]

    def test_the_ports_are_never_free(self, one_restart: SimpleNamespace) -> None:
        """Another process that waits for them would get the next cells: the sockets stay open."""
        assert len(one_restart.before) == 5
        assert one_restart.after == one_restart.before  # their inodes


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
        deadline = time.monotonic() + 300
        while not (tmp_path / "own.json").exists() or not (tmp_path / "own.json").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=300)
        for cell in (f"%load_ext gpumagic\n{FREEZE}", "%gpu 1 --restart", "%gpu 1"):
            reply = client.execute_interactive(cell, output_hook=lambda _: None, timeout=300)
            assert reply["content"]["status"] == "ok"
        client.shutdown()
        process.wait(300)
        assert not (tmp_path / "own.json").exists()
    finally:
        client.stop_channels()
        process.kill()
        process.wait()
