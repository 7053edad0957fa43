"""Where a result goes: the screen, a variable, a name, the caller."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from gpumagic.magics.cudatime.delivery import Delivery, print_failure
from gpumagic.magics.extension import of
from gpumagic.results import CudaTiming, Sample


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(
        rows=False, **{"output": False, "variable": None, "quiet": True, "name": None, **given}
    )


def test_a_result_and_what_is_added_go_everywhere(ip: Any) -> None:
    one = Sample((0.01,))
    extension = of(ip)
    magics = extension.magics
    delivery = Delivery(magics, options(output=True, variable="t", name="a"))
    assert delivery.returned is None
    delivery.deliver(CudaTiming(gpu=one, wall=one, cpu=one))
    delivery.add("later")
    assert delivery.returned is ip.user_ns["t"] is extension.named_timings["a"]
    assert ip.user_ns["t"].notes == ("later",)
    plain = Delivery(magics, options())
    plain.deliver(CudaTiming(gpu=one, wall=one, cpu=one))
    assert plain.returned is None
    assert list(extension.named_timings) == ["a"]


def test_a_failure_of_ours_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with print_failure():
        _ = 1 / 0
    with print_failure("the kernels"):
        raise ValueError("first\nsecond")
    with pytest.raises(KeyboardInterrupt), print_failure():
        raise KeyboardInterrupt
    assert capsys.readouterr().out.splitlines() == [
        "%cudatime: cannot show the times (ZeroDivisionError: division by zero)",
        "%cudatime: cannot show the kernels (ValueError: first)",
    ]
