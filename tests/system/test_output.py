"""What is known of a stream of text, and printing to it, which raises nothing."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import pexpect
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
    assert output.printable("GPU-8f… 1 µs ± 2 µs → 0") == "GPU-8f... 1 us +/- 2 us > 0"


@pytest.mark.parametrize("stream", [None, Broken(), closed(), object()])
def test_a_stream_that_takes_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    Output().print("a line")
    complain("a line")
    assert Output().printable("GPU █") == "GPU █"


def test_only_what_is_printed_to_a_terminal_is_as_wide_as_that() -> None:
    """A kernel's output is not shown in the terminal that its server was started in."""
    source = (
        "import io, os, sys; from gpumagic.system.output import Output\n"
        "printed, real, sys.stdout = Output().width, sys.stdout, io.StringIO()\n"
        "elsewhere = Output().width; os.environ['COLUMNS'] = '33'; wanted = Output().width\n"
        "print(printed, elsewhere, wanted, file=real)"
    )
    # Named, since readline may have written its size into what libc would hand on.
    env, size = dict(os.environ), (24, 61)
    python = pexpect.spawn(sys.executable, ["-c", source], env=env, dimensions=size, timeout=None)
    assert python.read().split() == [b"61", b"80", b"33"]
    python.close()
