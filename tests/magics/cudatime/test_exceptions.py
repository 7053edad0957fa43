"""Exceptions of a cell pass through the scopes that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    "error", [ValueError("x"), StopIteration(3), KeyboardInterrupt(), RuntimeError("x")]
)
def test_an_exception_passes_untouched(
    error: BaseException, ip: Any, run_cell: Callable[..., Any]
) -> None:
    """From a cell's code, through all that is around it."""

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
