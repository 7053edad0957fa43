"""Operations without a cell bring parked memory back before they run."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.memory.parking import PARKING
from gpumagic.memory.unpark_on_use import MODES
from tests.support.parking import needs_parking

pytestmark = needs_parking


@pytest.fixture(autouse=True)
def _modes_are_left(torch: Any) -> Iterator[None]:
    yield
    PARKING.bring_back()
    MODES.leave()
    assert not MODES.entered


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "operation": lambda torch, x, loss: x + 1,
    "in place": lambda torch, x, loss: x.detach().mul_(1),
    "list of tensors": lambda torch, x, loss: torch._foreach_add([x.detach()], 1),
    "index": lambda torch, x, loss: x[3],
    "item": lambda torch, x, loss: x[3].item(),
    "to the host": lambda torch, x, loss: x.cpu(),
    "to a list": lambda torch, x, loss: x.tolist(),
    "print": lambda torch, x, loss: repr(x),
    "format": lambda torch, x, loss: f"{x}",
    "backward": lambda torch, x, loss: loss.backward(),
    "optimizer": lambda torch, x, loss: torch.optim.SGD([x], lr=0.0).step(),
    "address": lambda torch, x, loss: x.data_ptr(),
    "storage": lambda torch, x, loss: x.untyped_storage().data_ptr(),
    "CUDA array interface": lambda torch, x, loss: x.detach().__cuda_array_interface__,
    "DLPack": lambda torch, x, loss: x.detach().__dlpack__(),
    "save": lambda torch, x, loss: torch.save(x, io.BytesIO()),
    "copy": lambda torch, x, loss: copy.deepcopy(x),
    "pickle": lambda torch, x, loss: pickle.dumps(x),
}


@pytest.mark.parametrize("use", USES)
def test_the_first_use_brings_memory_back(torch: Any, use: str) -> None:
    x = torch.arange(600.0).to("cuda").requires_grad_()
    x.grad = torch.zeros_like(x)
    loss = (x * 2).sigmoid().sum()
    assert PARKING.park().storages
    MODES.enter()
    USES[use](torch, x, loss)
    assert not PARKING.active
    assert torch.equal(x.detach().cpu(), torch.arange(600.0))
    MODES.leave()


def test_other_operations_leave_it_parked(torch: Any) -> None:
    x = torch.arange(600.0).to("cuda")
    PARKING.park()
    MODES.enter()
    assert (x.shape, x.device.index, x.dtype, x.is_cuda) == ((600,), 0, torch.float32, True)
    assert float((torch.ones(3) + 1).sum()) == 6
    assert float(torch.ones(3).to("cuda").sum().cpu()) is not None
    assert PARKING.active


def test_modes_are_left_where_the_user_has_entered_none(torch: Any) -> None:
    """Nothing is in the way of operations while nothing is parked."""
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.ones(600).to("cuda")
    PARKING.park()
    MODES.enter()
    with FlopCounterMode(display=False):
        assert float(x.cpu()[0]) == 1
        MODES.leave()
        assert MODES.entered  # the user's mode was entered after ours
    MODES.leave()
    assert not MODES.entered
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_guard_stops_other_accesses(torch: Any) -> None:
    x = torch.ones(600).to("cuda")
    storage = x.untyped_storage()
    PARKING.park()
    MODES.enter()
    for use in (storage.data_ptr, storage.cpu, lambda: torch._C._to_dlpack(x)):
        with pytest.raises(RuntimeError, match="unpark brings it back"):
            use()
    assert PARKING.active
