"""Bring parked memory back at its first use by code that runs without a cell.

While memory is parked two modes of torch are active in the thread that has parked it: one handles
the operations that are dispatched, in autograd's threads too; the other the accesses to memory
without an operation, such as ``data_ptr()``, and printing, which disables the first. A mode cannot
be left from within its own handler: it is left before or after the next cell. For accesses that the
modes do not handle (another thread, a storage's own methods) each storage has a guard.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import storages, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.errors import DeviceError
from gpumagic.memory.parking import PARKING
from gpumagic.system import introspection

#: Methods and properties of tensors that use the memory and are not dispatched.
_METHODS = (
    *("data_ptr", "untyped_storage", "storage", "_typed_storage", "__repr__", "__format__"),
    *("numpy", "__array__", "__dlpack__", "share_memory_", "__reduce_ex__", "__deepcopy__"),
)
_PROPERTIES = ("__cuda_array_interface__",)


class StillParkedError(DeviceError):
    """An operation was not run, since what it uses could not come back; shown at its line."""

    def _render_traceback_(self) -> list[str]:
        return tracebacks.rendered(self)


class ParkingModes:
    """The two modes, entered and left together."""

    def __init__(self) -> None:
        self._entered: list[Any] = []
        self._thread: int | None = None

    @property
    def entered(self) -> bool:
        """Whether the modes are active in the thread that entered them."""
        return bool(self._entered)

    def enter(self) -> None:
        """Enter both in this thread, unless they are entered."""
        if self._entered:
            return
        self._thread = threading.get_ident()
        for make in (_dispatch_mode, _function_mode):
            mode = make()
            mode.__enter__()
            self._entered.append(mode)

    def leave(self) -> None:
        """Leave both if this is their thread and nothing was entered after them."""
        if not self._entered or threading.get_ident() != self._thread:
            return
        function, dispatch = storages.innermost_modes()
        if [dispatch, function] == self._entered:
            for mode in reversed(self._entered):
                mode.__exit__(None, None, None)
            self._entered.clear()


def _uses_parked(things: Iterable[Any]) -> bool:
    """Return whether parked storages are among the arguments of an operation."""
    torch: Any = torch_cuda.loaded()
    pending = [things]
    while pending:
        for each in pending.pop():
            kind = type(each)
            if introspection.derives(kind, list, tuple):
                pending.append(each)
            elif introspection.derives(kind, dict):
                pending.append(each.values())
            elif introspection.derives(kind, torch.storage.TypedStorage):
                pending.append([each._untyped_storage])
            elif introspection.derives(kind, torch.Tensor, torch.UntypedStorage):
                storage = storages.storage_of(each)
                # One that wraps others (sparse, nested) may have parked components.
                if storage is None or storage._cdata in PARKING.addresses:
                    return True
    return False


def _before_operation(arguments: Iterable[Any]) -> None:
    """Bring everything back if an operation uses something parked.

    Raises:
        StillParkedError: there is no memory for it.
    """
    __tracebackhide__ = True
    if not PARKING.active:
        return
    with plain_functions():
        used = _uses_parked(arguments)
    if not used:
        return
    try:
        PARKING.bring_back()
        return
    except DeviceError as error:
        told = error.args
    raise StillParkedError(*told)  # it refers to no other exception, which IPython would keep


def _dispatch_mode() -> Any:
    class ParkedOperations(torch_cuda.dispatch_mode()):  # type: ignore[misc]
        """Brings memory back before the first operation on a parked tensor."""

        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True
            _before_operation((args, kwargs or {}))
            try:
                return func(*args, **(kwargs or {}))
            except BaseException as error:
                tracebacks.cut_first_frame(error)
                raise

    return ParkedOperations()


def _function_mode() -> Any:
    torch: Any = torch_cuda.loaded()
    accessing = {getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)}
    accessing |= {getattr(torch.Tensor, name).__get__ for name in _PROPERTIES}

    warning = {torch.Tensor.storage}

    class ParkedMethods(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Brings memory back before a parked tensor is printed or its memory is accessed."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True
            if func in accessing:
                _before_operation((args, kwargs or {}))
            try:
                with _warnings_at_caller() if func in warning else nullcontext():
                    return func(*args, **(kwargs or {}))
            except BaseException as error:
                tracebacks.cut_first_frame(error)
                raise

    return ParkedMethods()


@contextmanager
def _warnings_at_caller() -> Iterator[None]:
    """Have torch's warnings name the line that calls torch, not the one that calls it here."""
    __tracebackhide__ = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    if not caught:
        return
    caller = next(frame for frame in tracebacks.stack(sys._getframe()) if not _is_between(frame))
    where = (caller.f_code.co_filename, caller.f_lineno, caller.f_globals.get("__name__"))
    registry = caller.f_globals.setdefault("__warningregistry__", {})
    for each in caught:
        warnings.warn_explicit(each.message, each.category, *where, registry)


def _is_between(frame: FrameType) -> bool:
    """Return whether a frame is of torch, of this module, or of the context manager here."""
    name = frame.f_globals.get("__name__")
    outermost = frame.f_back is None
    return not outermost and str(name).partition(".")[0] in ("torch", "gpumagic", "contextlib")


#: The modes of this process.
MODES = ParkingModes()
