"""`gpumagic.system.text`: foreign text and exceptions in one line."""

from __future__ import annotations

import pytest

from gpumagic.system import text

REPLACED = "\ufffd"
#: Ends a terminal's title sequence and reverses the direction of the text after it.
HOSTILE = "\x1b]0;owned\x07\u202e"


@pytest.mark.parametrize(
    "written",
    ["Ångström", "A\u030a", "ế\u0323", "नमस्ते", "漢字", "é", "…"],
)
def test_text_of_any_language_is_unchanged(written: str) -> None:
    assert text.harmless(written) == written


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\tb", "a b"),
        ("a\nb\rc", "a b c"),
        ("\x1b[31m", f"{REPLACED}[31m"),
        ("a\u202eb", f"a{REPLACED}b"),  # right-to-left override
        ("می\u200cخواهم", "میخواهم"),
        ("\u3164\u115f\u2800a\u034f\ufe0f\u200b\u200c\u200db\U000e0100", "ab"),
        ("a" + "\u0301\u20dd" * 5 + "b", "a\u0301\u20dd\u0301b"),  # piled marks
        ("\udcff", REPLACED),  # an undecodable byte of a file name
        ("x" * 30, "x" * 19 + "…"),
    ],
)
def test_control_characters_and_length(written: str, shown: str) -> None:
    assert text.harmless(written, 20) == shown


class BrokenError(Exception):
    """An exception whose text cannot be computed."""

    def __str__(self) -> str:
        return 1 / 0  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "reason", "named"),
    [
        (ValueError("first\nsecond"), "first", "ValueError: first"),
        (ValueError("\n\n  first\nsecond"), "first", "ValueError: first"),
        (
            ValueError("No. See:\n  https://x\nmore"),
            "No. See: https://x",
            "ValueError: No. See: https://x",
        ),
        (ValueError("not <f at 0x7f01aB>"), "not <f>", "ValueError: not <f>"),
        (ValueError(), "ValueError", "ValueError"),
        (BrokenError("never seen"), "BrokenError", "BrokenError"),
        (
            ValueError(f"{HOSTILE}a\nb"),
            f"{REPLACED}]0;owned{REPLACED * 2}a",
            f"ValueError: {REPLACED}]0;owned{REPLACED * 2}a",
        ),
        (ValueError("x" * 10**6), "x" * 299 + "…", "ValueError: " + "x" * 299 + "…"),
    ],
)
def test_an_exception_in_one_line(error: Exception, reason: str, named: str) -> None:
    assert text.reason(error) == reason
    assert text.named(error) == named
