"""What parking is refused for where it is never possible; the other refusals: test_parking.py."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.errors import DeviceError
from gpumagic.memory.parking import PARKING


def test_refused_by_a_torch_that_cannot_guard(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and nothing changes; the oldest torch that is supported has no guard."""
    clear = "_clear_storage_data_ptr_access_error_msg"
    monkeypatch.delattr(torch._C, clear, raising=False)
    tensor = torch.ones(100).to("cuda")
    says = (
        r"^nothing was parked: torch \S+ cannot guard parked memory against use; torch 2\.12 can$"
    )
    with pytest.raises(DeviceError, match=says):
        PARKING.park()
    assert not PARKING.active
    assert bool((tensor.cpu() == 1).all())
