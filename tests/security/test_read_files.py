"""Files that are read: who may have written them, and what they can make wait."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.errors import SpecError
from tests.support.other_user import UID, needs_root
from tests.support.shells import Ran

fcntl = pytest.importorskip("fcntl", reason="of POSIX")
Run = Callable[..., Ran]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")
def test_a_connection_file_that_others_can_write_is_refused(
    run_cell: Run, connection_files: Path
) -> None:
    file = connection_files / "ipcontroller-client.json"
    file.write_text("{}")
    for mode, owner in ((0o620, os.getuid()), (0o602, os.getuid()), (0o600, UID)):
        file.chmod(mode)
        if owner == UID and os.geteuid() != 0:
            break  # only root gives files away
        os.chown(file, owner, -1)
        with pytest.raises(UsageError, match=rf"can write it .owner {owner}, mode {mode:04o}."):
            run_cell("%gpu cluster")


def test_a_result_of_more_devices_than_any_machine_has_is_refused(tmp_path: Path) -> None:
    """Each is a row of a table: a million take minutes to show."""
    path = gpumagic.cudatime("1", n=1, r=1).save(tmp_path / "step.json")
    content = json.loads(path.read_text())
    for count in (1024, 1025):
        content["result"]["per_device"] = {f"{i}": content["result"]["wall"] for i in range(count)}
        path.write_text(json.dumps(content))
        if count == 1024:
            assert len(gpumagic.load(path).per_device) == count
    with pytest.raises(SpecError, match="holds no result"):
        gpumagic.load(path)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="leases are Linux's")
def test_reading_a_result_waits_for_nothing(tmp_path: Path) -> None:
    """Not for a pipe's writer, nor for who holds a lease, which the system breaks after 45 s."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="no regular file"):
        gpumagic.load(tmp_path / "pipe")
    path = gpumagic.cudatime("1", n=1, r=1).save(tmp_path / "step.json")
    with path.open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            with pytest.raises(SpecError, match=r"cannot read .*temporarily unavailable"):
                gpumagic.load(path)
        finally:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)


@needs_root
def test_our_plots_read_no_matplotlibrc_of_another_user(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """The user's own is read, as by every import of matplotlib."""
    settings = tmp_path / "matplotlibrc"
    settings.write_text("lines.linewidth: 7\n")
    source = (
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "from gpumagic.render.plots import Plot\n"
        "try:\n    Plot(1, 1.0)\nexcept Exception as error:\n    print(error)\n"
        "else:\n    import matplotlib; print(matplotlib.rcParams['lines.linewidth'])\n"
    )
    assert run_python(source).strip().endswith("7.0")
    os.chown(settings, UID, UID)
    assert "another user has put there" in run_python(source)
