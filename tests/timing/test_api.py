"""``gpumagic.cudatime``: strings, blocks and decorated functions."""

from __future__ import annotations

from typing import Any

import pytest

import gpumagic
from gpumagic.results.timing.cuda_timing import CudaTiming


def test_a_string() -> None:
    namespace: dict[str, Any] = {"runs": []}
    result = gpumagic.cudatime("runs.append(1)", n=2, r=3, w=1, globals=namespace)
    assert len(namespace["runs"]) == 7 + result.queued
    assert (result.loops, result.repeat, result.warmup) == (2, 3, 1)
    assert gpumagic.cudatime("test_a_string", n=1, r=1).loops == 1, "the caller's names are seen"
    with pytest.raises(SyntaxError):
        gpumagic.cudatime("return 1", n=1)


def test_bad_arguments() -> None:
    with pytest.raises(gpumagic.SpecError, match="need something to run"):
        gpumagic.cudatime(n=3)
    with pytest.raises(TypeError, match="not int"):
        gpumagic.cudatime(3)  # type: ignore[call-overload]


def test_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    timed = gpumagic.cudatime()
    assert repr(timed) == "<the cudatime block has not ended yet>"
    assert not hasattr(timed, "shape")
    with pytest.raises(AttributeError, match="not ended"):
        _ = timed.wall
    with pytest.raises(RuntimeError, match="not ended"):
        _ = timed.result
    with timed as inside:
        assert inside is timed
    assert isinstance(timed.result, CudaTiming)
    assert timed.wall is timed.result.wall
    assert str(timed) == str(timed.result)
    with pytest.raises(ZeroDivisionError), timed:
        _ = 1 / 0
    assert timed.result.partial
    assert "stopped early: the code has not run to its end" in str(timed)
    assert capsys.readouterr().out == ""


def test_a_quiet_decorator(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = gpumagic.cudatime(quiet=True)(lambda: 1)
    assert (quiet(), capsys.readouterr().out) == (1, "")
