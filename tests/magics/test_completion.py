"""Completions, line by line; and through IPython's own completer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from gpumagic.magics import completion
from gpumagic.magics.completion import Completions, complete
from gpumagic.magics.gpu import cluster_options, command
from gpumagic.magics.session_names import Session
from gpumagic.magics.verbs import VERBS

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
        ("%gpu off --restart --keep model --f", ["--force"]),
        ("%gpu off --keep model --f", ["--force"]),
        ("%gpu off --keep model --r", ["--restart"]),
        ("%gpu auto --min-free 20GiB --i", ["--idle"]),
        ("%gpu --min-free 20GiB au", ["auto"]),
        ("%gpu dist init --backend ", ["auto", "nccl", "gloo"]),
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
        ("%%cudatime -s mod", ["model"]),
        # A value that is joined to its option.
        ("%gpu off --restart --keep=mo", ["--keep=model"]),
        ("%gpu dist init --backend=n", ["--backend=nccl"]),
        ("%%cudatime --on=cpu,cuda:1", ["--on=cpu,cuda:1"]),
        # What is named already, and an option that is there.
        ("%gpu off --restart --keep model ", ["optimizer", "step"]),
        ("%gpu off --restart --keep all ", []),
        ("%gpu off --restart --keep --", []),
        ("%gpu off --restart --keep model --k", []),
        ("%gpumem free model ", ["optimizer", "step"]),
        ("%cudatime --compare eager ", ["compiled"]),
        ("%%cudatime --on cuda:0,cu", ["cuda:0,cuda:1"]),
        ("%%cudatime --on cuda,cu", ["cuda,cuda:1"]),
        # Verbs do not go with options of a run.
        ("%cudatime --repeat o", ["optimizer"]),
        ("%cudatime --name a l", []),
        ("%cudatime -q o", ["on", "off", "optimizer"]),
        ("%gpumem --lines o", ["optimizer"]),
    ],
)
def test_what_fits(line: str, expected: list[str]) -> None:
    assert texts(line) == expected


@pytest.mark.parametrize(
    ("line", "offered", "missing"),
    [
        ("%gpu -p ", ["ps", "watch", "cluster"], ["off", "auto", "0", "doctor", "plot"]),
        ("%gpu --restart ", ["off", "on", "0", "pin"], ["watch", "ps", "dist", "cluster"]),
        ("%gpu --threads 2 ", ["off", "on", "0"], ["watch", "doctor", "pin"]),
        ("%gpu --min-free 2GiB ", ["auto"], ["watch", "plot", "off", "0"]),
        ("%gpu --every 3 ", ["watch"], ["plot", "off", "0"]),
        ("%gpu --yes ", ["shutdown"], ["off", "ps"]),
        ("%gpu --share ", ["pin"], ["off", "dist", "watch"]),
        ("%gpu -t 0:2 ", ["off", "pin", "cluster"], ["watch", "doctor", "plot"]),
        ("%gpu --cluster ", ["off", "pin", "0"], ["watch", "ps", "shutdown"]),
        ("%gpu -q ", ["off", "watch", "pin", "0"], []),
        ("%gpu watch --every 3 ", [], ["off"]),
        ("%gpu dist --backend nccl ", ["init"], ["down"]),
        ("%%gpu --soft ", ["off", "0"], ["watch"]),
    ],
)
def test_words_that_go_with_the_options(line: str, offered: list[str], missing: list[str]) -> None:
    found = {*texts(line)}
    assert set(offered) <= found
    assert found.isdisjoint(missing)


def test_a_panel_has_no_processes() -> None:
    assert "-p" in texts("%gpu watch -")
    panel = replace(SESSION, has_panel=True)
    for line, text in (("%gpu watch -", "-p"), ("%gpu -p ", "watch")):
        found = complete(line, panel)
        assert found is not None
        assert text not in [each.text for each in found.items]


def test_attributes_where_ipython_finds_none() -> None:
    def attributes(expression: str) -> list[str]:
        assert expression == "torch.on"
        return ["torch.ones", "torch._one", "torch.ones_like"]

    session = Session(SESSION.variables, attributes=attributes)
    lines = ("%cudatime torch.on", "%gpumem y = torch.on", "%cudatime f(torch.on")
    for line in (*lines, "%%cudatime -s torch.on", "%%cudatime --lines -f torch.on"):
        found = complete(line, session)
        assert found is not None
        assert [each.text for each in found.items] == ["torch.ones", "torch.ones_like"]
        assert (found.fragment, found.only) == ("torch.on", False)
    for line in ("%cudatime print('torch.on", "%cudatime f('a').torch.on"):
        found = complete(line, session)
        assert found is not None
        assert not found.items


@pytest.mark.parametrize(
    "line", ["%gpux ", "print(%gpu ", "# %gpu ", "%gpu", "x = 1", "%timeit %gpu "]
)
def test_other_lines_are_not_ours(line: str) -> None:
    assert complete(line, SESSION) is None


def test_a_cell_magic_stands_in_the_first_line() -> None:
    assert complete("%%gpu o", SESSION, first=False) is None
    assert texts("%gpu of", first=False) == ["off"]


@pytest.mark.parametrize(
    "line",
    [
        "%gpumem y = mod",
        "%cudatime model.fo",
        "%cudatime x = -mo",
        "%cudatime f(mo",
        "%cudatime print('mo",
        "%cudatime -- -mo",
        "%%gpumem --lines -f model.fo",
        "%%cudatime -s model.fo",
        "%%cudatime -s 'x = mo",
    ],
)
def test_statements_are_left_to_ipython(line: str) -> None:
    found = complete(line, SESSION)
    assert found is not None
    assert not found.items
    assert not found.only


@pytest.mark.parametrize(
    "line",
    [
        "%gpu 1-",
        "%gpu MIG-",
        "%gpu hi",
        "%gpu doctor ",
        "%gpu shutdown ",
        "%gpu off -v ",
        "%gpu off --cluster -t ",
        "%gpu off --cluster --targets ",
        "%gpu auto --min-free ",
        "%cudatime --name ",
        "%gpumem record on ",
        "%gpumem -v ",
    ],
)
def test_nothing_else_fits(line: str) -> None:
    found = complete(line, SESSION)
    assert found is not None
    assert not found.items
    assert found.only


def test_names_of_a_statement_follow_the_verbs() -> None:
    names = ("or", "on", "open", "optimizer")
    session = Session(SESSION.variables, statement_names=lambda beginning: names)
    found = complete("%gpumem o", session)
    assert found is not None
    assert [each.text for each in found.items] == ["on", "off", "optimizer", "open", "or"]
    assert found.only


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
    assert texts("%%cudatime --trace=ru") == ["--trace=run.json", "--trace=runs/"]
    assert texts("%gpumem snapshot ./r") == ["./run.json", "./runs/"]
    assert texts("%gpumem snapshot ./") == ["./run.json", "./runs/"]
    assert texts("%gpumem snapshot runs/../r") == ["runs/../run.json", "runs/../runs/"]
    whole = [f"{tmp_path}/run.json", f"{tmp_path}/runs/"]
    assert " " in str(tmp_path) or texts(f"%gpumem snapshot {tmp_path}/r") == whole


def test_what_has_blanks_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.json").touch()
    (tmp_path / "two folders").mkdir()
    (tmp_path / "two folders" / "a.json").touch()
    (tmp_path / "it's.json").touch()
    both = ["'two folders/", "'two words.json'"]
    assert texts("%cudatime --against two") == both
    assert texts("%cudatime --against='two w") == ["--against='two words.json'"]
    assert texts("%cudatime --against 'two ") == both
    assert texts("%cudatime --against 'two folders/") == ["'two folders/a.json'"]
    assert texts('%gpumem snapshot "two w') == ['"two words.json"']
    assert texts("%gpumem snapshot it") == ['"it\'s.json"']
    session = Session({}, ("long one", "short"))
    for line, expected in (
        ("%cudatime --compare ", ["'long one'", "short"]),
        ("%cudatime --compare '", ["'long one'", "'short'"]),
        ("%cudatime --compare 'long one' sh", ["short"]),
    ):
        found = complete(line, session)
        assert found is not None
        assert [each.text for each in found.items] == expected
        assert found.only


@pytest.mark.parametrize(
    ("line", "offered", "missing"),
    [
        ("%gpu auto --", ["--min-free", "--wait", "--restart"], ["--backend", "--keep", "--mine"]),
        ("%gpu off --", ["--soft", "--cluster"], ["--idle", "--every", "--timeout"]),
        ("%gpu shutdown --", ["--yes"], ["--restart"]),
        ("%gpu off --threads 2 --", ["--restart"], ["--threads"]),
        ("%gpu off --soft --", ["--threads"], ["--save", "--restart"]),
        ("%gpu off --restart --", ["--keep", "--force"], ["--soft"]),
        ("%gpu ps --", ["--mine", "--arguments"], ["--restart", "--cluster", "--every"]),
        ("%gpu watch --", ["--every", "--for"], ["--mine"]),
        ("%gpu pin --", ["--share", "--restart"], ["--backend", "--idle", "--keep"]),
        ("%gpu dist init --", ["--backend"], ["--share", "--restart"]),
        ("%gpu dist down --", ["--timeout"], ["--backend"]),
        ("%gpu auto --cluster --", ["--idle", "-t"], ["--wait", "--soft"]),
        ("%%gpu off --", ["--soft", "--threads"], ["--restart", "--cluster"]),
        ("%gpu --", ["--min-free", "--mine", "--restart"], []),
    ],
)
def test_options_that_go_with_the_words(line: str, offered: list[str], missing: list[str]) -> None:
    found = {*texts(line.removesuffix("-"))}
    assert set(offered) <= found
    assert found.isdisjoint(missing)


def test_every_option_is_described() -> None:
    for magic, verbs in VERBS.items():
        for verb in verbs:
            found = complete(f"%{magic} {verb} -", SESSION)
            assert found is not None
            assert all(0 < len(each.kind) <= 60 for each in found.items), verb
    found = complete("%gpumem record on --", SESSION)
    assert found is not None
    assert [each.kind for each in found.items] == ["the newest events that the history keeps"]
    assert completion._short("a " * 40) == "a " * 28 + "a …"


def test_verbs_need_no_parser() -> None:
    """The first key imports no module that runs a magic."""
    program = """
