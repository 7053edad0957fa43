"""`gpumagic.cells.tracebacks`: which files are the user's, and the frames that are not."""

from __future__ import annotations

import os
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy
import pytest

import gpumagic
from gpumagic.cells import tracebacks

CELL = "/tmp/ipykernel_1/1.py"


def cell_of(filename: str) -> int | None:
    return 5 if filename == CELL else None


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        (CELL, True),
        ("/home/ann/train.py", True),
        ("/home/ann/site-packages/module.py", False),
        ("/usr/lib/python3/dist-packages/module.py", False),
        ("<string>", False),
        (os.__file__, False),
        (numpy.__file__, False),
        (gpumagic.__file__, False),
        (tracebacks.__file__, False),
        (f"{Path(gpumagic.__file__).parent}_utils.py", True),
        ("", False),
        (None, False),
    ],
)
def test_files_of_the_user(filename: str | None, users: bool) -> None:
    assert tracebacks.is_users(filename, cell_of) is users


def test_the_end_in_gpumagic_is_cut() -> None:
    """What the notebook's code called stays; what we did after it does not."""
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec("def cell(call): call()", notebook)

    def caught(call: Any) -> list[str]:
        try:
            call()
        except KeyboardInterrupt as error:
            tracebacks.take_out_own(error, lambda f: f.f_globals is notebook)
            return [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
        raise AssertionError("it was not interrupted")

    def interrupted() -> None:
        raise KeyboardInterrupt

    ours: dict[str, Any] = {"interrupted": interrupted}
    own_file = str(Path(tracebacks.__file__).with_name("line_tracer.py"))
    exec(compile("def ours(): interrupted()", own_file, "exec"), ours)
    called = caught(lambda: notebook["cell"](interrupted))
    assert called[-2:] == ["cell", "interrupted"]
    assert caught(lambda: notebook["cell"](ours["ours"]))[-1] == "cell"
    assert caught(ours["ours"]) == []
