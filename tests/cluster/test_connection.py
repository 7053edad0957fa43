"""The cluster that a name means, and the engines that ``-t`` names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cluster import connection
from gpumagic.cluster.connection import targets
from gpumagic.errors import SpecError
from tests.support.clusters import Cluster
from tests.support.shells import Ran

Run = Callable[..., Ran]


def test_targets(two_engines: Cluster, run: Run) -> None:
    assert [each.engine for each in run(two_engines, "%gpu cluster -o -t 1").value] == [1]
    assert [each.engine for each in run(two_engines, "%gpu cluster -o -t ::-1").value] == [1, 0]
    assert [each.engine for each in run(two_engines, "%gpu cluster -o -t -1:").value] == [1]
    assert [each.engine for each in run(two_engines, "%gpu cluster -o --targets -2:-1").value] == [
        0
    ]
    for text, reason in (
        ("7", "there is no engine 7; there are 0–1"),
        ("0:0", "no engine; there are 0–1"),
        ("x", "write an engine's id, a list (0,3) or a slice (0:4)"),
        ("::0", "the step of a slice cannot be 0"),
    ):
        with pytest.raises(UsageError) as raised:
            run(two_engines, f"%gpu cluster -t {text}")
        assert str(raised.value) == f"-t {text}: {reason}"


def test_no_cluster(run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster")
    expected = "no cluster runs in profile 'default'; start one with: ipcluster start -n 4"
    assert str(raised.value) == expected
    (tmp_path / "profile_mine" / "security").mkdir(parents=True)
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster mine")
    assert str(raised.value) == expected.replace("default", "mine") + " --profile=mine"
    with pytest.raises(UsageError) as raised:
        run_cell("%gpu cluster other")
    assert str(raised.value) == f"there is no profile 'other' in {tmp_path}"


def test_the_cluster_of_a_profile(
    two_engines: Cluster, run_cell: Run, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_lab").symlink_to(two_engines.folder / "profile_default")
    assert "2 engines on 1 host (profile lab)" in run_cell("%gpu cluster lab").text
    assert "(profile lab)" in run_cell("%gpu cluster").text  # it stays the one that is meant


def test_the_cluster_of_px(two_engines: Cluster, ip: Any, run_cell: Run) -> None:
    view = two_engines.client[:]
    from ipyparallel.client.magics import ParallelMagics

    before = {kind: dict(magics) for kind, magics in ip.magics_manager.magics.items()}
    magics = ParallelMagics(ip, view)
    ip.magics_manager.register(magics)
    assert "2 engines on 1 host (the one that %px uses)" in run_cell("%gpu cluster").text
    for kind, names in before.items():
        ip.magics_manager.magics[kind].clear()
        ip.magics_manager.magics[kind].update(names)
    ip.configurables.remove(magics)


def test_px_comes_and_goes_with_gpumagic(two_engines: Cluster, ip: Any, run: Run) -> None:
    run(two_engines, "%gpu cluster -q")
    assert "px" in ip.magics_manager.magics["cell"]
    ip.extension_manager.unload_extension("gpumagic")
    assert "px" not in ip.magics_manager.magics["cell"]
    ip.extension_manager.load_extension("gpumagic")


@pytest.mark.parametrize("name", ["./lab", "lab.json/", "~", "-x"])
def test_a_file_is_no_profile(run_cell: Run, name: str) -> None:
    """No file of the working folder says where code is sent."""
    with pytest.raises(UsageError, match=r"takes the name of a profile|unknown option"):
        run_cell(f"%gpu cluster {name}")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")
def test_a_profile_whose_file_is_a_strangers(
    two_engines: Cluster, run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    folder = tmp_path / "profile_default" / "security"
    folder.mkdir(parents=True)
    file = folder / "ipcontroller-client.json"
    file.write_text(two_engines.file.read_text())
    file.chmod(0o666)
    with pytest.raises(UsageError, match="others have access to it"):
        run_cell("%gpu cluster")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")
def test_a_profile_whose_file_leads_nowhere(
    run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    folder = tmp_path / "profile_default" / "security"
    folder.mkdir(parents=True)
    (folder / "ipcontroller-client.json").symlink_to(tmp_path / "nowhere")
    (folder / "ipcontroller-a-client.json").symlink_to(folder / "ipcontroller-a-client.json")
    with pytest.raises(UsageError, match=r"^no cluster runs in profile 'default'; start one with"):
        run_cell("%gpu cluster")
    (folder / "ipcontroller-b-client.json").write_text("[]")
    with pytest.raises(UsageError, match=r"^cannot connect by ipcontroller-b-client\.json: "):
        run_cell("%gpu cluster")


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (None, [0, 1, 5]),
        ("all", [0, 1, 5]),
        ("5", [5]),
        ("1,0", [1, 0]),
        ("0:2", [0, 1]),
        ("-1:", [5]),
        ("::2,1", [0, 5, 1]),
        ("0,0", [0]),
    ],
)
def test_targets_of_text(text: str | None, chosen: list[int]) -> None:
    assert targets(text, [0, 1, 5]) == chosen


@pytest.mark.parametrize("text", ["", "a", "2", "1-3", "0:2:0", "9:", "-:", ":-"])
def test_invalid_targets(text: str) -> None:
    with pytest.raises(SpecError, match=r"^-t "):
        targets(text, [0, 1, 5])


def test_an_engine_of_very_many_digits() -> None:
    for text in ("9" * 5000, "9" * 5000 + ":", "::" + "9" * 5000):
        with pytest.raises(SpecError, match="write an engine's id"):
            connection.targets(text, [0, 1])
