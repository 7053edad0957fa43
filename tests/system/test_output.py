"""What is known of a stream of text, and printing to it, which raises nothing."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from gpumagic.system.output import Output, complain


class Logger:
    """As in countless repositories: it has what `print` needs, and no more."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.log = io.BytesIO()
        self._as = encoding

    def write(self, text: str) -> None:
        self.log.write(text.encode(self._as))


class Broken:
    encoding = "utf-8"

    def write(self, text: str) -> None:
        raise OSError(28, "No space left on device")

    def isatty(self) -> bool:
        raise ValueError("I/O operation on closed file")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (Logger(), "GPU █ 1 µs\n"),
        (Logger("ascii"), "GPU # 1 us\n"),
        (Logger("cp1252"), "GPU # 1 us\n"),
    ],
)
def test_a_stream_that_says_nothing_of_itself(stream: Logger, expected: str) -> None:
    output = Output(stream)
    assert (output.is_terminal, output.has_colors, output.encoding, output.width) == (
        *(False, False, None),
        80,
    )
    output.print("GPU █ 1 µs")
    assert stream.log.getvalue().decode(stream._as) == expected


@pytest.mark.parametrize(
    ("encoding", "expected"), [("cp1252", "GPU # 1 us"), ("ascii", "GPU # 1 us"), ("utf-16", None)]
)
def test_a_stream_of_another_encoding(encoding: str, expected: str | None) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    output = Output(file)
    output.print("GPU █ 1 µs")
    shown = file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert shown == f"{expected or 'GPU █ 1 µs'}\n"
    assert output.printable("GPU █ 1 µs") == (expected or "GPU █ 1 µs")


def test_what_means_something_is_not_a_question_mark() -> None:
    """An upper bound stays one, and a minus a minus."""
    output = Output(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert output.printable("≤ 20.0 µs · wall 1 ms, 模型") == "< 20.0 us | wall 1 ms, ??"
    assert output.printable("−256 MiB, 40 °C ✓ ✗") == "-256 MiB, 40 C + x"


@pytest.mark.parametrize("stream", [None, Broken(), closed(), object()])
def test_a_stream_that_takes_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    Output().print("a line")
    complain("a line")
    assert Output().printable("GPU █") == "GPU █"
