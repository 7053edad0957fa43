"""The profiler around a run, and why there may be no profile. The virtual GPU has no CUPTI."""

from __future__ import annotations

import json
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import torch_cuda
from gpumagic.errors import SpecError
from gpumagic.timing import profiler
from gpumagic.timing.profiler import NvtxRange, Profiled, check_trace


def test_a_run_is_profiled_and_its_trace_written(gpu_work: Any, tmp_path: Path) -> None:
    profiled = Profiled(check_trace(str(tmp_path / "t.json")))
    with profiled:
        gpu_work.torch.ones(3) + 1
    assert profiled.problem is None
    assert profiled.report is not None
    assert profiled.report.trace == str(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "aten::add" in {event["name"] for event in events}


def test_a_run_that_raises_has_no_report(gpu_work: Any) -> None:
    profiled = Profiled()
    with pytest.raises(ZeroDivisionError), profiled:
        _ = 1 / 0
    assert profiled.report is None
    assert not torch_cuda.profiling(), "it is closed"


def test_without_torch_there_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "loaded", lambda: None)
    assert Profiled().problem == "no profile: torch is not imported"
    assert "torch is not imported" in str(NvtxRange("mine").problem)


def test_a_second_profiler_is_refused(gpu_work: Any) -> None:
    with gpu_work.torch.profiler.profile():
        assert Profiled().problem == "no profile: torch's profiler is running already"


def _torchs(torch: Any) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def _with_a_schedule(torch: Any) -> None:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=schedule, acc_events=True) as profile:
        for _ in range(3):
            torch.ones(3) + 1
            profile.step()
    assert any(event.key == "aten::add" for event in profile.key_averages())


def _autograds(torch: Any) -> None:
    with torch.autograd.profiler.profile() as profile:
        torch.ones(3) + 1
    assert any(event.key == "aten::add" for event in profile.key_averages())


def _for_nvtx(torch: Any) -> None:
    with torch.autograd.profiler.emit_nvtx():
        torch.ones(3) + 1


def _in_a_thread(torch: Any) -> None:
    thread = threading.Thread(target=_torchs, args=(torch,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("code", [_torchs, _with_a_schedule, _autograds, _for_nvtx, _in_a_thread])
def test_the_codes_own_profiler_has_priority(gpu_work: Any, code: Any, tmp_path: Path) -> None:
    """There is one session at a time: results of one that was cancelled crash the process."""
    if code is _in_a_thread and gpu_work.torch.__version__.startswith("2.6."):
        pytest.skip("torch 2.6 starts no session while another thread has one")
    profiler_module = gpu_work.torch.autograd.profiler
    before = {**vars(profiler_module)}
    profiled = Profiled(tmp_path / "t.json")
    with profiled:
        code(gpu_work.torch)
    assert profiled.problem == "no profile: the code starts torch's profiler itself"
    assert profiled.report is None
    assert not (tmp_path / "t.json").exists()
    assert not torch_cuda.profiling()
    assert vars(profiler_module) == before


def test_a_profiler_that_the_code_leaves_running_is_not_ended(gpu_work: Any) -> None:
    profile, profiled = gpu_work.torch.profiler.profile(), Profiled()
    with profiled:
        profile.__enter__()
    assert torch_cuda.profiling()
    gpu_work.torch.ones(3) + 1
    profile.__exit__(None, None, None)
    assert any(event.key == "aten::add" for event in profile.key_averages())
    assert profiled.report is None


def test_a_session_that_the_code_ends_is_not_read(gpu_work: Any) -> None:
    profiled = Profiled()
    with profiled:
        gpu_work.torch.autograd._disable_profiler()
    assert profiled.problem == "no profile: the code has ended it"
    assert profiled.report is None


def test_a_trace_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "t.json", tmp_path):
        with pytest.raises(SpecError, match=r"^--trace: .*; name a file, for example trace.json"):
            check_trace(str(path))


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_no_other_user_can_read_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch replaces the file that it is given by one of its own mode."""
    folders = []

    def export(name: str) -> None:
        path = Path(name)
        folders.append((path.parent, stat.S_IMODE(path.parent.stat().st_mode)))
        path.unlink(missing_ok=True)
        path.write_text(json.dumps({"traceEvents": []}))

    profiled = Profiled()
    profiled._profile = type("Profile", (), {"export_chrome_trace": staticmethod(export)})
    monkeypatch.setattr(profiler, "report", len)
    profiled._read()
    ((folder, mode),) = folders
    assert mode == 0o700
    assert not folder.exists()
