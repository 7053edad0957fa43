"""Results in files: a saved result is loaded unchanged, other content is refused."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import SpecError
from gpumagic.results.conditions import Conditions, differences
from gpumagic.results.memory.memory_delta import DeviceMemoryDelta, MemoryDelta
from gpumagic.results.timing.cuda_timing import CudaTiming
from gpumagic.results.timing.kernels import Kernel, KernelReport
from gpumagic.results.timing.sample import Sample

fcntl = pytest.importorskip("fcntl", reason="of POSIX")

HERE = Conditions(
    "2026-01-31T12:00:00+00:00", {0: "NVIDIA H200"}, "570.12", "2.9.0", "12.8", "3.11.7"
)
TIMING = CudaTiming(
    gpu=Sample((0.25, 0.5)),
    wall=Sample((0.5, 0.75)),
    cpu=Sample((0.0, 0.125)),
    per_device={0: Sample((0.25, 0.5))},
    loops=3,
    precision=0.01,
    stopped_by="precision",
    kernels=KernelReport((Kernel("k", 1, 1.0),)),
    conditions=HERE,
)
#: A cell may end with less memory than it began with.
MEMORY = MemoryDelta({0: DeviceMemoryDelta(-1, -2, 3)}, conditions=HERE)


@pytest.mark.parametrize("result", [TIMING, MEMORY], ids=lambda each: type(each).__name__)
def test_what_was_saved_is_loaded(result: Any, tmp_path: Path) -> None:
    path = result.save(tmp_path / "step.json")
    assert gpumagic.load(path) == result
    assert [*tmp_path.iterdir()] == [path], "nothing else is left"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert gpumagic.load(path) == result, "a byte order mark is no content"


def test_fields_of_another_version(tmp_path: Path) -> None:
    """Those that are not known are left out, and those that are missing have their defaults."""
    path = TIMING.save(tmp_path / "step.json")
    content = json.loads(path.read_text())
    content["result"]["of_the_future"] = {"a": [1]}
    del content["result"]["precision"], content["result"]["conditions"]["devices"]
    path.write_text(json.dumps(content))
    expected = replace(TIMING, precision=None, conditions=replace(HERE, devices={}))
    assert gpumagic.load(path) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"gpumagic": 2, "kind": "CudaTiming", "result": {}}',
        '{"gpumagic": 2, "kind": "os.system", "result": {}}',
        '{"gpumagic": 2, "kind": ["CudaTiming"], "result": {}}',
        '{"gpumagic": 2, "kind": "CudaTiming"}',
        '{"gpumagic": 99, "kind": "CudaTiming", "result": {}}',
        '{"gpumagic": 2, "kind": "MemoryDelta", "result": {"devices": {"0": {"allocated": NaN}}}}',
    ],
)
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"holds no result of gpumagic|another version"):
        gpumagic.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loops", "3"),
        ("loops", True),
        ("repeat", 0),
        ("notes", ["x"] * 1000),
        ("kernels", {"kernels": [{"name": "k", "count": 0, "total": 1.0}]}),
        ("wall", {"all": []}),
        ("wall", {"all": [0.5, -1e-9]}),
        ("wall", {"all": [0.5, 1e18]}),
        ("limited_by", "other"),
        ("per_device", {"x": {"all": [1.0]}}),
        ("kernels", {"kernels": [["k", 0, 1.0]]}),
        ("precision", 10**400),
        ("precision", 1e308 * 10),
    ],
)
def test_what_no_measurement_gives_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    path = TIMING.save(tmp_path / "step.json")
    content = json.loads(path.read_text())
    content["result"][field] = value
    path.write_text(json.dumps(content).replace("Infinity", "1e999"))
    with pytest.raises(SpecError, match="holds no result of gpumagic"):
        gpumagic.load(path)


def test_bad_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, says in {
        "nothing.json": r"cannot read .*No such file.*; --save .*, or .save\(path\)",
        "": "no regular file",
        "pipe": "no regular file",
        "bytes": "it is no text",
    }.items():
        with pytest.raises(SpecError, match=says):
            gpumagic.load(tmp_path / name)
    with pytest.raises(SpecError, match="that is a folder"):
        TIMING.save(tmp_path)


def test_what_is_read_only_stays(tmp_path: Path) -> None:
    """Links and permissions: tests/security/test_written_files.py."""
    path = TIMING.save(tmp_path / "step.json")
    path.chmod(0o4751)
    TIMING.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o751, "the bits of a program are not kept"
    path.chmod(0o444)
    with pytest.raises(SpecError, match=r"cannot write .*: the file is read-only$"):
        MEMORY.save(path)
    assert gpumagic.load(path) == TIMING


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TIMING.save(tmp_path / "step.json")
    before = path.read_bytes()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MEMORY.save(path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_what_differs_between_two_measurements() -> None:
    """Of devices nothing where one has used none: the code has gone to the CPU of this machine."""
    assert differences(replace(HERE, devices={}, python="3.12"), HERE) == ()
    assert differences(replace(HERE, devices={0: "A100"}, torch="2.10.0"), HERE) == (
        "device A100 instead of NVIDIA H200",
        "torch 2.10.0 instead of 2.9.0",
    )
