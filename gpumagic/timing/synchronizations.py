"""Calls in which the host waits for the GPU, and how long, found by wrapping torch's methods.

Only for the duration of a cell, and not while torch's compiler is imported or compiles. Functions
of torch's modules are never wrapped: the cell's variables may refer to them, and torch's own tables
do. Waits in them are found by the times of a line (`waits_by_time`).

torch's own warnings of synchronisations (its sync debug mode) are not used: they go through the
filters of Python's warnings, where the cell's code finds them or makes exceptions of them, and
from code without Python they go to the standard error stream.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import CodeType, ModuleType
from typing import Any

from gpumagic.cells import caller_line, tracebacks
from gpumagic.cuda import torch_cuda
from gpumagic.timing import torch_warnings, wrapped_functions
from gpumagic.timing.compiler_hooks import CompilerHooks
from gpumagic.timing.waiting_calls import (
    ASSIGNMENT,
    INDEX,
    MASK,
    METHODS,
    PAGEABLE,
    STORAGE,
    TO_HOST,
)

#: Copies from pageable memory of up to so many bytes may not wait (the CUDA programming guide's
#: "Concurrent Execution between Host and Device": copies to the device of 64 KB or less; "API
#: synchronization behavior" leaves it open), and have not if they took no longer, in seconds.
_SMALL, _SHORT = 64 << 10, 50e-6
#: What the rules return for such a copy.
_SMALL_COPY = f"small {PAGEABLE}"

#: Returns what a call waits for, by its arguments and its result; None if it does not wait.
_Rule = Callable[[Sequence[Any], dict[str, Any], Any], "str | None"]


class SynchronizationWatch:
    """Records the calls that wait, in the calling thread and in the backward passes it runs.

    ``others``: modules of which code also runs in the cell's calls.
    """

    def __init__(self, others: Sequence[ModuleType] = ()) -> None:
        #: The call, and the seconds that it took.
        self.log: list[tuple[str, float]] = []
        self._wrapped = wrapped_functions.WrappedFunctions()
        self._inside = threading.local()
        self._thread = 0
        self._codes: set[CodeType] = set()
        modules = [sys.modules[__name__], torch_warnings, wrapped_functions]
        modules += [caller_line, tracebacks, *others]
        self._compiler = CompilerHooks(self._wrapped.restore, self._wrap_all, modules)
        self._is_watching = False

    def start(self) -> None:
        """Wrap torch's methods, where torch is there and knows CUDA."""
        if not torch_cuda.built_with_cuda():
            return
        torch: Any = torch_cuda.loaded()
        self._thread = threading.get_ident()
        self._graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._is_watching = True
        self._compiler.start()

    def update(self) -> None:
        """Wrap again after torch's compiler was imported."""
        if self._is_watching and not self._compiler.is_attached():
            self._compiler.attach()

    def stop(self) -> None:
        """Restore torch's methods."""
        self._is_watching = False
        self._compiler.stop()

    def hide(self, error: BaseException | None) -> None:
        """Remove the wrappers' frames from the traceback of the cell's exception."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_next is not None:
                if traceback.tb_next.tb_frame.f_code in self._codes:
                    traceback.tb_next = traceback.tb_next.tb_next
                else:
                    traceback = traceback.tb_next
            error = error.__cause__ or error.__context__

    def _wrap_all(self) -> None:
        if not self._wrapped.are_any:
            for owner, name, rule in _Rules(torch_cuda.loaded()).methods():
                self._wrap(owner, name, rule)

    def _wrap(self, owner: Any, name: str, rule: _Rule) -> None:
        if not hasattr(owner, name):  # this torch has none
            return
        function = wrapped_functions.current(owner, name)
        to_host = rule if isinstance(rule, _CopiesFirst) else None
        inside, log, clock, wrapped = self._inside, self.log, perf_counter, self._wrapped
        torch: Any = torch_cuda.loaded()
        without_modes, warning_mode = torch._C.DisableTorchFunction, _warning_mode(torch)
        is_warning = torch_warnings.may_warn(torch, name) or (lambda _: False)

        def record(arguments: Any, named: Any, result: Any, passed: float) -> None:
            with without_modes():  # the cell's modes must not see what the rule looks at
                found = rule(arguments, named, result)
            if found == _SMALL_COPY:
                found = PAGEABLE if passed > _SHORT else None
            if found is not None:
                log.append((found, passed))

        def call(*arguments: Any, **named: Any) -> Any:
            if not wrapped.are_any or not self._is_watched() or getattr(inside, "call", False):
                return function(*arguments, **named)
            inside.call = True
            warns = warning_mode() or is_warning(arguments)
            begun = clock()
            try:
                waited = None
                if warns:
                    caller = sys._getframe(1)
                    result = caller_line.call_in_line_of(caller, function, arguments, named)
                elif to_host is not None and (copied := to_host.copy(arguments, named)) is not None:
                    waited = clock() - begun
                    result = function(copied)
                else:
                    result = function(*arguments, **named)
                passed = clock() - begun if waited is None else waited
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    record(arguments, named, None, clock() - begun)
                tracebacks.cut_first_frame(error)
                raise
            finally:
                inside.call = False
            record(arguments, named, result, passed)
            return result

        self._codes.add(call.__code__)
        wrapped.wrap(owner, name, call)

    def _is_watched(self) -> bool:
        """Return whether the cell waits for this thread: its own, or one of a backward pass."""
        return threading.get_ident() == self._thread or self._graph_task() >= 0


class _CopiesFirst:
    """The rule of ``tolist``, which copies the tensor to the host and then builds a list there.

    The host waits for the copy alone: it is made first, and the list is built from it.
    """

    def __init__(self, torch: Any, rule: _Rule, is_cuda: Callable[[Any], bool]) -> None:
        self._torch = torch
        self._rule = rule
        self._is_cuda = is_cuda

    def __call__(self, arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
        """Return what the call waits for."""
        return self._rule(arguments, named, result)

    def copy(self, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return the copy on the host; None where there is none to make."""
        torch = self._torch
        # The cell's modes must see the calls that they see without us.
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            return None
        if len(arguments) != 1 or named or not self._is_cuda(arguments[0]):
            return None
        if arguments[0].layout is not torch.strided:
            return None
        # No Python code of torch's: its compiler compiles that in compiled code.
        with torch._C.DisableTorchFunction():
            return torch._C.TensorBase.cpu(torch._C.TensorBase.detach(arguments[0]))


