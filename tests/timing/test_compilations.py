"""torch.compile's own record, read field by field."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.results.compilation import Compilation
from gpumagic.results.work import compilation_lines
from gpumagic.timing.compilations import CompilationRecord, compiled_frames, has_compiled


def test_compilations_since_the_record_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SimpleNamespace(co_name="step", co_filename="a.py", co_firstlineno=3)
    record: list[Any] = [first]
    utils = SimpleNamespace(get_compilation_metrics=lambda: list(record))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    before = CompilationRecord()
    assert before.since() == ()
    again = SimpleNamespace(
        co_name="step",
        co_filename="a.py",
        co_firstlineno=3,
        entire_frame_compile_time_s=0.5,
        recompile_reason="tensor 'x' size mismatch\nat index 0",
        fail_reason=None,
        something_new=object(),
    )
    record.append(again)
    (found,) = before.since()
    assert found.function == "step"
    assert found.reason is not None
    assert "\n" not in found.reason
    lines = [line.parts[0].text for line in compilation_lines([found])]
    assert lines[0] == "torch.compile compiled 1 time in 0.5 s"
    assert lines[1].startswith("recompiled step (a.py:3): tensor 'x' size mismatch")
    assert len(lines) == 2
    record.clear()
    assert before.since() == ()


def test_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = {"old": 3}
    utils = SimpleNamespace(counters={"graph_break": breaks})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    record = CompilationRecord()
    assert record.graph_breaks() == {}
    breaks["old"] = 4
    breaks["Failed to trace\n  Explanation: print is not known\n  Hint: do not"] = 1
    assert record.graph_breaks() == {"old": 1, "Failed to trace: print is not known": 1}


def test_compiled_frames_are_counted_by_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(counters={"frames": {"total": 3}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    assert compiled_frames() == 3
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)  # type: ignore[arg-type]
    assert compiled_frames() == 0


def test_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())  # type: ignore[arg-type]
    assert CompilationRecord().since() == ()
    assert CompilationRecord().graph_breaks() == {}
    assert compilation_lines([]) == []
    (_, failed) = compilation_lines([Compilation(failure="no")])
    assert failed.parts[0].text == "not compiled: ? (?:?): no"


def test_compiled_code_is_known_by_dynamos_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    code = test_graph_breaks.__code__
    name = "torch._C._dynamo.eval_frame"
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert not has_compiled(code)
    found = SimpleNamespace(_debug_get_cache_entry_list=lambda each: [1] if each is code else [])
    monkeypatch.setitem(sys.modules, name, found)  # type: ignore[arg-type]
    assert has_compiled(code)
    assert not has_compiled(test_compiled_frames_are_counted_by_dynamo.__code__)
