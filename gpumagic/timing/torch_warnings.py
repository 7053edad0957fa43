"""Which calls of torch's methods may warn: a warning of torch's names the line that calls it.

Such a call is made in the caller's line where a method is wrapped (`cells.caller_line`). That takes
longer than a short call, so that others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

#: Returns by its arguments whether a call may warn.
MayWarn: TypeAlias = Callable[[Sequence[Any]], bool]


def may_warn(torch: Any, name: str) -> MayWarn | None:
    """Return what knows the calls of a tensor's method that may warn; None if none does.

    Found by calling each method of torch 2.9's that gpumagic wraps.
    """
    tensors = (torch.Tensor, torch.nn.Parameter)
    without_modes, base = torch._C.DisableTorchFunction, torch._C.TensorBase

    def requires_grad(arguments: Sequence[Any]) -> bool:
        """Return whether a value is read of a tensor that requires a gradient."""
        with without_modes():
            return any(
                type(each) in tensors and base.requires_grad.__get__(each) for each in arguments[:1]
            )

    def is_complex(arguments: Sequence[Any]) -> bool:
        """Return whether an imaginary part may be dropped."""
        with without_modes():
            return any(type(each) in tensors and base.is_complex(each) for each in arguments[:2])

    def has_old_index(arguments: Sequence[Any]) -> bool:
        """Return whether an index is a mask of bytes, or a list for several dimensions."""
        index = arguments[1] if len(arguments) > 1 else None
        for part in index if type(index) is tuple else (index,):
            if type(part) is list:
                return True
            if type(part) in tensors:
                with without_modes():
                    if base.dtype.__get__(part) is torch.uint8:
                        return True
        return False

    def always(arguments: Sequence[Any]) -> bool:
        """Return True: torch calls it unfinished, or would have it written otherwise."""
        return True

    return {
        **dict.fromkeys(("__bool__", "__int__", "__float__", "__complex__"), requires_grad),
        **dict.fromkeys(("to", "type", "copy_"), is_complex),
        **dict.fromkeys(("__getitem__", "__setitem__"), has_old_index),
        **dict.fromkeys(("to_sparse_csr", "to_sparse_csc", "new_tensor"), always),
    }.get(name)
