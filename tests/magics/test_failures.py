"""The explanation below a traceback: it raises nothing and keeps no reference."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from gpumagic.magics import failures
from gpumagic.magics.extension import of
from gpumagic.memory import oom


def test_an_error_without_explanation_shows_nothing(
    ip: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failures.explain(ip, ValueError("mine"))
    assert capsys.readouterr() == ("", "")


def test_a_failure_of_the_explanation_is_one_line(
    ip: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: BaseException) -> Any:
        raise RuntimeError("no answer\nmore")

    monkeypatch.setattr(oom, "find", broken)
    failures.explain(ip, ValueError("mine"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "gpumagic: no explanation (RuntimeError: no answer)\n"


def test_the_exception_is_not_kept(ip: Any) -> None:
    class OwnError(ValueError):
        pass

    error = OwnError()
    gone = weakref.ref(error)
    gc.disable()
    try:
        failures.explain(ip, error)
        del error
        assert gone() is None
    finally:
        gc.enable()


def test_out_of_memory_is_not_explained_where_that_is_switched_off(ip: Any) -> None:
    of(ip).magics.explain_oom = False
    assert failures._out_of_memory(ip, MemoryError()) is None
