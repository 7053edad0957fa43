"""Rules for tensors, optimizers and the generators of GPUs, with what makes them again."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.restart.variables.kinds.rules import Pickling, Reduced, Rule, reduces_as

if TYPE_CHECKING:
    from torch import device as _Device  # noqa: N812


def _tensor(tensor: Any, _: Pickling) -> Reduced:
    """Reduce a tensor with its gradient and hooks, and without its graph, which has no pickle.

    It would come back as a leaf that requires grad: its ``backward()`` would do nothing. Its
    attributes are set afterwards, since they may refer to it; torch has them among the arguments.
    """
    kind, torch = type(tensor), torch_cuda.module()
    attributes, state = dict[str, Any](), torch._utils._get_obj_state(tensor)
    ways = torch.Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__
    by_itself = kind.__reduce_ex__ not in ways or kind.__setstate__ is not torch.Tensor.__setstate__
    if by_itself:
        (make, arguments, *more), state = tensor.__reduce_ex__(5), None
        if more:
            return make, arguments, *more
        if not tensor.is_leaf:
            attributes["requires_grad"] = False
    else:
        make, arguments = tensor.detach()._reduce_ex_internal(5)
        if tensor.is_leaf and tensor.requires_grad:
            attributes["requires_grad"] = True
    untyped = torch.UntypedStorage  # as in `torch.save`, each is a typed one
    arguments = tuple(
        _typed(each, torch.uint8) if type(each) is untyped else each for each in arguments
    )
    if issubclass(kind, torch.nn.Parameter) and not by_itself:
        make, arguments = _parameter, (make, arguments, kind)
    elif kind is not torch.Tensor and not by_itself:
        make, arguments = torch._tensor._rebuild_from_type_v2, (make, kind, arguments, {})
    if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
        attributes["grad"] = tensor.grad
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if tensor.is_leaf and getattr(tensor, hooks, None):
            attributes[hooks] = getattr(tensor, hooks)
    if not state and not attributes:
        return make, arguments
    return make, arguments, (state, attributes), None, None, _set_state


def _parameter(make: Callable[..., Any], arguments: tuple[Any, ...], kind: type) -> Any:
    """Make a parameter as torch does: `as_subclass` would make a view."""
    torch: Any = torch_cuda.require()
    return torch.Tensor._make_subclass(kind, make(*arguments))


def _set_state(tensor: Any, state: tuple[Any, dict[str, Any]]) -> None:
    torch: Any = torch_cuda.require()
    torch._utils._set_obj_state(tensor, state[0])
    for name, value in state[1].items():
        setattr(tensor, name, value)


def _typed_storage(storage: Any, _: Pickling) -> Reduced:
    return _typed, (storage._untyped_storage, storage.dtype)


def _typed(untyped: Any, dtype: Any) -> Any:
    torch: Any = torch_cuda.require()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _optimizer(optimizer: Any, _: Pickling) -> Reduced | None:
    """Reduce an optimizer with its hooks and attributes, which torch leaves out."""
    kind = type(optimizer)
    if not reduces_as(kind, torch_cuda.module().optim.Optimizer):
        return None
    return _optimizer_of, (kind,), dict(vars(optimizer))


def _optimizer_of(kind: type) -> Any:
    """Make an optimizer whose class has its hooks in place, before its own ``step`` is loaded."""
    torch: Any = torch_cuda.require()
    made = copyreg.__newobj__(kind)  # type: ignore[attr-defined]
    torch.optim.Optimizer.__setstate__(made, {"defaults": {}})
    return made


def _generator(generator: Any, _: Pickling) -> Reduced | None:
    if generator.device.type == "cpu":
        return None
    return _gpu_generator, *generator.__reduce__()[1:]


def _gpu_generator(device: _Device) -> Any:
    if device.type == "cpu":
        raise RuntimeError("a random generator of a GPU that is hidden")
    torch: Any = torch_cuda.require()
    return torch.Generator(device)


RULES: dict[str, Rule] = {
    "torch:Tensor": _tensor,
    "torch.storage:TypedStorage": _typed_storage,
    "torch.optim:Optimizer": _optimizer,
    "torch:Generator": _generator,
}
