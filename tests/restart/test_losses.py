"""The threads and tasks of the user that a restart would end, found by what they run."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
import zmq.utils.garbage

from gpumagic.restart import losses
from tests.restart import FREEZE
from tests.support.kernels import Kernel


@contextmanager
def running(*, daemon: bool = True, **options: Any) -> Iterator[threading.Thread]:
    """A thread that has begun to run; it is asked to end, and waited for."""
    ended = threading.Event()
    options.setdefault("target", ended.wait)
    thread = threading.Thread(daemon=daemon, **options)
    thread.start()
    while not sys._current_frames().get(thread.ident or 0):
        pass
    yield thread
    ended.set()
    if options["target"] is ended.wait:
        thread.join()


def test_a_thread_that_runs_the_users_code() -> None:
    begun, end = threading.Event(), threading.Event()

    def train() -> None:
        begun.set()
        end.wait()

    with running(target=train, name="mine") as thread:
        begun.wait()
        assert "mine" in losses.threads()
        end.set()
        thread.join()
    assert "mine" not in losses.threads()


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_that_runs_nothing_but_the_standard_library(daemon: bool) -> None:
    with running(daemon=daemon, name="waiting"):
        assert "waiting" in losses.threads()


def test_threads_of_libraries_are_no_loss() -> None:
    """pyzmq's, which begins with the first message of more than 64 KiB; tqdm's monitor."""
    from tqdm import TMonitor, tqdm

    before = losses.threads()
    collector = zmq.utils.garbage.GarbageCollector()
    collector.start()
    monitor = TMonitor(tqdm, 60)
    try:
        assert {type(t).__name__ for t in threading.enumerate()} >= {
            "GarbageCollectorThread",
            "TMonitor",
        }
        assert losses.threads() == before
    finally:
        monitor.exit()
        collector.stop()


def test_a_librarys_function_that_a_variable_owns() -> None:
    """``Thread(target=trainer.fit, daemon=True)``: the trainer is a variable."""
    poller = zmq.Poller()
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind("inproc://losses")
    poller.register(socket)
    with running(target=poller.poll, args=(60_000,), name="polls") as thread:
        assert "polls" not in losses.threads()
        assert "polls" in losses.threads([poller])
        assert "polls" in losses.threads([thread])
        sender = context.socket(zmq.PUSH)
        sender.connect("inproc://losses")
        sender.send(b"")
        thread.join()
        sender.close(0)
    socket.close(0)
    context.term()


def test_pools() -> None:
    """An idle worker is nothing to lose; one at work is, whatever it runs."""
    waiting: queue.Queue[int] = queue.Queue()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(int).result()
        assert not [name for name in losses.threads() if name.startswith("pool")]
        pool.submit(waiting.get)
        while not [name for name in losses.threads() if name.startswith("pool")]:
            time.sleep(0.005)  # until it has taken it
        waiting.put(1)


def test_tasks() -> None:
    """The user's, by the code that they wait in or by the variable that holds them."""

    async def train() -> None:
        await asyncio.sleep(60)

    async def cell() -> list[list[str]]:
        mine = asyncio.ensure_future(train())
        library = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        found = [losses.tasks(), losses.tasks([library])]
        mine.cancel()
        library.cancel()
        await asyncio.gather(mine, library, return_exceptions=True)
        return found

    alone, held = asyncio.run(cell())
    assert [name.rpartition(".")[2] for name in alone] == ["train"]
    assert sorted(name.rpartition(".")[2] for name in held) == ["sleep", "train"]


def test_after_much_output_and_with_a_task(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{FREEZE}\nprint('x' * 200_000)")
    assert "GarbageCollectorThread" in k.value(
        "[type(t).__name__ for t in __import__('threading').enumerate()]"
    )
    k.run("import asyncio\nasync def train(): await asyncio.sleep(600)")
    k.run("task = asyncio.ensure_future(train())")
    refused = k.run("%gpu off --restart", raising=False)
    assert refused.shown == (
        "UsageError: a restart would lose the asyncio task train; end them, or add --force\n"
    )
    k.run("task.cancel()")
    assert k.run("%gpu off --restart").text.startswith("restarted")
