"""Hooks around cells: their order, cells within cells, failures, and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cells.hooks import CellHook, CellHooks
from tests.support.shells import registered, shell


@pytest.fixture
def bare() -> Iterator[Any]:
    """A shell without gpumagic."""
    with shell(load=False) as ip:
        yield ip


@pytest.fixture
def hooks(bare: Any) -> Iterator[CellHooks]:
    made = CellHooks(bare)
    calls.clear()
    yield made
    made.clear()


#: What the hooks have noted.
calls: list[str] = []


class _Noting(CellHook[Any]):
    """Notes each call; returns the sources of a cell and of the cells around it."""

    def __init__(self, name: str = "", **methods: Any) -> None:
        self._name = name
        vars(self).update(methods)

    def _note(self, what: str) -> None:
        calls.append(self._name + what)

    def before(self, info: Any, outer: str | None) -> str:
        self._note(f"before {info.raw_cell} in {outer}")
        return str(info.raw_cell)

    def after(self, begun: str | None, result: Any) -> None:
        self._note(f"{'cancelled' if result is None else 'after'} {begun}")

    def failed(self, error: Exception) -> None:
        self._note(f"failed {error}")


def test_in_the_order_of_adding_and_gone_without_a_trace(bare: Any, hooks: CellHooks) -> None:
    found = registered(bare)
    first, second = _Noting("1 "), _Noting("2 ")
    hooks.add(first)
    hooks.add(second)
    hooks.add(first)
    assert [*hooks] == [first, second]
    bare.run_cell("x = 1")
    expected = ["1 before x = 1 in None", "2 before x = 1 in None"]
    assert calls == [*expected, "1 after x = 1", "2 after x = 1"]
    hooks.remove(first)
    hooks.remove(first)
    calls.clear()
    bare.run_cell("2")
    assert calls == ["2 before 2 in None", "2 after 2"]
    hooks.clear()
    assert registered(bare) == found
    assert "showtraceback" not in vars(bare)
    bare.run_cell("3")
    assert len(calls) == 2


def test_a_cell_within_a_cell(bare: Any, hooks: CellHooks) -> None:
    """Each is given what `before` returned for the cell around it, if anything."""
    bare.user_ns["ip"] = bare
    hooks.add(_Noting())
    bare.run_cell("ip.run_cell('1')")
    assert calls == [
        "before ip.run_cell('1') in None",
        "before 1 in ip.run_cell('1')",
        *("after 1", "after ip.run_cell('1')"),
    ]
    calls.clear()
    hooks.clear()
    hooks.add(_Noting(before=lambda info, outer: None))
    bare.run_cell("ip.run_cell('1')")
    assert calls == ["after None", "after None"]


@pytest.mark.parametrize(
    ("running", "expected"),
    [(False, ["after None"]), (True, ["before add() in None", "after add()"])],
)
def test_added_by_a_cell(bare: Any, hooks: CellHooks, running: bool, expected: list[str]) -> None:
    hook = _Noting()
    bare.user_ns["add"] = lambda: hooks.add(hook, running=running)
    bare.run_cell("add()")
    assert calls == expected
    bare.run_cell(" ")  # empty: it never begins
    assert calls == [*expected, "after None"]
    hooks.clear()


def _fail(*_: Any) -> Any:
    raise OSError("broken")


@pytest.mark.parametrize("where", ["before", "after"])
def test_one_that_fails_is_removed(bare: Any, hooks: CellHooks, where: str) -> None:
    options: dict[str, Any] = {where: _fail}
    broken, other = _Noting("1 ", **options), _Noting("2 ")
    hooks.add(broken)
    hooks.add(other)
    assert bare.run_cell("40 + 2").result == 42
    assert "1 failed broken" in calls
    assert [*hooks] == [other]
    assert calls[-1] == "2 after 40 + 2"
    hooks.clear()


def _interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_before_a_cell_is_shown_and_the_hook_stays(
    bare: Any, hooks: CellHooks, capsys: Any
) -> None:
    """Nothing is waited for there; IPython shows it, and runs the cell."""
    hooks.add(_Noting("1 ", before=_interrupt))
    hooks.add(_Noting("2 "))
    assert bare.run_cell("40 + 2").result == 42
    assert "KeyboardInterrupt" in capsys.readouterr().out
    assert calls == ["2 before 40 + 2 in None", "1 after None", "2 after 40 + 2"]
    assert len([*hooks]) == 2


def test_cells_of_two_threads_at_the_same_time(bare: Any, hooks: CellHooks) -> None:
    """A subshell's beside the main one: neither is a part of the other."""
    hook = _Noting(raised=lambda begun: calls.append(f"raised in {begun}"))
    hooks.add(hook)
    bare.user_ns["started"], bare.user_ns["go_on"] = started, go_on = Event(), Event()
    main = "started.set(); go_on.wait(400); 1 / 0"
    thread = Thread(target=bare.run_cell, args=(main,))
    thread.start()
    assert started.wait(400)
    assert hooks.outermost(hook) is None
    bare.run_cell("seen = 1")
    go_on.set()
    thread.join()
    assert calls == [
        f"before {main} in None",
        "before seen = 1 in None",
        "after seen = 1",
        f"raised in {main}",
        f"after {main}",
    ]


def test_an_interrupt_after_a_cell_is_the_cells(bare: Any, hooks: CellHooks, capsys: Any) -> None:
    """Other hooks are called, and a front end does not run the cells that are queued."""
    interrupted, other = _Noting("1 ", after=_interrupt), _Noting("2 ")
    hooks.add(interrupted)
    hooks.add(other)
    result = bare.run_cell("x = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert bare.user_ns["x"] == 1
    assert calls[-1] == "2 after x = 1"
    shown = capsys.readouterr().out
    assert "KeyboardInterrupt" in shown
    assert "Error in callback" not in shown
    assert isinstance(bare.run_cell("1 / 0").error_in_exec, ZeroDivisionError), "the first counts"


def test_cancelled_cells_have_no_result(bare: Any, hooks: CellHooks) -> None:
    hooks.add(_Noting())
    for source in ("outer", "inner"):
        bare.events.trigger("pre_run_cell", SimpleNamespace(raw_cell=source))
    bare.events.trigger("post_run_cell", None)
    assert calls == ["before outer in None", "before inner in outer", "cancelled outer"]
    calls.clear()
    bare.run_cell("1")
    assert calls == ["before 1 in None", "after 1"]
