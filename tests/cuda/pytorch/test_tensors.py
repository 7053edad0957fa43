"""torch's own functions of tensors, also where a mode overrides them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from gpumagic.cuda.pytorch.tensors import plain_functions, tensor_base


class RefusingMode(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{function} was called")


def test_a_mode_of_the_users_is_not_called() -> None:
    """A subclass neither: tests/magics/gpumem/test_foreign_objects.py."""
    tensor = torch.zeros(6)
    with RefusingMode():
        with plain_functions():
            assert tensor_base().size(tensor) == (6,)
        with pytest.raises(AssertionError, match="was called"):
            tensor.sum()
