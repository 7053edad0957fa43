"""Completions, line by line; and through IPython's own completer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from gpumagic.magics import completion
from gpumagic.magics.completion import Completions, Session, complete
from gpumagic.magics.gpu import cluster, command

UUIDS = ("GPU-aaaa", "GPU-bbbb")
SESSION = Session(
    {"model": object(), "optimizer": object(), "step": lambda: 0, "_hidden": 1, "In": []},
    ("eager", "compiled"),
    tuple(enumerate(UUIDS)),
)


def texts(line: str, *, first: bool = True) -> list[str]:
    """Return the completions at the end of a line."""
    found = complete(line, SESSION, first=first)
    assert found is not None
    return [each.text for each in found.items]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%gpu au", ["auto"]),
        ("%gpu o", ["off", "on"]),
        ("%%gpu o", ["off", "on"]),
        ("%%gpu d", []),  # doctor is no choice for a cell
        ("x = %gpu do", ["doctor"]),
        ("%gpu 0,", ["0,1"]),
        ("%gpu GPU-a", ["GPU-aaaa"]),
        ("%gpu GPU-aaaa,GPU-b", ["GPU-aaaa,GPU-bbbb"]),
        ("%gpu off --res", ["--restart"]),
        ("%gpu off --restart --keep mo", ["model"]),
        ("%gpu off --restart --keep model opt", ["optimizer"]),
        ("%gpu dist ", ["init", "down"]),
        ("%gpu watch ", ["off"]),
        ("%gpumem fr", ["free"]),
        ("%gpumem free o", ["optimizer"]),
        ("%gpumem free --dr", ["--dry-run"]),
        ("%gpumem lim", ["limit"]),
        ("%gpumem limit o", ["off"]),
        ("%gpumem park --af", ["--after"]),
        ("%gpu watch o", ["off"]),
        ("%cudatime on --ab", ["--above"]),
        ("%gpumem record o", ["on", "off"]),
        ("%%gpumem --lines -f st", ["step"]),
        ("%%gpumem --fit mo", ["model="]),
        ("%%cudatime --on cu", ["cuda", "cuda:0", "cuda:1"]),
        ("%%cudatime --on cpu,cuda:0,cuda:", ["cpu,cuda:0,cuda:1"]),
        ("%%gpumem --li", ["--lines"]),
        ("%cudatime l", ["log"]),
        ("%cudatime --compare com", ["compiled"]),
        ("%%cudatime --que", ["--queued"]),
        ("%%cudatime l", []),  # setup code
    ],
)
def test_what_fits(line: str, expected: list[str]) -> None:
    assert texts(line) == expected


@pytest.mark.parametrize(
    "line", ["%gpux ", "print(%gpu ", "# %gpu ", "%gpu", "x = 1", "%timeit %gpu "]
)
def test_other_lines_are_not_ours(line: str) -> None:
    assert complete(line, SESSION) is None


def test_a_cell_magic_stands_in_the_first_line() -> None:
    assert complete("%%gpu o", SESSION, first=False) is None
    assert texts("%gpu of", first=False) == ["off"]


def test_statements_are_left_to_ipython() -> None:
    for line in ("%cudatime ", "%cudatime mo", "%gpumem y = mod"):
        found = complete(line, SESSION)
        assert found is None or not found.only


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").touch()
    (tmp_path / ".hidden").touch()
    assert texts("%gpumem snapshot ru") == ["run.json", "runs/"]
    assert texts("%gpumem snapshot runs/") == ["runs/a.json"]
    assert texts("%gpumem snapshot nowhere/") == []
    assert texts("%%cudatime --trace r") == ["run.json", "runs/"]


def test_each_says_what_it_is() -> None:
    found = complete("%gpu ", SESSION)
    assert isinstance(found, Completions)
    assert ("auto", "the most free memory") in [(each.text, each.kind) for each in found.items]
    assert found.only


def test_every_verb_of_gpu_is_completed() -> None:
    verbs = {words.split(" ")[0] for words in command._VERBS} - {""}
    assert verbs | {"plot", "shutdown", *cluster.VERBS} < completion._GPU.keys()


def completed(ip: Any, line: str) -> list[str]:
    with provisionalcompleter():
        return [each.text for each in ip.Completer.completions(line, len(line))]


def asked(virtual_gpu: Any) -> dict[str, int]:
    """Calls of NVML, and those that start the driver; garbage of other tests may make others."""
    calls = virtual_gpu.all_calls().items()
    return {name: count for name, count in calls if name.startswith(("nvml", "cuInit"))}


def test_through_ipython(ip: Any, virtual_gpu: Any) -> None:
    """Ours first and alone; nothing of NVML or the driver is called for it."""
    ip.user_ns["model"] = 1
    before = asked(virtual_gpu)
    assert completed(ip, "%gpu au") == ["auto"]
    assert completed(ip, "%gpumem free mo") == ["model"]
    assert completed(ip, "%cudatime mod") == ["model"]
    assert asked(virtual_gpu) == before
    ip.run_line_magic("unload_ext", "gpumagic")
    assert completed(ip, "%gpu au") != ["auto"]
    ip.run_line_magic("load_ext", "gpumagic")
