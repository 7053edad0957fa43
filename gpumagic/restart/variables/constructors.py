"""The functions that pickles of kept variables call when they are loaded, referred to by name."""

from __future__ import annotations

import _thread
import contextvars
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from gpumagic.cuda import torch_cuda

#: The namespace that functions of the notebook, as they are loaded, have as their globals.
namespace: dict[str, Any] = {}
#: Returns where a CUDA device of the old process is in this one: an ordinal (None for the current
#: device) → ``cuda``, ``cuda:1`` or ``cpu``.
device_now: Callable[[int | None], str] = lambda ordinal: (  # noqa: E731 - replaced by `reader`
    "cuda" if ordinal is None else f"cuda:{ordinal}"
)


def same(value: Any) -> Any:
    """Return the value itself, so that a state can be set on it."""
    return value


def code(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str
) -> types.CodeType:
    """Make code that has the name of its file, by which its source is found."""
    return make(*arguments).replace(co_filename=file)


def function(code: types.CodeType, closure: Any) -> types.FunctionType:
    """Make a function of the notebook."""
    return types.FunctionType(code, namespace, None, None, closure or None)


def set_function(made: types.FunctionType, state: tuple[Any, Any, Any]) -> None:
    """Set a function's attributes, and fill the cells of its closure."""
    from cloudpickle import cloudpickle

    attributes, slots, contents = state
    for cell, content in zip(made.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]
    cloudpickle._function_setstate(made, (attributes, slots))


def cached(wrapped: Any, maxsize: int | None, typed: bool) -> Any:
    """Make a function of `functools.lru_cache`, with an empty cache."""
    return functools.lru_cache(maxsize, typed)(wrapped)


def skeleton(
    metaclass: Any, name: str, bases: tuple[type, ...], kwargs: Any, tracker: Any, extra: Any
) -> Any:
    """Make a class of the notebook without its attributes, as cloudpickle does.

    ``__init_subclass__`` of a base class of the notebook is not called: it was, and what it stored
    is kept. (The keywords of the class statement are not known any more.)
    """
    from cloudpickle import cloudpickle

    lines = [base.__mro__ for base in types.resolve_bases(bases) if isinstance(base, type)]
    definers = (each for line in lines for each in line if "__init_subclass__" in vars(each))
    definer = next(definers, object)
    make = functools.partial(
        cloudpickle._make_skeleton_class, metaclass, name, bases, kwargs, tracker, extra
    )
    if definer.__module__ != "__main__":
        return make()
    own = vars(definer)["__init_subclass__"]
    type.__setattr__(definer, "__init_subclass__", classmethod(lambda cls, **_: None))
    try:
        return make()
    finally:
        type.__setattr__(definer, "__init_subclass__", own)


def exception(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an exception without calling ``__init__``, whose arguments are not known."""
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    return made


def set_exception(made: BaseException, state: dict[str, Any]) -> None:
    """Set an exception's attributes, cause and context."""
    made.__dict__.update(state["attributes"])
    made.__cause__, made.__context__ = state["cause"], state["context"]
    made.__suppress_context__ = state["suppressed"]


def set_attributes(made: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Set the attributes and slots of an object, past its ``__getattr__`` and ``__setattr__``."""
    attributes, slots = state
    if attributes:
        made.__dict__.update(attributes)
    for name, value in slots.items():
        object.__setattr__(made, name, value)


def thread_handle(ident: int) -> Any:
    """Make the handle of a thread that has not started or, with an ``ident``, has ended."""
    python: Any = _thread
    if not ident:
        return python._ThreadHandle()
    made = python._make_thread_handle(ident)
    made._set_done()
    return made


def context_variable(name: str, default: tuple[Any, ...]) -> contextvars.ContextVar[Any]:
    """Make a context variable, with its default if it has one."""
    if default:
        return contextvars.ContextVar(name, default=default[0])
    return contextvars.ContextVar(name)


def view(of: memoryview | bytes | bytearray, shown: str, shape: Any) -> memoryview:
    """Make a memoryview of an object's whole memory."""
    flat: Any = memoryview(of).cast("B")
    made: memoryview = flat.cast(shown, shape) if shape else flat
    return made


def dict_view(kind: str, of: dict[Any, Any]) -> Any:
    """Make a live view of a dictionary: its ``keys``, ``values`` or ``items``."""
    return getattr(type(of), kind)(of)


# --- NumPy ---------------------------------------------------------------------------------------


def mapped(file: str, mode: str, offset: int, size: int) -> Any:
    """Map a file into memory again, as bytes."""
    import numpy as np

    how: Any = mode
    return np.memmap(file, np.uint8, how, offset, (size,))


def map_view(of: Any, subclass: bool, dtype: Any, offset: int, shape: Any, strides: Any) -> Any:
    """Make the array that views a part of a mapped file."""
    import numpy as np

    first = of[offset : offset + dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(first, shape, strides, subok=subclass)


# --- torch ---------------------------------------------------------------------------------------


def set_tensor(tensor: Any, state: dict[str, Any]) -> None:
    """Set a tensor's attributes, hooks and gradient."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks", "grad"):
        if name in state:
            setattr(tensor, name, state[name])
    tensor.__dict__.update(state["attributes"])


def set_scheduler(made: Any, state: tuple[dict[str, Any], bool]) -> None:
    """Set a scheduler's attributes, and wrap its optimizer's ``step`` again, as torch does.

    Without the wrapper, which an optimizer's pickle does not have, the scheduler would warn.
    """
    attributes, called = state
    made.__dict__.update(attributes)
    optimizer = made.optimizer
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    own, stepped = weakref.ref(optimizer), optimizer.step.__func__

    @functools.wraps(stepped)
    def step(*arguments: Any, **named: Any) -> Any:
        optimizer: Any = own()
        optimizer._opt_called = True
        return stepped.__get__(optimizer, type(optimizer))(*arguments, **named)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step, optimizer._opt_called = step, called


def set_parametrized(made: Any, attributes: dict[str, Any]) -> None:
    """Set a module's attributes, and the class that implements its parametrizations."""
    parametrize: Any = torch_cuda.require().nn.utils.parametrize
    made.__dict__.update(attributes)
    parametrize._inject_new_class(made)
    for name in made.parametrizations:
        parametrize._inject_property(made, name)


def device(ordinal: int | None) -> Any:
    """Make the `torch.device` of a GPU in this process."""
    return torch_cuda.require().device(device_now(ordinal))


def generator(where: Any, kind: str, state: bytes) -> Any:
    """Make a random generator that continues where the old one stopped."""
    torch = torch_cuda.require()
    if where.type != kind:
        raise RuntimeError("a random generator of a GPU that is hidden")
    made = torch.Generator(where)
    made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return made


def typed_storage(untyped: Any, dtype: Any) -> Any:
    """Make a torch storage with a dtype."""
    return torch_cuda.require().storage.TypedStorage(
        wrap_storage=untyped, dtype=dtype, _internal=True
    )
