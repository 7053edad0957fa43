"""How long a thread waits for a CPU: by the counters of Linux."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpumagic.system import cpu_wait

Counters = Callable[[str], None]


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counters:
    """``counters(text)``: what the system says of the thread."""
    file = tmp_path / "schedstat"
    monkeypatch.setattr(cpu_wait, "_FILE", file)
    monkeypatch.setattr(cpu_wait, "_START", cpu_wait._Start())
    return lambda text: file.write_text(text) and None


def test_the_waiting_of_each_stretch_is_its_own(counters: Counters) -> None:
    counters("2000 500 3\n")
    assert cpu_wait.ratio() == 0.25  # since the thread began
    counters("4000 4500 9\n")
    assert cpu_wait.ratio() == 2.0
    assert cpu_wait.ratio() is None  # nothing has run since
    counters("5000 4500 10\n")
    cpu_wait.begin()
    counters("7000 5500 12\n")
    assert cpu_wait.ratio() == 0.5


def test_each_thread_has_its_own(counters: Counters) -> None:
    counters("2000 500 3\n")
    cpu_wait.begin()
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(cpu_wait.ratio()))
    thread.start()
    thread.join()
    assert found == [0.25]


@pytest.mark.parametrize("text", ["", "0 0 0\n", "1 2\n", "a b c\n", "-1 5 5\n"])
def test_what_is_not_counted_is_not_known(counters: Counters, text: str) -> None:
    counters(text)
    cpu_wait.begin()
    assert cpu_wait.ratio() is None


def test_a_system_that_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_wait, "_FILE", tmp_path / "nothing")
    cpu_wait.begin()
    assert cpu_wait.ratio() is None


@pytest.mark.skipif(not cpu_wait._FILE.exists(), reason="the system does not count it")
def test_the_counters_of_this_system() -> None:
    cpu_wait.begin()
    on_cpu = cpu_wait._START.on_cpu
    while cpu_wait._counters() == (on_cpu, cpu_wait._START.waited):
        sum(range(1000))
    found = cpu_wait.ratio()
    assert found is None or found >= 0
    assert cpu_wait._START.on_cpu >= on_cpu > 0