import sys
from gpumagic.magics.completion import complete
from gpumagic.magics.session_names import Session
for line in ("%gpu ", "%gpumem ", "%cudatime ", "%gpumem free "):
    complete(line, Session({"model": 1}))
print(*(name for name in sys.modules if "command" in name or name.startswith("gpumagic.results")))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "gpumagic" not in said.stdout.replace("gpumagic.magics.commands", "")


def test_options_import_nothing_that_measures_or_draws() -> None:
    """All of them, of every magic and verb: a first key press may not take long."""
    lines = ["%gpu off --", "%gpu pin --", "%%gpu off --", "%cudatime --", "%%gpumem --"]
    lines += [f"%{magic} {verb} -" for magic, verbs in VERBS.items() for verb in verbs]
    program = f"""
import sys
import IPython.core.completer
before = {{*sys.modules}}
from gpumagic.magics.completion import complete
from gpumagic.magics.session_names import Session
for line in {lines}:
    assert complete(line, Session({{}})).items, line
print(*({{*sys.modules}} - before))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = {*said.stdout.split()}
    heavy = {"torch", "pynvml", "rich", "matplotlib", "pandas", "numpy", "psutil", "zmq", "ctypes"}
    assert heavy.isdisjoint(name.split(".")[0] for name in imported)
    folders = {name.split(".")[1] for name in imported if name.startswith("gpumagic.")}
    assert folders <= {"_version", "errors", "system", "magics", "cluster", "timing"}
    for folder, light in (
        ("cluster", "timeouts"),
        ("timing", "plan"),
    ):
        below = f"gpumagic.{folder}."
        assert {name for name in imported if name.startswith(below)} == {f"{below}{light}"}


def test_each_says_what_it_is() -> None:
    found = complete("%gpu ", SESSION)
    assert isinstance(found, Completions)
    assert ("auto", "the most free memory") in [(each.text, each.kind) for each in found.items]
    assert found.only


def test_every_verb_of_gpu_is_completed() -> None:
    verbs = {words.split(" ")[0] for words in command._VERBS} - {""}
    assert verbs | {"plot", "shutdown", *cluster_options.VERBS} < completion._GPU.keys()


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
    assert completed(ip, "%cudatime ")[:3] == ["on", "off", "log"]
    assert completed(ip, "%cudatime prin") == ["print"]
    assert completed(ip, "%gpumem o")[:2] == ["on", "off"]
    assert completed(ip, "%gpumem y = mod") == ["model"]
    assert completed(ip, "%gpu 9-") == []
    for line in ("%gpu MIG-", "%gpu hi", "%gpu shutdown ", "%cudatime --name "):
        assert completed(ip, line) == []
    assert asked(virtual_gpu) == before
    for use_jedi in (True, False):
        ip.Completer.use_jedi = use_jedi
        for line in ("%cudatime str.cap", "%gpumem y = str.cap", "%%cudatime -s str.cap"):
            (found,) = completed(ip, line)
            assert found.endswith("capitalize"), (line, use_jedi)
    ip.run_line_magic("unload_ext", "gpumagic")
    assert completed(ip, "%gpu au") != ["auto"]
    ip.run_line_magic("load_ext", "gpumagic")
