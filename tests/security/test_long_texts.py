"""Texts of anybody's making cost little, however long they are and whatever is in them."""

from __future__ import annotations

import importlib
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic.doctor import explanation
from gpumagic.memory import oom
from gpumagic.system import text as one_line
from gpumagic.timing import profiler

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

PATTERNS = [
    *(pattern for pattern, _ in explanation._LINES),
    explanation._NO_START,
    *(each.pattern for each in (oom._REQUESTED, oom._DEVICE, oom._UNUSED, oom._FREE)),
]


def unbounded(parsed: Any) -> list[bool]:
    """For each repeat without a limit, whether it is the pattern's end."""
    found: list[bool] = []
    items = list(parsed)
    for place, (kind, value) in enumerate(items):
        last = place == len(items) - 1
        if str(kind) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            inner = unbounded(value[2])
            found += [last] if value[1] == parser.MAXREPEAT and not inner else [False] * len(inner)
        elif str(kind) == "SUBPATTERN":
            found += [end and last for end in unbounded(value[3])]
        elif str(kind) == "BRANCH":
            found += [end and last for branch in value[1] for end in unbounded(branch)]
        elif str(kind) in ("ASSERT", "ASSERT_NOT"):
            found += [False for _ in unbounded(value[1])]
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_tries_again_and_again(pattern: str) -> None:
    """A repeat without a limit before anything else costs the square of a text, two the cube."""
    assert all(unbounded(parser.parse(pattern)))


def test_the_check_of_patterns() -> None:
    assert unbounded(parser.parse("a: .+")) == [True]
    assert unbounded(parser.parse("a: (x|.*b.*c)")) == [False, False]
    assert unbounded(parser.parse(r"([\d.]+) (x|y)")) == [False]
    assert unbounded(parser.parse(r"\d{1,20} b")) == []


@pytest.mark.parametrize(
    "unit", ["CUDA error: driver mismatc ", "driver", "1", "CUDA error: out of memory ", "\n"]
)
def test_a_long_message_is_explained_at_once(unit: str) -> None:
    """Not in hours, which the limit of a test's time would end."""
    explanation.explain(RuntimeError("CUDA error: " + unit * (500_000 // len(unit))))
    text = unit * (500_000 // len(unit))
    for pattern in (oom._REQUESTED, oom._UNUSED, oom._FREE):
        assert oom._size(pattern, text) is None
    oom._device(text)


def test_what_stands_at_the_end_of_a_long_text_is_read() -> None:
    """As in what a DataLoader's worker leaves: its error is below its traceback."""
    error = RuntimeError("x\n" * 100_000 + "CUDA error: device-side assert triggered\n")
    assert "index out of range" in str(explanation.explain(error))


def test_a_chain_of_exceptions_without_end() -> None:
    last: BaseException = RuntimeError("CUDA error: device-side assert triggered")
    for number in range(10_000):
        last, before = ValueError(number), last
        last.__context__ = before
    assert explanation.explain(last) is None
    last.__cause__ = RuntimeError("CUDA error: device-side assert triggered")
    assert explanation.explain(last) is not None


@pytest.mark.parametrize("number", ["1.2.3", "9" * 400, "9" * 5000, ".", "1."])
def test_a_size_that_is_none(number: str) -> None:
    text = f"Tried to allocate {number} GiB. GPU {number} has"
    found = oom._size(oom._REQUESTED, text)
    assert found is None
    oom._device(text)


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_nobody_else_reads_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch replaces the file that it is given by one of its own mode."""
    folders = []

    def export(name: str) -> None:
        path = Path(name)
        folders.append((path.parent, stat.S_IMODE(path.parent.stat().st_mode)))
        path.unlink(missing_ok=True)
        path.write_text(json.dumps({"traceEvents": []}))

    profiled = object.__new__(profiler.Profiled)
    profiled._trace = None
    profiled._profile = type("Profile", (), {"export_chrome_trace": staticmethod(export)})
    monkeypatch.setattr(profiler, "report", len)
    profiled._read()
    ((folder, mode),) = folders
    assert mode == 0o700
    assert not folder.exists()


LOST = "\ufffd"


def test_what_is_invisible_is_seen() -> None:
    ranges = [(0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)]
    chars = [0x3164, 0xFFA0, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x034F]
    chars += [code for first, last in ranges for code in range(first, last + 1)]
    for code in chars:
        assert one_line.harmless(f"a{chr(code)}b") == "a\ufffdb", hex(code)
    for mark in "\u0301\u20dd\u0489\u200d\u200c":
        assert one_line.harmless(f"a{mark * 1000}b{mark}") == f"a{mark * 4}{LOST * 996}b{mark}"
    mixed = "\u0301\u200d" * 4
    assert one_line.harmless(f"a{mixed}") == f"a{mixed[:4]}" + "\ufffd" * 4


@pytest.mark.parametrize(
    "text",
    [
        "Ångström",
        "A\u030a",
        "ế\u0323",
        "नमस्ते",
        "می\u200cخواهم",
        "👩\u200d💻",
        "漢字",
        "\u3000x",
        "…",
    ],
)
def test_what_is_written_stays(text: str) -> None:
    assert one_line.harmless(text) == text
