"""Coroutines with an event loop and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.cells.coroutines import run_or_await, run_sync


async def double(value: int) -> int:
    return 2 * value


async def sleep_and_double(value: int) -> int:
    await asyncio.sleep(0)
    return await double(value)


def test_what_awaits_nothing_needs_no_event_loop() -> None:
    assert run_sync(double(4)) == 8
    assert run_or_await(lambda: double(4), is_async=False) == 8


def test_what_awaits_is_awaited_by_the_caller() -> None:
    assert asyncio.run(run_or_await(lambda: sleep_and_double(4), is_async=True)) == 8


def test_what_awaits_cannot_run_without_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="awaits, but is run without an event loop"):
        run_sync(sleep_and_double(4))


@pytest.mark.parametrize(
    "error", [ValueError("x"), StopIteration(3), KeyboardInterrupt(), RuntimeError("x")]
)
def test_an_exception_passes_untouched(
    error: BaseException, ip: Any, run_cell: Callable[..., Any]
) -> None:
    """From a cell's code, through all the coroutines around it."""

    def fails() -> None:
        raise error

    ip.user_ns["fails"] = fails
    for options in ("", "-n 1 -r 1 -w 0", "--on cpu -n 1 -r 1 -w 0"):
        ran = run_cell(f"%%cudatime -q {options}\nfails()", raising=False)
        assert ran.error is error
        assert (error.__cause__, error.__context__) == (None, None)


def test_a_stop_iteration_of_the_users_own_coroutine_stays_a_runtime_error(
    ip: Any, run_cell: Callable[..., Any]
) -> None:
    source = (
        "async def stops(): raise StopIteration\n"
        "try:\n    stops().send(None)\nexcept RuntimeError as caught:\n    kept = caught\n    raise"
    )
    ran = run_cell(f"%%cudatime -q\n{source}", raising=False)
    assert ran.error is ip.user_ns["kept"]
    assert type(ran.error) is RuntimeError
