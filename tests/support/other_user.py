"""Programs run as another user of the same machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forks

#: The user ``nobody``, who owns no files.
UID = 65534

needs_root = pytest.mark.skipif(
    os.name == "nt" or os.geteuid() != 0, reason="only root can act as another user too"
)


BECOME = f"import os; os.setgroups([]); os.setgid({UID}); os.setuid({UID})"


def run_as_other_user(source: str, imports: str = "os") -> str:
    """Run a Python program as the other user and return its output.

    ``imports`` come first: the other user may not be able to read this Python's files.
    """
    command = [sys.executable, "-c", f"import {imports}\n{BECOME}\n{source}"]
    return forks.output(command, env=os.environ, cwd="/", fresh=True)


@pytest.fixture(name="shared_folder")
def _shared_folder() -> Iterator[Path]:
    """A folder like ``/tmp``, open to the other user.

    Not in pytest's: every run of it by this user closes the folder of all runs again.
    """
    with tempfile.TemporaryDirectory() as made:
        for each in (Path(made), *Path(made).parents):
            if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 0o001:
                each.chmod(each.stat().st_mode | 0o011)
        folder = Path(made) / "shared"
        folder.mkdir()
        folder.chmod(0o1777)
        yield folder
