"""Floating-point operations of code, by torch's own counter, and the share of the card's peak.

``torch.utils.flop_counter.FlopCounterMode`` counts by the shapes of matrix products, convolutions
and attention; it changes how operations are dispatched, so that it has a run of its own.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.timing.peaks import peak


@dataclass(frozen=True)
class Flops:
    """What the counter counted in one run."""

    #: Floating-point operations.
    count: int
    #: The one dtype of all that was counted (``"bfloat16"``; ``"tf32"`` where torch computes with
    #: float32 by that); None for none, or several.
    dtype: str | None
    #: Kernels and operators that the counter cannot see into.
    unseen: tuple[str, ...] = ()
    #: Whether some of the operations ran on the CPU.
    on_cpu: bool = False
    #: Threads that began meanwhile; torch counts the operations of the calling thread.
    threads: int = 0


class FlopCounter:
    """A context manager that counts the operations of its body into ``found``."""

    def __init__(self) -> None:
        module = torch_cuda.flop_counter()
        options: dict[str, Any] = {"display": False}
        known = inspect.signature(module.FlopCounterMode.__init__).parameters
        if "skip_unsupported" in known:  # else a Triton kernel is counted, but not run (torch 2.15)
            options["skip_unsupported"] = True
        self._counter = module.FlopCounterMode(**options)
        self._operators = _Operators({*module.flop_registry})
        self._threads: set[int] = set()
        self._modes = ExitStack()
        self.found: Flops | None = None

    def __enter__(self) -> FlopCounter:
        self._modes.enter_context(self._counter)
        self._modes.enter_context(_recording(self._operators))
        self._modes.enter_context(_new_threads(self._threads))
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)
        unseen: Any = getattr(self._counter, "get_unsupported_ops", dict)()
        found = self._operators
        self.found = Flops(
            int(self._counter.get_total_flops()),
            next(iter(found.dtypes)) if len(found.dtypes) == 1 else None,
            tuple(sorted({*map(str, unseen), *found.unknown}))[:20],
            found.on_cpu,
            len(self._threads),
        )


class _Operators:
    """What is recorded of the operators that ran."""

    def __init__(self, registry: set[Any]) -> None:
        #: The operators that the counter counts.
        self.registry = registry
        self.dtypes: set[str] = set()
        self.on_cpu = False
        #: Matrix products, convolutions and attention that are not counted.
        self.unknown: set[str] = set()

    def add(self, function: Any, tensors: list[Any]) -> None:
        """Record a call of an operator."""
        packet = getattr(function, "_overloadpacket", None)
        if packet in self.registry:
            if tensors:
                self.dtypes.add(_computed_in(str(packet), tensors[0]))
            self.on_cpu = self.on_cpu or any(each.device.type == "cpu" for each in tensors)
        elif _PRODUCT.search(str(packet).rpartition(".")[2]) and not _is_composite(function):
            self.unknown.add(str(packet))


#: Names of operators that multiply matrices, convolve or attend: ``_int_mm``, ``addmv``.
_PRODUCT = re.compile(r"(mm|mv|matmul|gemm|linear|conv\d?d?|convolution|attention|attn|rnn)(_|$)")


def _computed_in(operator: str, tensor: Any) -> str:
    """Return the dtype by which an operator computes: of float32 on a GPU, torch's setting."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != "float32" or not tensor.is_cuda:
        return dtype
    backends = cast(Any, torch_cuda.require()).backends
    if "conv" in operator:
        setting, legacy = getattr(backends.cudnn, "conv", None), backends.cudnn
    else:
        setting = legacy = backends.cuda.matmul
    # Since torch 2.9 the older setting raises where the user has made the newer one.
    precision = getattr(setting, "fp32_precision", None)
    if precision is None:
        return "tf32" if legacy.allow_tf32 else dtype
    return dtype if precision in ("none", "ieee") else str(precision)


def _is_composite(function: Any) -> bool:
    """Return whether an operator is made of others, which are counted."""
    has_kernel = getattr(function, "has_kernel_for_dispatch_key", None)
    torch: Any = torch_cuda.require()
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return has_kernel is None or bool(has_kernel(key))


@contextmanager
def _new_threads(found: set[int]) -> Iterator[None]:
    """Record the threads of Python that begin in this context."""

    def begin(*_: Any) -> None:
        found.add(id(threading.current_thread()))
        sys.setprofile(previous)

    previous = threading.getprofile()
    threading.setprofile(begin)
    try:
        yield
    finally:
        if threading.getprofile() is begin:
            threading.setprofile(previous)


def _recording(operators: _Operators) -> Any:
    """Return a dispatch mode that adds the operators that run to ``operators``."""
    base: Any = torch_cuda.dispatch_mode()
    torch: Any = torch_cuda.require()

    class Recording(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operators.add(function, [each for each in args if isinstance(each, torch.Tensor)])
            return function(*args, **(kwargs or {}))

    return Recording()


def share_of_peak(flops: Flops, seconds: float, device: str) -> float | None:
    """Return the share of the card's dense peak; None where the peak or the dtype is not known."""
    if flops.dtype is None or flops.on_cpu or flops.threads or flops.unseen or not seconds > 0:
        return None
    best = peak(device, flops.dtype)
    if best is None and flops.dtype == "tf32":  # the card has none, and computes in float32
        best = peak(device, "float32")
    return None if best is None else flops.count / seconds / best
