"""Floating-point operations of code, by torch's own counter, and the share of the card's peak.

``torch.utils.flop_counter.FlopCounterMode`` counts by the shapes of matrix products, convolutions
and attention; it changes how operations are dispatched, so that it has a run of its own.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.timing.peaks import peak


@dataclass(frozen=True)
class Flops:
    """What the counter counted in one run."""

    #: Floating-point operations.
    count: int
    #: The one dtype of all that was counted (``"bfloat16"``); None for none, or several.
    dtype: str | None
    #: Kernels and operators that the counter cannot see into.
    unseen: tuple[str, ...] = ()


class FlopCounter:
    """A context manager that counts the operations of its body into ``found``."""

    def __init__(self) -> None:
        module = torch_cuda.flop_counter()
        options: dict[str, Any] = {"display": False}
        known = inspect.signature(module.FlopCounterMode.__init__).parameters
        if "skip_unsupported" in known:  # else a Triton kernel is counted, but not run (torch 2.15)
            options["skip_unsupported"] = True
        self._counter = module.FlopCounterMode(**options)
        self._dtypes: set[str] = set()
        self._modes = ExitStack()
        self._registry = {*module.flop_registry}
        self.found: Flops | None = None

    def __enter__(self) -> FlopCounter:
        self._modes.enter_context(self._counter)
        self._modes.enter_context(_dtypes_of(self._registry, self._dtypes))
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)
        unseen: Any = getattr(self._counter, "get_unsupported_ops", dict)()
        self.found = Flops(
            int(self._counter.get_total_flops()),
            next(iter(self._dtypes)) if len(self._dtypes) == 1 else None,
            tuple(sorted(map(str, unseen)))[:20],
        )


def _dtypes_of(registry: set[Any], found: set[str]) -> Any:
    """Return a dispatch mode that notes the dtypes of the operators in ``registry``."""
    base: Any = torch_cuda.dispatch_mode()
    torch: Any = torch_cuda.require()

    class Dtypes(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(function, "_overloadpacket", None) in registry:
                first = next((each for each in args if isinstance(each, torch.Tensor)), None)
                if first is not None:
                    found.add(str(first.dtype).removeprefix("torch."))
            return function(*args, **(kwargs or {}))

    return Dtypes()


def share_of_peak(flops: Flops, seconds: float, device: str) -> float | None:
    """Return the share of the card's dense peak; None where the peak or the dtype is not known."""
    if flops.dtype is None or not seconds > 0:
        return None
    dtype = flops.dtype
    torch: Any = torch_cuda.require()
    if dtype == "float32" and torch.backends.cuda.matmul.allow_tf32:
        dtype = "tf32"
    best = peak(device, dtype)
    return None if best is None else flops.count / seconds / best
