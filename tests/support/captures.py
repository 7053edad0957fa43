"""A CUDA graph that another thread captures, and what may be asked of CUDA meanwhile."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.waiting import PATIENCE

#: Whether it ends the capture, a global one, by the asking thread's own mode (global, this thread,
#: relaxed); as an H200 answered (torch 2.11, driver 580).
ENDS = {
    "query of another stream": (True, False, False),
    "query of the default stream": (True, False, False),
    "query of an older event": (True, False, False),
    "record on another stream": (False, False, False),
    "is it capturing": (False, False, False),
    "free memory": (False, False, False),
    "a new event": (False, False, False),
    "a new stream": (False, False, False),
    "wait for the device": (True, True, True),
}


def _questions(torch: Any) -> dict[str, Callable[[], int]]:
    driver, number, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
    side, old, made = torch.cuda.Stream(), torch.cuda.Event(), ctypes.c_void_p()
    old.record()
    torch.cuda.synchronize()
    other, event = ctypes.c_void_p(side.cuda_stream), ctypes.c_void_p(old.cuda_event)

    def use(call: Callable[[], int]) -> Callable[[], int]:
        return lambda: (call(), side, old)[0]  # which live as long

    asked: dict[str, Callable[[], int]] = {
        "query of another stream": lambda: driver.cuStreamQuery(other),
        "query of the default stream": lambda: driver.cuStreamQuery(None),
        "query of an older event": lambda: driver.cuEventQuery(event),
        "record on another stream": lambda: driver.cuEventRecord(event, other),
        "is it capturing": lambda: driver.cuStreamIsCapturing(other, ctypes.byref(number)),
        "free memory": lambda: driver.cuMemGetInfo_v2(ctypes.byref(size), ctypes.byref(size)),
        "a new event": lambda: driver.cuEventCreate(ctypes.byref(made), 0),
        "a new stream": lambda: driver.cuStreamCreate(ctypes.byref(made), 1),
        "wait for the device": driver.cuCtxSynchronize,
    }
    return {name: use(call) for name, call in asked.items()}


@contextmanager
def capturing(torch: Any, errors: list[str]) -> Iterator[Any]:
    """A graph that another thread is capturing; ``errors`` gets what has ended the capture."""
    graph, begun, enough = torch.cuda.CUDAGraph(), threading.Event(), threading.Event()

    def capture() -> None:
        try:
            with torch.cuda.graph(graph):
                begun.set()
                enough.wait(PATIENCE)
                torch.cuda._sleep(1000)
        except RuntimeError as error:
            errors.append(str(error))
        finally:
            begun.set()

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield graph
    finally:
        enough.set()
        thread.join()


@contextmanager
def capture_elsewhere(torch: Any) -> Iterator[Any]:
    """A graph that another thread is capturing; at the end the capture must have succeeded."""
    errors: list[str] = []
    with capturing(torch, errors) as graph:
        yield graph
    assert not errors, errors
    graph.replay()
    torch.cuda.synchronize()


def ends(torch: Any, name: str) -> tuple[bool, ...]:
    """Ask a question of `ENDS` in each mode while another thread captures."""
    torch.ones(8, device="cuda").add_(1)
    ask = _questions(torch)[name]
    driver, found = ctypes.CDLL("libcuda.so.1"), []
    for mode in range(3):
        failures: list[str] = []
        with capturing(torch, failures):
            own = ctypes.c_int(mode)
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(own))
            answer = ask()
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(own))
        assert (answer == 900) == bool(failures), (name, mode, answer, failures)
        found.append(bool(failures))
    return tuple(found)
