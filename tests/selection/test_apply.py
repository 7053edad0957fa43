"""Parts of applying a choice that need no fresh process; the others: tests/magics/gpu."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cuda.this_process import STATE
from gpumagic.cuda.visible_devices import MASK
from gpumagic.errors import SpecError
from gpumagic.results.devices import Device, DeviceTable
from gpumagic.selection import apply
from gpumagic.selection.spec import as_text

EQUAL = tuple(Device(i, uuid=f"GPU-a{i}", name="H100") for i in range(4))


@pytest.mark.parametrize(
    ("written", "spec"),
    [(0, "0"), ((1,), "1"), ([0, "GPU-a2"], "0,GPU-a2")],
)
def test_a_script_may_write_indexes_as_numbers(written: Any, spec: str) -> None:
    assert as_text(written) == spec


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (None, "not NoneType; write, for example, select('0,2')"),
        (True, "not bool"),
        ([0, None], "not list"),
        ([], "([0, 2]), not list; write, for example, select('0,2')"),
        (-1, "'-1' is not a choice of GPUs; did you mean off?"),
    ],
)
def test_other_types_are_refused_in_one_line(written: Any, says: str) -> None:
    with pytest.raises(SpecError) as error:
        apply.select(written)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        ("-1", [0, 1, 2, 3]),
        ("GPU-a2", [2]),
        ("NoDevFiles", [0, 1, 2, 3]),
    ],
)
def test_auto_may_choose_what_was_visible_at_the_start(
    monkeypatch: pytest.MonkeyPatch, mask: str, allowed: list[int]
) -> None:
    monkeypatch.setattr(STATE, "started_with", {MASK: mask})
    assert [device.index for device in apply.allowed(DeviceTable(EQUAL))] == allowed
