"""What Tab offers, line by line; and through IPython's own completer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from gpumagic.magics.completion import Answer, Session, complete

UUIDS = ("GPU-aaaa", "GPU-bbbb")
SESSION = Session(
    {"model": object(), "optimizer": object(), "step": lambda: 0, "_hidden": 1, "In": []},
    ("eager", "compiled"),
    tuple(enumerate(UUIDS)),
)


def offered(line: str, *, first: bool = True) -> list[str]:
    answer = complete(line, SESSION, first=first)
    assert answer is not None
    return [offer.text for offer in answer.offers]


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
        ("%%gpumem --li", ["--lines"]),
        ("%cudatime l", ["log"]),
        ("%cudatime --compare com", ["compiled"]),
        ("%%cudatime --que", ["--queued"]),
        ("%%cudatime l", []),  # setup code
    ],
)
def test_what_is_offered(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.parametrize(
    "line", ["%gpux ", "print(%gpu ", "# %gpu ", "%gpu", "x = 1", "%timeit %gpu "]
)
def test_other_lines_are_not_ours(line: str) -> None:
    assert complete(line, SESSION) is None


def test_a_cell_magic_stands_in_the_first_line() -> None:
    assert complete("%%gpu o", SESSION, first=False) is None
    assert offered("%gpu of", first=False) == ["off"]


def test_statements_are_left_to_ipython() -> None:
    for line in ("%cudatime ", "%cudatime mo", "%gpumem y = mod"):
        answer = complete(line, SESSION)
        assert answer is None or not answer.only


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").touch()
    (tmp_path / ".hidden").touch()
    assert offered("%gpumem snapshot ru") == ["run.json", "runs/"]
    assert offered("%gpumem snapshot runs/") == ["runs/a.json"]
    assert offered("%gpumem snapshot nowhere/") == []
    assert offered("%%cudatime --trace r") == ["run.json", "runs/"]


def test_each_says_what_it_is() -> None:
    answer = complete("%gpu ", SESSION)
    assert isinstance(answer, Answer)
    assert ("auto", "the freest GPU") in [(each.text, each.kind) for each in answer.offers]
    assert answer.only


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
