"""A magic that is typed wrong: the one that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.magics.failures import near_magic


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%gpumen", "gpumagic: did you mean %gpumem?\n"),
        ("%%cudatme\n1", "gpumagic: did you mean %%cudatime?\n"),
        ("%numpy", ""),
    ],
)
def test_below_the_error_the_right_one_is_named(run_cell: Any, line: str, says: str) -> None:
    ran = run_cell(line, raising=False)
    assert isinstance(ran.error, UsageError)
    assert ran.stderr.partition("not found.\n")[2] == says


def test_only_ipythons_own_error_is_read() -> None:
    class HostileError(UsageError):
        def __str__(self) -> str:
            raise AssertionError("the user's code was run")

    assert near_magic(HostileError()) is None
