"""Of the calls of a source, one has the time."""

from __future__ import annotations

import pytest

from gpumagic.timing.current_calls import CurrentCalls


@pytest.mark.parametrize(
    ("events", "current"),
    [
        ("", "----"),
        (">a", "a"),
        (">a >b", "ab"),
        (">a >b .b", "aba"),
        (">a .a", "a-"),
        (">a ~a", "aa"),
        (">a ~a >b .b", "aaba"),
        (">a ~a >b ~b", "aabb"),
        (">a ~a >b ~b >a .a", "aabbab"),
        (">a ~a >b ~b >b .b", "aabbba"),
        (">a >b ~b ~a", "abab"),
        (">a >b ~b ~a >a >b .b .a", "ababaab"[:5] + "ba-"),
    ],
)
def test_the_current_call(events: str, current: str) -> None:
    """``>`` enters a call, ``.`` ends it, and ``~`` has it wait."""
    calls: CurrentCalls[str] = CurrentCalls()
    waits: set[str] = set()
    for event, expected in zip(events.split(), current, strict=False):
        kind, call = event
        if kind == ">":
            calls.enter(call)
            waits.discard(call)
            assert calls.is_running(call)
        else:
            calls.leave(call, awaits=kind == "~")
            waits |= {call} if kind == "~" else set()
            assert not calls.is_running(call)
        assert calls.current == (None if expected == "-" else expected), event
        assert calls.waiting() == (calls.current if calls.current in waits else None)
