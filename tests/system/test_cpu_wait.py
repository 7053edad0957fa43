"""How long the threads of a process wait for a CPU: by the counters of Linux."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gpumagic.system import cpu_wait

Count = Callable[[int, str], None]


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Count:
    """``count(thread, text)``: what the system says of a thread."""
    monkeypatch.setattr(cpu_wait, "_THREADS", tmp_path)

    def write(thread: int, text: str) -> None:
        (tmp_path / str(thread)).mkdir(exist_ok=True)
        (tmp_path / str(thread) / "schedstat").write_text(text)

    return write


def test_the_waiting_of_all_threads_is_added_up(count: Count) -> None:
    count(1, "4000000000 1000000000 3\n")
    count(2, "0 500000000 1\n")
    before = cpu_wait.counters()
    assert before == {"1": 10**9, "2": 5 * 10**8}
    assert cpu_wait.waited_since(before) == 0
    count(1, "9000000000 1250000000 4\n")
    count(2, "0 750000000 2\n")
    assert cpu_wait.waited_since(before) == 0.5


def test_threads_that_begin_and_end_meanwhile(count: Count, tmp_path: Path) -> None:
    count(1, "1 1000000000 3\n")
    count(2, "1 9000000000 3\n")
    before = cpu_wait.counters()
    (tmp_path / "2" / "schedstat").unlink()
    count(3, "1 250000000 1\n")
    assert cpu_wait.waited_since(before) == 0.25


def test_a_number_that_another_thread_has_now_is_no_waiting_below_0(count: Count) -> None:
    count(1, "1 1000000000 3\n")
    before = cpu_wait.counters()
    count(1, "1 5 1\n")
    assert cpu_wait.waited_since(before) == 0


@pytest.mark.parametrize("text", ["", "0 0 0\n", "1 2\n", "a b c\n", "-1 5 5\n"])
def test_what_is_not_counted_is_not_known(count: Count, text: str) -> None:
    count(1, text)
    assert cpu_wait.waited_since(cpu_wait.counters()) is None


def test_a_system_that_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_wait, "_THREADS", tmp_path / "nothing")
    assert cpu_wait.waited_since(cpu_wait.counters()) is None


@pytest.mark.skipif(not cpu_wait._THREADS.exists(), reason="the system does not count it")
def test_the_counters_of_this_system() -> None:
    begun, end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        end.wait()

    before = cpu_wait.counters()
    if not before:
        pytest.skip("the system does not count it")
    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    try:
        assert str(thread.native_id) in cpu_wait.counters()
        waited = cpu_wait.waited_since(before)
        assert waited is not None
        threads = len(cpu_wait.counters())
        # A wait is counted when it ends: it may have begun at any time before.
        assert 0 <= waited <= threads * (time.time() - psutil.Process().create_time())
    finally:
        end.set()
        thread.join()
