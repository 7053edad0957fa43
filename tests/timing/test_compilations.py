"""torch.compile's own record, read field by field."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.results.compilation import Compilation, GraphBreak
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
        fail_reason="Failed to trace\n  Explanation: no print\n  Hint: none",
        fail_user_frame_filename="a.py",
        fail_user_frame_lineno=5,
        something_new=object(),
    )
    record.append(again)
    (found,) = before.since()
    assert found.function == "step"
    assert found.reason == "tensor 'x' size mismatch at index 0"
    lines = [line.parts[0].text for line in compilation_lines([found])]
    assert lines[0] == "torch.compile compiled 0 times in 0.5 s"
    assert lines[1:] == ["not compiled: step (a.py:3), line 5: Failed to trace: no print"]
    record.clear()
    assert before.since() == ()


def test_a_guard_is_named_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the code and the calls that torch appends, whose file name it may have cut."""
    record: list[Any] = []
    utils = SimpleNamespace(get_compilation_metrics=lambda: list(record))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    before = CompilationRecord()
    guard = f"{'3/0: n == 0.0':<60}  # return a*n  # mp/ipykernel_7/40.py:4 in g3"
    stack = (
        '\nUser stack trace:\n  File "/tmp/ipykernel_7/39.py", line 9, in step\n    f()\n'
        '  File "/env/site-packages/torch/nn/module.py", line 1, in forward\n    return a*n\n'
    )
    hint = f"{guard} (HINT: torch.compile considers it static); x > 2  # a.py:5 in <module>"
    away = "3/0: b  # return b  # lib/b.py:8 in g"
    for reason in (guard, guard + stack, hint, away):
        record.append(
            SimpleNamespace(
                co_name="g3",
                co_filename="/tmp/ipykernel_7/40.py",
                co_firstlineno=2,
                recompile_reason=reason,
            )
        )
    _, *lines = [line.parts[0].text for line in compilation_lines(before.since())]
    cell = "recompiled g3 (/tmp/ipykernel_7/40.py:2)"
    assert lines == [
        f"{cell}, line 4: 3/0: n == 0.0",
        f"{cell}, at /tmp/ipykernel_7/39.py:9: 3/0: n == 0.0",
        f"{cell}, line 4: 3/0: n == 0.0 (HINT: torch.compile considers it static); x > 2",
        f"{cell}: 3/0: b",
    ]
    record[:] = [
        SimpleNamespace(
            co_name="g3",
            co_filename="/my files/ipykernel_7/40.py",
            co_firstlineno=2,
            recompile_reason=f"3/0: n == 0.0  # return {code}  # y files/ipykernel_7/40.py:4 in g3",
        )
        for code in ("a*n", "a[1:2]  # in a list")
    ]
    (_, *lines) = [line.parts[0].text for line in compilation_lines(before.since())]
    cell = "recompiled g3 (/my files/ipykernel_7/40.py:2)"
    assert lines == [f"{cell}, line 4: 3/0: n == 0.0"] * 2


def test_backward_passes_and_first_runs_are_no_compiled_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record: list[Any] = []
    utils = SimpleNamespace(get_compilation_metrics=lambda: list(record))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    before = CompilationRecord()
    forward = SimpleNamespace(co_name="f", is_forward=True, entire_frame_compile_time_s=1.5)
    backward = SimpleNamespace(co_name=None, is_forward=False, duration_us=250_000)
    record += [forward, backward, SimpleNamespace(is_forward=True, is_runtime=True)]
    assert before.since() == (
        Compilation("f", seconds=1.5),
        Compilation(seconds=0.25, backward=True),
    )
    assert before.notes() == ()
    record[:] = [SimpleNamespace(co_name="g") for _ in range(64)]
    (note,) = before.notes()
    assert note == "torch records the last 64 compilations: there may have been more"


