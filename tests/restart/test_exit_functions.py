"""Exit functions run before an ``execve``, but for those that the shell needs if it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpumagic.restart import exit_functions

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")

PROGRAM = """
import atexit, logging, logging.handlers, os, sys, tempfile, weakref
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from gpumagic.restart import exit_functions

config = Config()
config.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=config)
folder = tempfile.TemporaryDirectory()
shown = logging.StreamHandler(sys.stdout)
logged = logging.handlers.MemoryHandler(99, logging.CRITICAL, target=shown)
logging.getLogger("mine").addHandler(logged)
logging.getLogger("mine").error("logged")
class Owner: pass
owner = Owner()
weakref.finalize(owner, print, "finalized")
atexit.register(print, "registered")
atexit.register(lambda: sys.exit("refused"))
for _ in range(2):
    print("run")
    exit_functions.run_exit_functions(shell)
print(os.path.exists(folder.name), logged.target is None)
# The shell goes on: its history, and finalizers of objects that are made now.
shell.run_cell("40 + 2", store_history=True)
shell.history_manager.writeout_cache()
later = Owner()
weakref.finalize(later, print, "later")
del later
print("end")
"""


def test_they_run_once_and_the_shell_goes_on(
    child_environment: Callable[..., dict[str, str]],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "run"
    first = lines[1 : lines.index("run", 1)]
    assert {"registered", "finalized", "logged"} <= {*first}
    rest = lines[lines.index("run", 1) + 1 :]
    assert rest[0] == "False False"
    assert rest[-2:] == ["later", "end"]
    assert any("42" in line for line in rest)
    assert "refused" in done.stderr


def test_children_that_have_ended_are_reaped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        ended = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        assert exit_functions.reap([running.pid, ended]) == [running.pid]
        assert exit_functions.reap([ended]) == []  # none of ours any more
        running.communicate(b"\n")
