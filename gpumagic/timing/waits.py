"""The devices whose work the timed code waited for: a sign of work that has ended.

From outside, a device that has finished looks like one that has done nothing. So while code is
timed, those functions of torch are wrapped by which code waits for a device without allocating
there, which is a sign by itself. Not while torch's compiler is imported or compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from gpumagic.cells import caller_line, tracebacks
from gpumagic.cuda import graph_capture, torch_cuda
from gpumagic.timing import context_event, torch_warnings, wrapped_functions
from gpumagic.timing.compiler_hooks import CompilerHooks
from gpumagic.timing.context_event import ContextEvent
from gpumagic.timing.wrapped_functions import WrappedFunctions

#: Returns the device that a call waits for, by its arguments, before it.
_Before = Callable[[tuple[Any, ...]], "int | None"]
#: Returns the device that a call has waited for, by its arguments and its result.
_After = Callable[[tuple[Any, ...], Any], "int | None"]

#: Methods that copy a tensor, from the GPU or to it, and wait for that.
_COPIES = (
    *("item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__"),
    *("is_nonzero", "cpu", "copy_"),
)
#: Methods that do so where their result is on the CPU.
_MOVES = ("to", "type")
#: Waits for a device that are looked at for work on streams that are not torch's.
_MOST_FOREIGN = 4

_lock = Lock()
#: The open scopes; what they wrapped is restored with the last one.
_open: list[WaitSigns] = []
_wrapped = WrappedFunctions()


class WaitSigns:
    """Collects the devices from `start` to `stop`; none where torch has not initialised CUDA."""

    def __init__(self) -> None:
        #: The devices that were at work when the code waited for them.
        self.devices: set[int] = set()
        #: Events behind all work of a device, where only other streams than torch's may have any.
        self._behind_all: list[tuple[int, ContextEvent]] = []
        #: The events before the code, by device: those keep a stream busy for a moment, too.
        self._starts: Mapping[int, Any] = {}

    def start(self, starts: Mapping[int, Any]) -> None:
        """Start collecting; ``starts`` are the events before the code, which are still to come."""
        self._starts = starts
        self.devices.clear()
        self._behind_all.clear()
        if torch_cuda.initialized():
            with _lock:
                if not _open:
                    _compiler.start()
                if self not in _open:
                    _open.append(self)

    def stop(self) -> None:
        """Stop collecting; also where it was not started."""
        with _lock:
            if self in _open:
                _open.remove(self)
                if not _open:
                    _compiler.stop()

    def has_worked(self, ordinal: int) -> bool:
        """Return whether the code has waited for work of a device, which is idle now."""
        if ordinal in self.devices:
            return True
        found = [event for i, event in self._behind_all if i == ordinal and i in self._starts]
        if not found or graph_capture.under_way((ordinal,)):  # asking events would end the capture
            return False
        return any(event.finishes_last(self._starts[ordinal], 0.0) for event in found)

    def wait_for_start(self, ordinal: int) -> None:
        """Wait for the event before the code."""
        start = self._starts.get(ordinal)
        while start is not None and not start.query():
            pass

    def wait_for_device(self, ordinal: int) -> None:
        """Collect a device that code is about to wait for, if it is at work."""
        if ordinal in self.devices:
            return
        if not all(
            map(torch_cuda.c_functions()._CudaStreamBase.query, torch_cuda.streams(ordinal))
        ):
            self.devices.add(ordinal)
        elif len(self._behind_all) < _MOST_FOREIGN:
            event = ContextEvent(ordinal).record()
            if event.known:
                self._behind_all.append((ordinal, event))


def _wrap_all() -> None:
    if _wrapped.are_any:
        return
    torch: Any = torch_cuda.loaded()
    _wrap(torch._C, "_cuda_synchronize", before=_current_at_work)
    if hasattr(torch._C, "_accelerator_synchronizeDevice"):
        _wrap(torch._C, "_accelerator_synchronizeDevice", before=_given_at_work)
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        _wrap(owner, "synchronize", before=_unfinished)
    if torch._C._cuda_get_sync_debug_mode():
        return  # torch's warnings would name our line in place of the cell's
    # The code of subclasses must not run here, nor that of function modes.
    tensors, is_cuda = (torch.Tensor, torch.nn.Parameter), torch._C.TensorBase.is_cuda.__get__
    without_modes = torch._C.DisableTorchFunction

    def copied(arguments: tuple[Any, ...], result: Any) -> int | None:
        with without_modes():
            for each in arguments[:2]:
                if type(each) in tensors and is_cuda(each):
                    return int(torch._C.TensorBase.get_device(each))
        return None

    def moved(arguments: tuple[Any, ...], result: Any) -> int | None:
        with without_modes():
            is_on_cpu = type(result) in tensors and not is_cuda(result)
        return copied(arguments[:1], result) if is_on_cpu else None

    for name in _COPIES:
        _wrap(torch.Tensor, name, after=copied)
    for name in _MOVES:
        _wrap(torch.Tensor, name, after=moved)


def _wrap(
    owner: Any, name: str, before: _Before | None = None, after: _After | None = None
) -> None:
    function = wrapped_functions.current(owner, name)

    is_warning = torch_warnings.may_warn(torch_cuda.loaded(), name) if after else None

    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None and _open:
            add(before(arguments))
        try:
            if is_warning is not None and is_warning(arguments):
                caller = sys._getframe(1)
                result = caller_line.call_in_line_of(caller, function, arguments, named)
            else:
                result = function(*arguments, **named)
        except BaseException as error:
            tracebacks.cut_first_frame(error)
            raise
        if after is not None and _open:
            add(after(arguments, result))
        return result

    _wrapped.wrap(owner, name, call)


def add(ordinal: int | None) -> None:
    """Add a device that was seen at work to all open scopes."""
    if ordinal is not None:
        for scope in tuple(_open):
            scope.devices.add(ordinal)


def _current_at_work(_: tuple[Any, ...]) -> None:
    _look_at(torch_cuda.current_device())


def _given_at_work(arguments: tuple[Any, ...]) -> None:
    if len(arguments) == 1 and type(arguments[0]) is int:
        _look_at(arguments[0])


def _look_at(ordinal: int | None) -> None:
    """Look at a device for which the host is about to wait."""
    try:
        if ordinal is not None and _may_ask(ordinal):
            for scope in tuple(_open):
                scope.wait_for_device(ordinal)
    except RuntimeError:
        pass  # the device has failed: the call itself raises that


def _unfinished(arguments: tuple[Any, ...]) -> int | None:
    """Return the device of a stream or event that is not reached."""
    waited_for = arguments[0]
    try:
        device = waited_for.device
        if device is None or not _may_ask(device.index) or waited_for.query():
            return None
        return int(device.index)
    except RuntimeError:
        return None  # the call itself raises that


def _may_ask(ordinal: int) -> bool:
    """Wait for the events before the code; return False while a graph is captured."""
    if graph_capture.query(ordinal)():
        return False
    for scope in tuple(_open):
        scope.wait_for_start(ordinal)
    return True


_compiler = CompilerHooks(
    _wrapped.restore,
    _wrap_all,
    [
        *(sys.modules[__name__], context_event, graph_capture, torch_cuda),
        *(caller_line, tracebacks, torch_warnings, wrapped_functions),
    ],
)