def test_an_attempt_that_failed_is_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond torch's limit it has no function, and a backend's exception is in the second line."""
    record: list[Any] = []
    utils = SimpleNamespace(get_compilation_metrics=lambda: list(record))
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    before = CompilationRecord()
    record += [
        SimpleNamespace(
            co_name="f", co_filename="a.py", co_firstlineno=2, recompile_reason=f"3/{i}: n == {i}"
        )
        for i in range(2)
    ]
    limit = "Dynamo recompile limit exceeded\n  Explanation: too many times"
    failed = SimpleNamespace(recompile_reason="3/1: n == 1", fail_reason=limit)
    raised = "backend='bad' raised:\nRuntimeError: no such thing"
    record += [failed, SimpleNamespace(co_name="g", co_filename="a.py", fail_reason=raised)]
    assert [line.parts[0].text for line in compilation_lines(before.since())] == [
        "torch.compile compiled 2 times",
        "recompiled f (a.py:2): 3/0: n == 0",
        "recompiled f (a.py:2): 3/1: n == 1",
        "not compiled: f (a.py:2): Dynamo recompile limit exceeded: too many times",
        "not compiled: g (a.py:?): backend='bad' raised: RuntimeError: no such thing",
    ]


def test_graph_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's list, which has the lines: the user's, not torch's or another library's."""

    def broken(reason: str, *stack: tuple[str, int, str]) -> Any:
        frames = [
            SimpleNamespace(filename=file, lineno=line, name=name) for file, line, name in stack
        ]
        return SimpleNamespace(reason=reason, user_stack=frames)

    folder = "/env/lib/site-packages/torch"
    inner = (f"{folder}/nn/modules/module.py", 1787, "_call_impl")
    library = ("/env/lib/site-packages/models/bert.py", 7, "forward")
    old = broken("old", ("/home/me/a.py", 1, "f"))
    breaks = [old]
    utils = SimpleNamespace(graph_break_reasons=breaks, counters={"graph_break": {"old": 1}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__path__=[folder]))  # type: ignore[arg-type]
    record = CompilationRecord()
    assert record.graph_breaks() == ()
    printing = "Failed to trace\n  Explanation: print is not known\n  Hint: do not"
    breaks += [
        broken(printing, ("/home/me/a.py", 3, "f"), ("/home/me/b.py", 9, "g"), library, inner),
        broken("generic_jump TensorVariable()", ("<ipython-input-3-0123>", 4, "cell"), inner),
        broken(printing, ("/home/me/b.py", 9, "torch_dynamo_resume_in_g_at_7")),
        broken("a hook", library, inner),
        broken("a kernel", inner),
        broken("no stack"),
        SimpleNamespace(reason=None),
    ]
    shortened = "Failed to trace: print is not known"
    found = record.graph_breaks()
    assert found == (
        GraphBreak(shortened, 2, "g", "/home/me/b.py", 9),
        GraphBreak(
            "data-dependent branching (generic_jump TensorVariable())",
            1,
            "cell",
            "<ipython-input-3-0123>",
            4,
        ),
        GraphBreak("a hook", 1, "forward", library[0], 7),
        GraphBreak("a kernel", 1, "_call_impl", inner[0], 1787),
        GraphBreak("no stack"),
        GraphBreak("no reason is known"),
    )
    lines = [line.parts[0].text for line in compilation_lines([], found)]
    assert lines[0] == "torch.compile compiled 0 times, with 7 graph breaks"
    assert lines[1] == f"2 graph breaks in g (/home/me/b.py:9): {shortened}"
    assert lines[5] == "1 graph break: no stack"
    breaks[:] = [old]  # torch._dynamo.reset() clears it
    assert record.graph_breaks() == ()


def test_graph_breaks_where_torch_only_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = {"old": 3}
    utils = SimpleNamespace(counters={"graph_break": breaks})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    record = CompilationRecord()
    assert record.graph_breaks() == ()
    breaks["old"] = 4
    breaks["Failed to trace\n  Explanation: print is not known\n  Hint: do not"] = 1
    assert record.graph_breaks() == (
        GraphBreak("old"),
        GraphBreak("Failed to trace: print is not known"),
    )


def test_compiled_frames_are_counted_by_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(counters={"frames": {"total": 3}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)  # type: ignore[arg-type]
    assert compiled_frames() == 3
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)  # type: ignore[arg-type]
    assert compiled_frames() == 0


def test_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace())  # type: ignore[arg-type]
    assert CompilationRecord().since() == ()
    assert CompilationRecord().graph_breaks() == ()
    assert compilation_lines([]) == []
    (_, failed) = compilation_lines([Compilation(failure="no")])
    assert failed.parts[0].text == "not compiled: no"


def test_compiled_code_is_known_by_dynamos_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    code = test_graph_breaks.__code__
    name = "torch._C._dynamo.eval_frame"
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert not has_compiled(code)
    found = SimpleNamespace(_debug_get_cache_entry_list=lambda each: [1] if each is code else [])
    monkeypatch.setitem(sys.modules, name, found)  # type: ignore[arg-type]
    assert has_compiled(code)
    assert not has_compiled(test_compiled_frames_are_counted_by_dynamo.__code__)
