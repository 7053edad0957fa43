"""Settings of IPython and gpumagic, captured in one shell and restored in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.magics.extension import of
from gpumagic.magics.gpu import session
from tests.support.shells import shell


def _moved(change: Callable[[Any], object]) -> tuple[Any, list[str], Any]:
    """What one shell has after a change, the notes of another one that gets it, and what it has."""
    with shell() as old:
        change(old)
        captured = session.capture(old)
    with shell() as new:
        session.restore_first(new, captured)
        notes = session.restore(new, captured)
        return captured, notes, session.capture(new)


@pytest.mark.parametrize(
    "line",
    [
        "%config GpuMagic.min_free = '55GiB'",
        "%config InteractiveShell.ast_node_interactivity = 'all'",
        "%xmode Verbose",
        "%precision 2",
        "%automagic off",
        "%cudatime on -q --above 7s",
        "%gpumem on -q",
        "%gpumem limit 16GiB -q",
    ],
)
def test_settings_are_restored(virtual_gpu: Any, line: str) -> None:
    captured, notes, after = _moved(lambda ip: ip.run_cell(line))
    with shell() as plain:
        assert session.capture(plain) != captured
    assert notes == []
    assert after == captured


def test_named_results_are_restored(virtual_gpu: Any) -> None:
    captured, notes, after = _moved(lambda ip: ip.run_cell("%cudatime -q --name first 1 + 1"))
    assert notes == []
    assert [*after["timings"]] == [*captured["timings"]] == ["first"]


def test_what_is_not_restored_is_named() -> None:
    def change(ip: Any) -> None:
        ip.run_cell("def hello(line): pass\nget_ipython().register_magic_function(hello)")
        ip.run_cell("def after(*_): pass\nget_ipython().events.register('post_execute', after)")
        ip.events.callbacks["post_execute"][-1:] = ip.events.callbacks["post_execute"][-1:]

    with shell(load=False) as old:
        old.extension_manager.load_extension("gpumagic")
        change(old)
        captured = session.capture(old)
        captured["extensions"].append("no_such_extension")
    with shell() as new:
        missing, failed = sorted(session.restore(new, captured))[::-1]
    assert missing == "Not registered again: %hello, the hook after."
    assert failed.startswith("Not loaded again: no_such_extension (ModuleNotFoundError")


def test_an_extension_has_what_the_session_captures(ip: Any) -> None:
    """Each of these attributes is declared there."""
    extension = of(ip)
    captured = session.capture(ip)
    assert captured["timings"] is extension.named_timings
    assert (captured["timing"], captured["memory"], captured["history"]) == ((), False, None)
