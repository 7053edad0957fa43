"""The first page, in English and in Chinese: README.md and docs/zh.md say the same commands."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from gpumagic.magics.magic_class import MAGICS, grammar_of
from tests.support import forks
from tests.support.outside import left
from tests.tools.demo.runner import execute, virtual_machine
from tests.tools.docs.pages import CHINESE
from tests.tools.docs.reference import README, ROOT

PAGES = (README, CHINESE)
#: Magics that are not ours.
OTHERS = {"time", "timeit", "load_ext", "unload_ext", "pip"}


def blocks(text: str) -> list[str]:
    """Return the blocks of code without their comments, which are translated."""
    text = re.sub(r"^> ?", "", text, flags=re.MULTILINE)  # the box
    found = re.findall(r"^(```\w+\n.*?^```)$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r" +#.*$", "", block, flags=re.MULTILINE) for block in found]


def commands(text: str) -> list[str]:
    """Return the magics' lines that stand in the text, in order."""
    return re.findall(r"(?<!`)`(%[^`]+)`", text)


def test_readmes_first_line_leads_to_the_chinese_page() -> None:
    _, _, first, *_ = README.read_text(encoding="utf-8").splitlines()
    assert f"[中文]({CHINESE.relative_to(ROOT).as_posix()})" in first
    assert f"[English](../{README.name})" in CHINESE.read_text(encoding="utf-8")


def test_both_have_the_same_code() -> None:
    english, chinese = (each.read_text(encoding="utf-8") for each in PAGES)
    assert len(blocks(english)) == 5
    assert blocks(chinese) == blocks(english)
    assert commands(chinese) == commands(english)
    tables = [re.findall(r"^\|.*\|$", text, re.MULTILINE) for text in (english, chinese)]
    assert len(tables[0]) == len(tables[1])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_is_one(path: Path) -> None:
    for command in commands(path.read_text(encoding="utf-8")):
        found = re.fullmatch(r"(%%?)(\w+) ?(.*)", command)
        assert found is not None, command
        sign, magic, rest = found.groups()
        if magic not in OTHERS:
            assert magic in MAGICS, command
            line = grammar_of(magic).read(rest, cell=sign == "%%")
            assert not line.code, f"{command} has no such verb"


def cells() -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


#: What a notebook has when it gives its GPU back, and when it has it again.
BEFORE = """
import torch
device = torch.device("cuda")
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
def train_step():
    optimizer.zero_grad()
    model(torch.rand(8, 64, device=device)).square().mean().backward()
    optimizer.step()
train_step()
"""
AFTER = """
train_step()
held = [*model.parameters(), *(each["exp_avg"] for each in optimizer.state.values())]
print({each.device.type for each in held})
"""
ON_THE_CPU = "device = torch.device('cpu')\ntrain_step()"


@pytest.mark.parametrize("trains", [False, True], ids=["", "after a training on the CPU"])
def test_what_stands_there_runs(trains: bool, tmp_path: Path) -> None:
    """Typed as it stands there, with its comments: the first cell, and the way back."""
    first, on, back = cells()
    on_the_cpu = [ON_THE_CPU] * trains
    said = shown(tmp_path, first, BEFORE, "%gpu off --restart", *on_the_cpu, on, back, AFTER)
    assert said[-3].startswith("restarted" if trains else "applied")
    assert said[-1] == "{'cuda'}\n"


def shown(folder: Path, *sources: str) -> list[str]:
    """Return what each cell shows, none of which warns or fails."""
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    executed = execute(notebook, virtual_machine(), folder=folder)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert not [each for each in outputs if each.get("name") == "stderr"]
    return [
        "".join(each.get("text") or each.data["text/plain"] for each in cell.outputs)
        for cell in code
    ]


def test_the_box_runs_a_notebook_of_ones_own(tmp_path: Path) -> None:
    import nbformat

    (line, _) = re.findall(r"^> \$ (.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    python, *words, name = shlex.split(line)
    own = tmp_path / name
    cell = nbformat.v4.new_code_cell("import torch\ntorch.ones(1, device='cuda').device.type")
    elsewhere = {"kernelspec": {"name": "conda-env", "display_name": "of another environment"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=elsewhere), own)
    # Of this Python, which is .venv's in `make test`.
    beside = {
        ".venv/bin/python": [sys.executable],
        ".venv/bin/jupyter": [sys.executable, "-m", "jupyter"],
    }
    installed = [part for word in (python, *words) for part in beside.pop(word, [word])]
    assert not beside
    forks.output([*installed, str(own)], env=left(os.environ))
    (output,) = nbformat.read(own, as_version=4).cells[0].outputs
    assert output.data["text/plain"] == "'cuda'"
