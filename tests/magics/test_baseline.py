"""``--save``, ``--against`` and ``--fail-above``: a notebook that guards its times and peaks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.errors import RegressionError
from gpumagic.results.memory.memory_delta import MemoryDelta
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.sample import Sample
from gpumagic.timing import summary
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


@pytest.fixture
def measured(ip: Any, run_cell: Run, virtual_gpu: Any, tmp_path: Path, monkeypatch: Any) -> Run:
    """``measured(options, mebibytes)``: a cell of known peak, in a folder of its own."""
    import torch

    monkeypatch.chdir(tmp_path)
    torch.empty(1, device="cuda:0")
    ip.user_ns["torch"] = torch

    def run(options: str, mebibytes: float, **more: Any) -> Ran:
        code = f"torch.empty({int(mebibytes * 2**20)}, dtype=torch.int8, device='cuda:0')"
        return run_cell(f"%%gpumem {options}\ndel_me = {code}; del del_me", **more)

    return run


def test_a_slower_cell_fails_and_an_equal_one_does_not(timed: Run) -> None:
    timed("--name step --save step.json -n 1 -r 9", 0.01)
    stored = gpumagic.load("step.json")
    assert isinstance(stored, CudaTiming)
    assert stored.gpu is not None
    assert stored.gpu.median == pytest.approx(0.01, rel=0.01)
    same = timed("--against step.json --fail-above 10% -n 1 -r 9", 0.01)
    assert "stored" in same.text
    bar = "--against step.json --fail-above=10% --save new.json"
    slower = timed(f"{bar} -n 1 -r 9", 0.012, raising=False)
    assert type(slower.error) is RegressionError
    assert "slower than stored" in str(slower.error)
    assert "Traceback" not in slower.stdout
    assert "--save: new.json is not written: --fail-above failed" in slower.stdout
    assert not Path("new.json").exists()
    timed("--against step.json --fail-above 30 -n 1 -r 9", 0.012)


def test_a_higher_peak_fails(measured: Run) -> None:
    """By a block of 512 bytes; on a device that the stored cell did not use, by any."""
    measured("--save peak.json", 40)
    assert " 0.0 %" in measured("--against peak.json --fail-above 0", 40).text
    measured("--against peak.json --fail-above 10%", 44)
    MemoryDelta().save("empty.json")
    for file, stored in (("peak.json", "41,943,040"), ("empty.json", "0")):
        failed = measured(f"--against {file} --fail-above 10%", 44 + 2**-11, raising=False)
        assert type(failed.error) is RegressionError
        assert f"cuda:0: peak 46,137,856 B, stored {stored} B" in str(failed.error)
    MemoryDelta(error="no GPU").save("none.json")
    with pytest.raises(UsageError, match="the stored result: no GPU"):
        measured("--against none.json", 40)


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--against nothing.json", "cannot read nothing.json.*; --save nothing.json, or .*writes"),
        ("--against 'no thing.json'", "; --save 'no thing.json', or"),
        ("--against memory.json", "holds another result: a MemoryDelta"),
        ("--against partial.json", "code that did not run to its end; save it again"),
        ("--against step.json --fail-above x", "is not a percentage"),
        ("--save nowhere/step.json", "there is no folder .*nowhere"),
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


def test_without_a_working_folder_it_names_another_way(timed: Run, tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        with pytest.raises(UsageError, match="working folder was removed; name an absolute path"):
            timed("--save step.json", 0.01)
        timed(f"-q --save {tmp_path / 'step.json'}", 0.01)
    finally:
        os.chdir(tmp_path)
    assert (tmp_path / "step.json").is_file()


@pytest.mark.parametrize("magic", ["cudatime", "cudatime -n 1", "gpumem"])
def test_what_was_written_and_what_not_is_said(
    timed: Run, run_cell: Run, ip: Any, magic: str
) -> None:
    """By the file's own name; with -q nothing is said."""
    ip.user_ns["name"] = "step"
    failed = run_cell(f"%%{magic} --save {{name}}.json\n1 / 0", raising=False)
    assert isinstance(failed.error, ZeroDivisionError)
    assert "--save: step.json is not written: the code did not run to its end" in failed.stdout
    assert not Path("step.json").exists()
    ip.user_ns["work"] = lambda: torch_cuda.require().ones(9, device="cuda")
    assert (
        "--save: written to step.json\n" in run_cell(f"%%{magic} --save step.json\nwork()").stdout
    )
    assert Path("step.json").exists()
    quiet = run_cell(f"%%{magic} -q --save step.json\nwork();")
    assert (quiet.text, quiet.stdout) == ("", "")


@pytest.mark.parametrize("options", ["", "-n 1 -r 2"])
def test_a_failure_of_gpumagic_is_no_failure_of_the_code(
    timed: Run, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("oops")

    monkeypatch.setattr(summary, "summarize", fail)
    shown = timed(f"{options} --save step.json", 0.001).stdout
    assert "gpumagic: cannot show the result (ValueError: oops)" in shown
    assert "--save: step.json is not written: gpumagic has no result of it" in shown
    assert "stopped" not in shown


def test_a_named_result_is_compared_with_until_there_is_a_file_of_that_name(timed: Run) -> None:
    timed("--name base -q -n 1 -r 7", 0.01)
    timed("--against base --fail-above 10% -n 1 -r 7", 0.01)
    slower = timed("--against base --fail-above 10% -n 1 -r 7", 0.02, raising=False)
    assert type(slower.error) is RegressionError
    timed("--save base -q -n 1 -r 7", 0.02)
    timed("--against base --fail-above 10% -n 1 -r 7", 0.02)


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


@pytest.mark.parametrize(
    ("measure", "options", "before", "now"),
    [("timed", "-n 1 -r 9", 0.001, 0.009), ("measured", "", 40, 360)],
)
def test_what_was_measured_under_other_conditions_is_compared_and_does_not_fail(
    request: pytest.FixtureRequest,
    monkeypatch: Any,
    measure: str,
    options: str,
    before: Any,
    now: Any,
) -> None:
    run = request.getfixturevalue(measure)
    run(f"--save stored.json -q {options}", before)
    assert "instead of" not in run(f"--against stored.json {options}", before).text
    monkeypatch.setattr(torch_cuda, "name", lambda ordinal: "NVIDIA A100")
    difference = "device NVIDIA A100 instead of NVIDIA H100 80GB HBM3"
    assert run(f"--against stored.json {options}", now).text.count(difference) == 1
    for quiet in ("", "-q"):
        ran = run(f"--against stored.json --fail-above 10% {quiet} {options}", now)
        assert ran.stdout.startswith("--fail-above was not applied: ")
        assert (ran.text + ran.stdout).count(difference) == 1
        assert (ran.text == "") is (quiet != "")
