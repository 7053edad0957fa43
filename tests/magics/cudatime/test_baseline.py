"""``--save`` and ``--against``: a notebook that guards its own speed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming, Sample
from tests.support.shells import Ran

Run = Callable[..., Ran]


@pytest.fixture
def timed(ip: Any, run_cell: Run, gpu_work: Any, tmp_path: Path, monkeypatch: Any) -> Run:
    """``timed(options, seconds)``: a cell of known duration, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    ip.user_ns["sleep"] = gpu_work.sleep

    def run(options: str, seconds: float, **more: Any) -> Ran:
        return run_cell(f"%%cudatime {options}\nsleep({seconds})", **more)

    return run


def test_a_slower_cell_fails_and_an_equal_one_does_not(timed: Run) -> None:
    timed("--name step --save step.json -n 1 -r 9", 0.01)
    stored = gpumagic.load("step.json")
    assert isinstance(stored, CudaTiming)
    assert stored.gpu is not None
    assert stored.gpu.median == pytest.approx(0.01, rel=0.01)
    assert stored.conditions is not None
    assert stored.conditions.devices
    assert stored.conditions.torch

    same = timed("--against step.json --fail-above 10% -n 1 -r 9", 0.01)
    assert same.error is None
    assert "stored" in same.text
    slower = timed("--against step.json --fail-above 10% -n 1 -r 9", 0.012, raising=False)
    assert type(slower.error) is gpumagic.RegressionError
    assert "1.2 times as long as stored" in str(slower.error)
    assert "Traceback" not in slower.stdout
    allowed = timed("--against step.json --fail-above 30 -n 1 -r 9", 0.012)
    assert allowed.error is None


def test_a_single_run_is_saved_but_proves_nothing(timed: Run) -> None:
    timed("--save once.json", 0.01)
    compared = timed("--against once.json", 0.02)
    assert "too few repeats" in compared.text


@pytest.mark.parametrize(
    ("stored", "options"), [("", "--repeat"), ("-n 1 -r 9", ""), ("-n 1 -r 9", "-n 1 -r 5")]
)
def test_too_few_repeats_are_said_before_the_cell_runs(
    timed: Run, ip: Any, stored: str, options: str
) -> None:
    timed(f"--save step.json -q {stored}", 0.01)
    ip.user_ns["sleep"] = lambda seconds: pytest.fail("it ran")
    with pytest.raises(UsageError, match="save and compare with -r 6 or more, or --repeat"):
        timed(f"--against step.json --fail-above 10% {options}", 0.01)


@pytest.mark.parametrize("percent", ["'10 %'", "10", "10%", "=10%"])
def test_a_percentage_as_it_may_be_written(timed: Run, percent: str) -> None:
    timed("--save step.json -q -n 1 -r 6", 0.01)
    option = f"--fail-above{percent}" if percent[0] == "=" else f"--fail-above {percent}"
    slower = timed(f"--against step.json {option} -n 1 -r 6 -q", 0.012, raising=False)
    assert type(slower.error) is gpumagic.RegressionError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--against nothing.json",
            "cannot read nothing.json.*; --save nothing.json, or .*writes one",
        ),
        ("--against 'no thing.json'", "; --save 'no thing.json', or"),
        ("--save nowhere/step.json", "there is no folder .*nowhere"),
        ("--against memory.json", "holds another result"),
        ("--against partial.json", "code that did not run to its end; save it again"),
        ("--against step.json --fail-above x", "is not a percentage"),
        ("--against step.json --fail-above 0.1", "0.1 is 0.1 %; write that with its sign, or 10%"),
        ("--against step.json --fail-above", "--fail-above needs a value: --fail-above PERCENT"),
        ("--save ''", "cannot write '': that is no name of a file"),
        ("--save protected.json", "cannot write protected.json: the file is read-only"),
    ],
)
def test_bad_input_runs_nothing(timed: Run, ip: Any, options: str, says: str) -> None:
    MemoryDelta(error="no GPU").save("memory.json")
    timing = CudaTiming(None, Sample((1.0,)), Sample((1.0,)), partial=True)
    timing.save("partial.json")
    timing.save("protected.json").chmod(0o444)
    ip.user_ns["sleep"] = lambda seconds: pytest.fail("it ran")
    with pytest.raises(UsageError, match=says):
        timed(options, 1)


def test_a_cell_that_raises_writes_nothing(timed: Run, run_cell: Run) -> None:
    run_cell("%%cudatime --save step.json\n1 / 0", raising=False)
    assert not Path("step.json").exists()


@pytest.mark.parametrize("magic", ["cudatime --save", "gpumem --save", "cudatime -q --trace"])
def test_the_file_is_where_the_folder_was_when_the_cell_began(
    timed: Run, run_cell: Run, ip: Any, tmp_path: Path, magic: str
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    ip.user_ns |= {"os": os, "there": there}
    run_cell(f"%%{magic} here.json\nos.chdir(there)")
    assert Path.cwd() == there
    assert (tmp_path / "here.json").is_file()
    assert not any(there.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="a folder in use cannot be removed there")
def test_a_folder_that_was_removed_is_said_before_the_cell_runs(
    timed: Run, ip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ip.user_ns["sleep"] = lambda seconds: pytest.fail("it ran")
    with pytest.raises(
        UsageError, match=r"^cannot write step.json: the working folder was removed"
    ):
        timed("--save step.json", 0.01)
