"""torch's own functions of tensors, also where a subclass or a mode overrides them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from gpumagic.cuda.storages import plain_functions, tensor_base


class Refusing(torch.Tensor):
    """A subclass whose overrides raise."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{function} was called")


class RefusingMode(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{function} was called")


def test_neither_a_subclass_nor_a_mode_is_called() -> None:
    tensor = torch.zeros(6).as_subclass(Refusing)
    with pytest.raises(AssertionError, match="was called"):
        tensor.sum()
    with RefusingMode(), plain_functions():
        assert tensor_base().size(tensor) == (6,)
        assert tensor_base().numel(torch.ones(3)) == 3
    with pytest.raises(AssertionError, match="was called"):
        tensor.sum()
