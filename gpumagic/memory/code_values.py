"""What can be done with an object and certainly uses no GPU memory, by the object's type alone.

Only types whose code is known count, and exactly they: a subclass of the user's may do anything.
Nothing of the objects is run.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import sys
import types
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.system import introspection

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, range, type(...))
#: Attributes and methods of a tensor that are its metadata: a parked one has them.
_TENSOR_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "layout", "nbytes", "itemsize"}
_TENSOR_ATTRIBUTES |= {"is_cuda", "is_cpu", "is_leaf", "is_sparse", "requires_grad"}
_TENSOR_METHODS = {"size", "dim", "numel", "nelement", "ndimension", "stride", "element_size"}
_TENSOR_METHODS |= {"storage_offset", "is_contiguous", "is_floating_point", "is_complex"}
_FRAME_ATTRIBUTES = {"shape", "size", "ndim", "empty"}
_SIZED = (list, tuple, dict, set, frozenset, str, bytes, range)
#: What is called on an object to describe it: by `print`, a display, or IPython's ``?``.
_DESCRIBING = (
    *("__repr__", "__str__", "__format__", "__len__", "__class__", "__getattribute__"),
    *("__getattr__", "extra_repr", "_get_name", "getdoc", "_ipython_display_"),
    *("_repr_pretty_", "_repr_html_", "_repr_mimebundle_"),
)
#: The packages whose ``__init_subclass__`` does nothing with other objects.
_BASES = {"builtins", "typing", "abc", "collections", "torch"}


def _torch() -> Any:
    return cast(Any, torch_cuda.loaded())


def is_tensor(value: Any) -> bool:
    """Return whether it is a tensor of torch's own type."""
    torch = _torch()
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def is_constant(value: Any) -> bool:
    """Return whether it is a value that refers to no other: a number, a text, a dtype, a device."""
    kind = type(value)
    if any(kind is plain for plain in _CONSTANTS):
        return True
    torch = _torch()
    if torch is not None and any(
        kind is plain for plain in (torch.dtype, torch.device, torch.layout, torch.Size)
    ):
        return True
    numpy = sys.modules.get("numpy")
    scalar = introspection.module_attributes(numpy).get("generic")
    if scalar is None or not introspection.derives(kind, scalar):
        return False
    return introspection.module_of(kind) == "numpy" and introspection.name_of(kind) not in (
        "object_",
        "void",
    )


def is_plain_host_tensor(value: Any) -> bool:
    """Return whether it is a tensor in host memory that leads to no other object."""
    if not is_tensor(value) or introspection.attributes(value, _torch().Tensor):
        return False
    base = tensor_base()
    with plain_functions():
        if base.device.__get__(value).type != "cpu":
            return False
        hooks = (base._backward_hooks, getattr(base, "_post_accumulate_grad_hooks", None))
        others = [each.__get__(value) for each in (base.grad_fn, *hooks) if each is not None]
        gradient = base.grad.__get__(value) if base.is_leaf.__get__(value) else None
    return all(each is None for each in others) and (
        gradient is None or is_plain_host_tensor(gradient)
    )


def has_metadata(value: Any, name: str, *, called: bool = False) -> bool:
    """Return whether an attribute, or a method, of an object is its metadata."""
    if is_tensor(value):
        return name in (_TENSOR_METHODS if called else _TENSOR_ATTRIBUTES)
    return not called and _is_frame(value) and name in _FRAME_ATTRIBUTES


def has_known_length(value: Any) -> bool:
    """Return whether `len` of an object reads nothing but the object itself."""
    return is_tensor(value) or _is_frame(value) or any(type(value) is kind for kind in _SIZED)


def _is_frame(value: Any) -> bool:
    """Return whether it is a table or a column of pandas, or an array of NumPy."""
    kind = type(value)
    package = introspection.module_of(kind).partition(".")[0]
    named = package, introspection.name_of(kind)
    return package in sys.modules and named in (
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
        ("numpy", "ndarray"),
    )


def has_known_class(value: Any) -> bool:
    """Return whether `type` and `isinstance` read nothing but an object's type."""
    return introspection.find(type(value), "__class__") is object.__dict__["__class__"]


def is_known_class(value: Any) -> bool:
    """Return whether it is a class whose own name and instance check are Python's or torch's."""
    torch = _torch()
    return type(value) is type or (torch is not None and type(value) is type(torch.Tensor))


def is_known_base(value: Any) -> bool:
    """Return whether a class statement with this base runs no code of the user's for it."""
    if type(value) is not type and type(value) is not abc.ABCMeta:
        return False
    return all(
        introspection.module_of(each).partition(".")[0] in _BASES
        for each in introspection.mro(value)
        if "__init_subclass__" in introspection.class_attributes(each)
    )


def has_known_description(value: Any) -> bool:
    """Return whether a description of an object uses nothing of its content.

    Functions, modules, classes, and modules of neural networks that are described by torch.
    """
    if type(value) in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType):
        return True
    if is_known_class(value):
        return introspection.find(value, "getdoc") is None
    torch = _torch()
    if torch is None or not introspection.is_a(value, torch.nn.Module):
        return False
    pending, seen = [value], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if not (introspection.is_a(each, torch.nn.Module) and _is_described_by_torch(type(each))):
            return False
        inner = introspection.attributes(each, torch.nn.Module).get("_modules")
        pending += [child for _, child in introspection.entries(inner) if child is not None]
    return True


def _is_described_by_torch(kind: type) -> bool:
    for base in introspection.mro(kind):
        known = introspection.module_of(base).partition(".")[0] in ("torch", "builtins", "typing")
        if not known and not introspection.class_attributes(base).keys().isdisjoint(_DESCRIBING):
            return False
    return True


def is_typing(value: Any) -> bool:
    """Return whether it is one of typing's special forms, such as ``Any``."""
    return introspection.module_of(type(value)) == "typing"


def is_decorator_without_effect(value: Any) -> bool:
    """Return whether a decorator of Python's or torch's own calls nothing when it is applied."""
    own: list[Any] = [staticmethod, classmethod, property, abc.abstractmethod]
    own += [dataclasses.dataclass, contextlib.contextmanager]
    own += [functools.wraps, functools.cache, functools.lru_cache]
    torch = _torch()
    if torch is not None:
        own += [torch.no_grad, torch.inference_mode, torch.enable_grad]
    return any(value is each for each in own)
