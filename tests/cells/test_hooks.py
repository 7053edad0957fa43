"""Hooks around cells: their order, failures, and their removal; the rest is in `tests/magics`."""

from __future__ import annotations

from collections.abc import Iterator
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
