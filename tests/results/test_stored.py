"""Results in files: a saved result is loaded unchanged, and other content is refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import gpumagic
from gpumagic.errors import SpecError
from gpumagic.results.base import Conditions
from gpumagic.results.kernels import Kernel, KernelReport
from gpumagic.results.memory import DeviceMemoryDelta, MemoryDelta
from gpumagic.results.timing import CudaTiming, Sample

CONDITIONS = Conditions(
    "2026-01-31T12:00:00+00:00",
    {0: "NVIDIA H200"},
    "570.12",
    "2.9.0",
    "12.8",
    "3.11.7",
)
TIMING = CudaTiming(
    gpu=Sample((0.25, 0.5)),
    wall=Sample((0.5, 0.75)),
    cpu=Sample((0.0, 0.125)),
    per_device={0: Sample((0.25, 0.5))},
    loops=3,
    repeat=2,
    precision=0.01,
    stopped_by="precision",
    kernels=KernelReport((Kernel("k", 1, 1.0, (0,)),), busy={0: 0.5}),
    conditions=CONDITIONS,
)
#: A cell may end with less memory than it began with.
MEMORY = MemoryDelta({0: DeviceMemoryDelta(-1, -2, 3)}, conditions=CONDITIONS)


@pytest.mark.parametrize("result", [TIMING, MEMORY], ids=lambda each: type(each).__name__)
def test_what_was_saved_is_loaded(result: Any, tmp_path: Path) -> None:
    path = result.save(tmp_path / "step.json")
    assert gpumagic.load(path) == result
    assert not [each for each in tmp_path.iterdir() if each != path], "nothing else is left"
    result.save(path)  # over the old one
    assert gpumagic.load(str(path)) == result


def test_the_permissions_are_those_of_any_file(tmp_path: Path) -> None:
    path = TIMING.save(tmp_path / "new.json")
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o600)
    TIMING.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_of_another_version_of_gpumagic(tmp_path: Path) -> None:
    """Fields that it does not know are left out, and those it lacks have their defaults."""
    path = TIMING.save(tmp_path / "step.json")
    content = json.loads(path.read_text())
    content["result"]["of_the_future"] = {"a": [1]}
    del content["result"]["precision"], content["result"]["conditions"]["devices"]
    path.write_text(json.dumps(content))
    loaded = gpumagic.load(path)
    assert isinstance(loaded, CudaTiming)
    assert loaded.gpu == TIMING.gpu
    assert loaded.precision is None
    assert loaded.conditions is not None
    assert loaded.conditions.devices == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"gpumagic": 2, "kind": "CudaTiming", "result": {}}',
        '{"gpumagic": 2, "kind": "CudaTiming", "result": {"wall": {"all": []}}}',
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
        ("wall", {"all": [0.5, -1e-9]}),
        ("wall", {"all": [0.5, 1e18]}),
        ("bound", "other"),
        ("per_device", {"x": {"all": [1.0]}}),
        ("kernels", {"kernels": [["k", 0, 1.0]]}),
    ],
)
def test_what_no_measurement_gives_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    path = TIMING.save(tmp_path / "step.json")
    content = json.loads(path.read_text())
    content["result"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SpecError, match="holds no result of gpumagic"):
        gpumagic.load(path)


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"cannot read .*No such file.*; --save .*, or .save\(path\)"
    ):
        gpumagic.load(tmp_path / "nothing.json")
    with pytest.raises(SpecError, match="no regular file"):
        gpumagic.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="no regular file"):
        gpumagic.load(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="it is no text"):
        gpumagic.load(tmp_path / "bytes")
    with pytest.raises(SpecError, match="there is no folder"):
        TIMING.save(tmp_path / "nowhere" / "step.json")
    with pytest.raises(SpecError, match="that is a folder"):
        TIMING.save(tmp_path)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = TIMING.save(tmp_path / "step.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert gpumagic.load(path) == TIMING


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """A link to a shared baseline stays one."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("old.json", "new.json"):
        link = tmp_path / name
        link.symlink_to(Path("shared", name))
        if name == "old.json":
            MEMORY.save(shared / name)
        TIMING.save(link)
        assert link.is_symlink()
        assert gpumagic.load(shared / name) == TIMING
    assert sorted(each.name for each in shared.iterdir()) == ["new.json", "old.json"]


def test_a_file_that_is_read_only_stays(tmp_path: Path) -> None:
    path = MEMORY.save(tmp_path / "step.json")
    path.chmod(0o444)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    for target in (path, link):
        with pytest.raises(SpecError, match=r"cannot write .*: the file is read-only$"):
            TIMING.save(target)
    assert gpumagic.load(path) == MEMORY


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TIMING.save(tmp_path / "step.json")
    before = path.read_bytes()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MEMORY.save(path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
