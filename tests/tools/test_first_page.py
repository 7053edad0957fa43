"""The first page, in English and in Chinese: README.md and docs/zh.md say the same commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpumagic.magics.commands import MAGICS, grammar_of
from tests.tools.docs.pages import CHINESE
from tests.tools.docs.reference import README, ROOT, page

PAGES = (README, CHINESE)
#: Magics that are not ours.
OTHERS = {"time", "timeit", "load_ext", "unload_ext", "pip"}


def blocks(text: str) -> list[str]:
    """Return the blocks of code without their comments, which are translated."""
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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_and_pictures_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    local = [
        *re.findall(r"\]\((?!https?://|#)([^)#]+)", text),
        *re.findall(r'(?:src|srcset)="(?!https?://)([^"]+)"', text),
    ]
    assert local
    for target in local:
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_options_exist(path: Path) -> None:
    """Each option that the page names is one of a magic's."""
    text = path.read_text(encoding="utf-8")
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page()))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"<!--|-->", "", text)))
    assert len(named) > 8
    assert named <= known
