"""What is done before an ``execve``: the user's variables, and files that are flushed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.restart import shutdown
from tests.support.shells import shell

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")


def test_the_users_variables() -> None:
    with shell(load=False) as ip:
        for source in ("x = 1; _mine = 2; import os", "x", "def f(): pass\n__version = 3"):
            ip.run_cell(source, store_history=True)
        ip.user_ns |= {"_VSCODE_x": 1, "__vsc_ipynb_file__": "a", "exit": "mine"}
        assert shutdown.variables(ip).keys() == {"x", "_mine", "os", "f", "__version", "exit"}


@pytest.mark.parametrize(
    ("comms", "lost"),
    [
        ({}, []),
        ({"a": 1}, ["1 widget or its comm"]),
        ({"a": 1, "b": 2}, ["2 widgets and their comms"]),
    ],
)
def test_lost_widgets(comms: dict[str, int], lost: list[str]) -> None:
    kernel = SimpleNamespace(comm_manager=SimpleNamespace(comms=comms))
    assert shutdown.lost(SimpleNamespace(kernel=kernel)) == lost


def test_files_are_flushed(tmp_path: Path) -> None:
    with (tmp_path / "text").open("w") as text, (tmp_path / "bytes").open("wb") as binary:
        text.write("written")
        binary.write(b"written")
        closed: Any = (tmp_path / "closed").open("w")
        closed.close()
        shutdown.flush_files()
        assert (tmp_path / "text").read_text() == "written"
        assert (tmp_path / "bytes").read_bytes() == b"written"


def test_without_ipykernel_the_streams_stay() -> None:
    before = [os.fstat(descriptor).st_ino for descriptor in (1, 2)]
    with shutdown.original_streams():
        assert [os.fstat(descriptor).st_ino for descriptor in (1, 2)] == before
    assert [os.fstat(descriptor).st_ino for descriptor in (1, 2)] == before
