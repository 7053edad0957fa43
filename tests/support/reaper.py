"""Ends what a run of the tests leaves behind, however the run ended.

Everything that a run starts inherits a mark in its environment, and a folder for its temporary
files. A process beside the run waits until the run has ended, killed or not; then it ends whatever
still carries the mark, and removes the folder and the scenarios of the dead.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "GPUMAGIC_TESTS_RUN"
#: What a run sets, and `forget` puts back: where it is None, the variable was not there.
_before: dict[str, str | None] = {}


def watch() -> subprocess.Popen[bytes]:
    """Mark this process and all that it will start, and have them watched.

    The watch is over when this process closes the standard input of what is returned, or ends.
    """
    others = {name: value for name, value in os.environ.items() if name not in (MARK, "LD_PRELOAD")}
    temporary = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="gpumagic-tests-")
    Path(folder).chmod(0o711)  # some tests are run as another user
    mark = f"{os.getpid()}-{time.time_ns()}"
    # What pytest keeps of its last three runs stays where it was.
    kept = os.environ.get("PYTEST_DEBUG_TEMPROOT", temporary)
    for name, value in {MARK: mark, "TMPDIR": folder, "PYTEST_DEBUG_TEMPROOT": kept}.items():
        _before[name] = os.environ.get(name)
        os.environ[name] = value
    tempfile.tempdir = None
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.reaper", mark, folder],
        cwd=Path(__file__).parents[2],
        env=others,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def forget() -> None:
    """Take back what `watch` has set in this process."""
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
    tempfile.tempdir = None


def marked(mark: str) -> dict[int, str]:
    """The command lines of the living processes that carry this mark, by pid."""
    wanted = os.fsencode(f"{MARK}={mark}")
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = " ".join(os.fsdecode(word) for word in words).strip()
    return found


def left(patience: float) -> dict[int, str]:
    """What this process's run has started and not ended after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        found = {
            pid: command
            for pid, command in marked(os.environ[MARK]).items()
            # Python's own, which ends with the process that it belongs to.
            if pid != os.getpid() and "multiprocessing.resource_tracker" not in command
        }
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def main() -> None:
    from tests.virtual_gpu.world import remove_orphans

    sys.stdin.buffer.read()
    while alive := marked(sys.argv[1]):
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    remove_orphans()


if __name__ == "__main__":
    main()
