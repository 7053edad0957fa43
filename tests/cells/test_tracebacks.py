"""`gpumagic.cells.tracebacks`: which files are the user's, and where in them an exception is."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
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


SOURCE = """\
def outer():
    def inner():
        raise ValueError("here")
    inner()

class Model:
    def forward(self):
        return outer()

def run():
    Model().forward()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's: `SOURCE` in a file."""
    (tmp_path / "module_of_the_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("module_of_the_user")
    del sys.modules["module_of_the_user"]


def test_the_frames_of_a_traceback(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="here") as error:
        module.run()
    _, *frames = walk_tb(error.value.__traceback__)  # without this test's
    assert [line for _, line in frames] == [11, 8, 4, 3]
    assert [tracebacks.source(*each) for each in frames] == [
        "Model().forward()",
        "return outer()",
        "inner()",
        'raise ValueError("here")',
    ]
    names = ["run", "Model.forward", "outer", "outer.<locals>.inner"]
    if sys.version_info < (3, 11):  # code has no qualified name there
        names = [name.rpartition(".")[2] for name in names]
    assert [tracebacks.described(*each) for each in frames] == [
        f"module_of_the_user.py line {line} in {name}"
        for (_, line), name in zip(frames, names, strict=True)
    ]


def test_the_modules_of_the_user(module: ModuleType) -> None:
    found = tracebacks.users_modules()
    assert found["module_of_the_user"] is module
    assert "__main__" in found
    assert not {"json", "numpy", "gpumagic", "gpumagic.cells.tracebacks"} & {*found}


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
