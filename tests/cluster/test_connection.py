"""The cluster that a name means, and the engines that ``-t`` names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cluster.connection import targets
from gpumagic.errors import SpecError
from tests.support.clusters import Cluster
from tests.support.shells import Ran

Run = Callable[..., Ran]


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


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in folders")
def test_a_profile_whose_file_leads_nowhere(
    run_cell: Run, tmp_path: Path, connection_files: Path
) -> None:
    os.mkfifo(connection_files / "ipcontroller-c-client.json", 0o600)  # to open it would wait
    (connection_files / "ipcontroller-client.json").symlink_to(tmp_path / "nowhere")
    (connection_files / "ipcontroller-a-client.json").symlink_to(
        connection_files / "ipcontroller-a-client.json"
    )
    with pytest.raises(UsageError, match=r"^no cluster runs in profile 'default'; start one with"):
        run_cell("%gpu cluster")
    (connection_files / "ipcontroller-b-client.json").write_text("[]")
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
        ("1:,0", [1, 5, 0]),
        ("0,0", [0]),
    ],
)
def test_targets_of_text(text: str | None, chosen: list[int]) -> None:
    assert targets(text, [0, 1, 5]) == chosen


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2", "there is no engine 2; there are 0–1, 5"),
        ("9:", "no engine; there are 0–1, 5"),
        *(
            (text, "write an engine's id, a list (0,3) or a slice (0:4)")
            for text in (
                "",
                "a",
                "1-3",
                "-:",
                ":-",
                "::2",
                "9" * 5000,
                "9" * 5000 + ":",
                ":" + "9" * 99,
            )
        ),
    ],
)
def test_invalid_targets(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as raised:
        targets(text, [0, 1, 5])
    assert str(raised.value) == f"-t {text}: {reason}"
