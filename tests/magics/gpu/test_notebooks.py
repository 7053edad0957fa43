"""``%gpu ps --mine`` and ``%gpu shutdown``: by a small Jupyter server on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic.magics.gpu import notebooks
from gpumagic.results.base import as_text
from tests.support.jupyter_server import FakeServer, model

GIB = 2**30


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    fake = FakeServer(tmp_path)
    fake.sessions = [model("train.ipynb", "a"), model("eval.ipynb", "b", "busy")]
    yield fake
    fake.close()


@pytest.fixture
def training(virtual_gpu: Any, tmp_path: Path) -> Iterator[int]:
    """The kernel ``a``, with 1 GiB on GPU 0; its pid."""
    words = [sys.executable, "-c", "input()", "-f", str(tmp_path / "kernel-a.json"), "--token=x"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as other:
        virtual_gpu.add_process(0, other.pid, GIB, "other")
        try:
            yield other.pid
        finally:
            other.communicate(b"\n")


def test_processes_and_notebooks(
    server: FakeServer, training: int, run_cell: Callable[..., Any]
) -> None:
    listed = run_cell("%gpu ps --mine -o -q").value
    assert [(each.name, each.pid, dict(each.devices)) for each in listed] == [
        ("train.ipynb", training, {0: GIB}),
        ("eval.ipynb", None, {}),
    ]
    assert listed[0].idle > 3600
    assert listed[1].idle == 0
    assert "%gpu shutdown NAME" in str(listed)
    table = run_cell("%gpu -p --arguments -o -q").value
    (process,) = (p for p in table[0].processes if p.pid == training)
    assert process.notebook == "train.ipynb"
    assert process.command.startswith(f"{Path(sys.executable).name} -c input()")
    assert "train.ipynb in /srv/ann, idle 2 h" in as_text(table, 300)


def test_notebooks_of_the_same_name_are_told_apart_by_their_paths(
    server: FakeServer, training: int, run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sessions = [model("a.ipynb", "a"), model("a.ipynb", "y", path="other/a.ipynb")]
    listed = str(run_cell("%gpu ps --mine -o -q").value)
    assert "sub/a.ipynb " in listed
    assert "other/a.ipynb " in listed
    both = "/srv/ann/other/a.ipynb (no GPU memory), /srv/ann/sub/a.ipynb (1.00 GiB of GPU memory)"
    assert both in str(run_cell("%gpu shutdown a.ipynb --yes", raising=False).error)
    ran = run_cell("%gpu shutdown b.ipynb --yes", raising=False)
    assert "there are: /srv/ann/other/a.ipynb, /srv/ann/sub/a.ipynb" in str(ran.error)
    asked: list[str] = []
    monkeypatch.setattr(notebooks, "input", lambda q: asked.append(q) or "n", raising=False)
    text = run_cell("%gpu shutdown sub/a.ipynb").text
    assert "Shut down /srv/ann/sub/a.ipynb, which holds 1.00 GiB of GPU memory?" in asked[0]
    assert "/srv/ann/sub/a.ipynb was not shut down." in text
    run_cell("%gpu shutdown other/a.ipynb --yes")
    assert server.requests[-1][:2] == ("DELETE", "/user/ann/api/sessions/session-y")


@pytest.mark.parametrize(("answer", "done"), [("y", True), ("", False), ("n", False)])
def test_shutting_down_is_asked_for(
    server: FakeServer,
    training: int,
    run_cell: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    done: bool,
) -> None:
    asked: list[str] = []

    def reply(question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr(notebooks, "input", reply, raising=False)
    result = run_cell("%gpu shutdown train.ipynb -o -q").value
    assert result.done is done
    assert "train.ipynb, which holds 1.00 GiB of GPU memory?" in asked[0]
    assert (server.requests[-1][0] == "DELETE") is done


def test_a_front_end_that_cannot_ask_shuts_nothing_down(
    server: FakeServer, run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> str:
        raise EOFError

    monkeypatch.setattr(notebooks, "input", refuse, raising=False)
    ran = run_cell("%gpu shutdown eval.ipynb", raising=False)
    assert "you cannot be asked here; add --yes" in str(ran.error)
    server.delete_status = 403
    ran = run_cell("%gpu shutdown eval.ipynb --yes", raising=False)
    assert "its server refuses" in str(ran.error)