class _WaitsFirst(_CopiesFirst):
    """The rule of ``__repr__``, which reads the tensor's values, and builds a text of them.

    The host waits for the stream alone: that comes first, and the text after it.
    """

    def __call__(self, arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
        """Return what the call waits for: nothing without values, or with a text for them."""
        found = None if named else self._rule(arguments, named, result)
        return found if found is not None and arguments[0].numel() else None

    def copy(self, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Wait, and return the tensor; None where the text has no values."""
        torch_c = self._torch._C
        if len(arguments) != 1 or named:
            return None
        with torch_c.DisableTorchFunction():
            if not self._is_cuda(arguments[0]) or not arguments[0].numel():
                return None
            if torch_c._cuda_isCurrentStreamCapturing():  # to wait would end the capture
                return None
            ordinal = torch_c.TensorBase.get_device(arguments[0])
        number, ordinal, kind = torch_c._cuda_getCurrentStream(ordinal)
        stream = torch_c._CudaStreamBase(stream_id=number, device_index=ordinal, device_type=kind)
        try:
            torch_c._CudaStreamBase.synchronize(stream)
        except RuntimeError:
            return None  # the device has failed: torch's own function raises that
        return arguments[0]


class _Rules:
    """Which calls wait. Tensors of subclasses are left out: their own code must not run."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensors = (torch.Tensor, torch.nn.Parameter)
        self._is_cuda: Callable[[Any], bool] = torch._C.TensorBase.is_cuda.__get__
        self._mask_types = (torch.bool, torch.uint8)

    def methods(self) -> Iterator[tuple[Any, str, _Rule]]:
        """Yield the class (or module), the method's name and the rule."""
        torch = self._torch
        for name, call in METHODS.items():
            rule = self._of_cuda(call)
            if name == "tolist":
                rule = _CopiesFirst(torch, rule, self._on_cuda)
            elif name == "__repr__":
                rule = _WaitsFirst(torch, rule, self._on_cuda)
            yield torch.Tensor, name, rule
        yield torch.Tensor, "__getitem__", self._mask_read
        yield torch.Tensor, "__setitem__", self._mask_written
        for name in ("to", "cuda", "type"):
            yield torch.Tensor, name, self._moved(name)
        yield torch.Tensor, "new_tensor", self._made("blocking copy by .new_tensor()", 1)
        yield torch.Tensor, "repeat_interleave", self._repeated(".repeat_interleave()")
        yield torch.Tensor, "copy_", self._copied
        yield torch.UntypedStorage, "cpu", self._storage
        # What `torch.cuda.synchronize` calls: nothing of the cell's refers to it.
        yield torch._C, "_cuda_synchronize", _always("torch.cuda.synchronize()")
        yield torch._C, "_accelerator_synchronizeDevice", _always("torch.accelerator.synchronize()")
        yield torch.cuda.Stream, "synchronize", _always("Stream.synchronize()")
        yield torch.cuda.Event, "synchronize", _always("Event.synchronize()")

    def _on_cuda(self, value: Any) -> bool:
        """Return whether a value is a tensor on a GPU; False for subclasses, whose code may run."""
        return type(value) in self._tensors and self._is_cuda(value)

    def _on_cpu(self, value: Any) -> bool:
        return type(value) in self._tensors and not self._is_cuda(value)

    def _storage(self, arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
        is_plain = type(arguments[0]) is self._torch.UntypedStorage
        return STORAGE if is_plain and arguments[0].device.type == "cuda" else None

    def _of_cuda(self, call: str) -> _Rule:
        def rule(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
            return call if any(map(self._on_cuda, arguments[:2])) else None

        return rule

    def _has_mask(self, index: Any) -> bool:
        return any(self._on_cuda(part) and part.dtype in self._mask_types for part in _parts(index))

    def _has_index_on_cpu(self, index: Any) -> bool:
        """Return whether an index is copied to the GPU; one number on the CPU is read there."""
        return any((self._on_cpu(part) and part.dim()) or _is_list(part) for part in _parts(index))

    def _has_number_on_gpu(self, index: Any) -> bool:
        return any(self._on_cuda(part) and not part.dim() for part in _with_bounds(index))

    def _mask_read(
        self, arguments: Sequence[Any], named: dict[str, Any], result: Any
    ) -> str | None:
        tensor, index = arguments
        if isinstance(index, int) or not self._on_cuda(tensor):
            return None
        if self._has_mask(index):
            return MASK
        if self._has_index_on_cpu(index):
            return INDEX
        return METHODS["__index__"] if self._has_number_on_gpu(index) else None

    def _mask_written(
        self, arguments: Sequence[Any], named: dict[str, Any], result: Any
    ) -> str | None:
        tensor, index, value = arguments
        if self._on_cpu(tensor):
            return ASSIGNMENT if self._on_cuda(value) else None
        if not self._on_cuda(tensor):
            return None
        if self._has_index_on_cpu(index):
            return INDEX
        if self._on_cpu(value) and (value.dim() or not any(map(self._on_cuda, _parts(index)))):
            return ASSIGNMENT
        # One value is filled in without counting the mask.
        if self._on_cuda(value) and value.numel() != 1 and self._has_mask(index):
            return MASK
        number = not self._has_mask(index) and self._has_number_on_gpu(index)
        return METHODS["__index__"] if number else None

    def _moved(self, name: str) -> _Rule:
        def rule(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
            tensor = arguments[0]
            to_gpu = self._on_cpu(tensor) and self._on_cuda(result)
            if not to_gpu and not (self._on_cuda(tensor) and self._on_cpu(result)):
                return None
            # The first flag of each form of the call; the result on the CPU is then pinned.
            flags = [argument for argument in arguments[1:] if isinstance(argument, bool)]
            if not named.get("non_blocking", flags[0] if flags else False):
                return f"blocking copy by .{name}()" if to_gpu else TO_HOST[name]
            return _pageable_copy(tensor) if to_gpu else None

        return rule

    def _copied(self, arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
        target = arguments[0]
        source: Any = arguments[1] if len(arguments) > 1 else named.get("src")
        to_gpu = self._on_cuda(target) and self._on_cpu(source)
        if not to_gpu and not (self._on_cpu(target) and self._on_cuda(source)):
            return None
        if not named.get("non_blocking", arguments[2] if len(arguments) > 2 else False):
            return "blocking copy by .copy_()"
        if to_gpu:
            return _pageable_copy(source)
        return None if target.is_pinned() else PAGEABLE

    def _made(self, call: str, place: int) -> _Rule:
        """Return the rule of a function that makes a tensor of the argument at a place."""

        def rule(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
            data = arguments[place] if len(arguments) > place else named.get("data")
            return call if self._on_cuda(result) and not self._on_cuda(data) else None

        return rule

    def _repeated(self, call: str) -> _Rule:
        """Return the rule of ``repeat_interleave``: its result's size is read, unless given."""

        def rule(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
            last = arguments[min(1, len(arguments) - 1)] if arguments else None
            is_on_gpu = self._on_cuda(named.get("repeats", last))
            return call if is_on_gpu and named.get("output_size") is None else None

        return rule


def _warning_mode(torch: Any) -> Callable[[], int]:
    """Return what returns torch's debug mode of synchronisations: 0 if it does not warn of them."""
    mode: Callable[[], int] | None = getattr(torch._C, "_cuda_get_sync_debug_mode", None)
    return mode or (lambda: 0)


def _pageable_copy(source: Any) -> str | None:
    """Return what a copy to the GPU waits for with ``non_blocking``; None of pinned memory."""
    if source.is_pinned():
        return None
    return PAGEABLE if source.numel() * source.element_size() > _SMALL else _SMALL_COPY


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _with_bounds(index: Any) -> Iterator[Any]:
    """Yield the parts of an index, of slices their bounds."""
    for part in _parts(index):
        if isinstance(part, slice):
            yield from (part.start, part.stop, part.step)
        else:
            yield part


def _is_list(part: Any) -> bool:
    """Return whether a part of an index is a list of numbers, of which torch makes a tensor."""
    if type(part) is list:
        return bool(part) and type(part[0]) in (int, bool, list)
    numpy = sys.modules.get("numpy")
    return type(part) is range or (numpy is not None and type(part) is numpy.ndarray)


def _always(call: str) -> _Rule:
    def rule(arguments: Sequence[Any], named: dict[str, Any], result: Any) -> str | None:
        return call

    return rule
