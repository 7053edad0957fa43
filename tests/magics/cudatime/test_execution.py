"""The code's value and exception, through all that is around it, and where gpumagic fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.timing import event_timer
from gpumagic.timing.repeated.benchmark import Runs

FAILURE = "gpumagic: cannot show the result (ValueError: oops)"


@pytest.mark.parametrize(
    ("options", "patched", "value"),
    [("", (event_timer, "stop"), 42), ("-n 1 -r 2 -w 0", (Runs, "result"), None)],
)
def test_a_failure_of_ours_leaves_value_and_exception(
    options: str,
    patched: tuple[Any, str],
    value: int | None,
    run_cell: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = getattr(*patched)
    ended: list[Any] = []

    def fails_at_last(*arguments: Any, **options: Any) -> Any:
        ended.append(method(*arguments, **options))
        raise ValueError("oops")

    monkeypatch.setattr(*patched, fails_at_last)
    ran = run_cell(f"%%cudatime {options}\n6 * 7")
    assert (ran.value, ran.stdout.splitlines()[0]) == (value, FAILURE)
    run_cell("left = [0, 1]" if options else "left = [0]")  # one repeat is complete
    ran = run_cell(f"%%cudatime {options}\n1 / left.pop()", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert FAILURE in ran.stdout
    assert len(ended) == 2


def test_an_interrupt_before_the_code_runs_blames_no_statement(
    run_cell: Any, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(event_timer, "wait_for", interrupted)
    gpu_work.sleep(1.0)
    ran = run_cell("%cudatime print('ran')", raising=False)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert "ran" not in ran.stdout.splitlines()
    frames = traceback.extract_tb(ran.error.__traceback__)
    assert not any(
        "print" in (frame.line or "") and "cudatime" not in frame.line for frame in frames
    )


@pytest.mark.parametrize(
    "error", [ValueError("x"), StopIteration(3), KeyboardInterrupt(), RuntimeError("x")]
)
def test_an_exception_passes_untouched(
    error: BaseException, ip: Any, run_cell: Callable[..., Any]
) -> None:
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
