"""Floating-point operations of code, by torch's own counter, and the share of the card's peak.

``torch.utils.flop_counter.FlopCounterMode`` counts by the shapes of matrix products, convolutions
and attention; it changes how operations are dispatched, so that it has a run of its own.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
    #: Replays of CUDA graphs, whose operations the counter does not see.
    replays: int = 0
    #: The dtypes of all that was counted.
    dtypes: tuple[str, ...] = field(default=(), compare=False)


class FlopCounter:
    """A context manager that counts the operations of its body into ``found``."""

    def __init__(self) -> None:
        module = torch_cuda.flop_counter()
        options: dict[str, Any] = {"display": False}
        known = inspect.signature(module.FlopCounterMode.__init__).parameters
        if "skip_unsupported" in known:  # else a Triton kernel is counted, but not run (torch 2.15)
            options["skip_unsupported"] = True
        self._counter = module.FlopCounterMode(**options)
        self._counter.mod_tracker = _NoModules()
        self._operators = _Operators({*module.flop_registry})
        self._threads: set[int] = set()
        self._replays: list[None] = []
        self._modes = ExitStack()
        self.found: Flops | None = None

    def __enter__(self) -> FlopCounter:
        self._modes.enter_context(self._counter)
        self._modes.enter_context(_recording(self._operators))
        self._modes.enter_context(_new_threads(self._threads))
        self._modes.enter_context(_graph_replays(self._replays))
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)
        unseen: Any = getattr(self._counter, "get_unsupported_ops", dict)()
        found = self._operators
        self.found = Flops(
            int(self._counter.get_total_flops()),
            next(iter(found.dtypes)) if len(found.dtypes) == 1 else None,
            _bounded(sorted({*map(str, unseen), *found.unknown})),
            found.on_cpu,
            len(self._threads),
            len(self._replays),
            tuple(sorted(found.dtypes)),
        )


class _NoModules:
    """Replaces the counter's module tracker: all is counted together.

    That one's global hooks on modules would make ``torch.compile(module)`` warn at the user's line.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Operators:
    """What is recorded of the operators that ran."""

    def __init__(self, registry: set[Any]) -> None:
        #: The operators that the counter counts.
        self.registry = registry
        self.dtypes: set[str] = set()
        self.on_cpu = False
        #: Operators that are not counted, and are not as cheap as element-wise ones.
        self.unknown: set[str] = set()

    def is_counted(self, function: Any) -> bool:
        """Return whether the counter knows an operator."""
        return getattr(function, "_overloadpacket", None) in self.registry

    def add(self, function: Any, tensors: list[Any]) -> None:
        """Record a call of an operator."""
        packet = getattr(function, "_overloadpacket", None)
        if packet in self.registry:
            if tensors:
                self.dtypes.add(_computed_in(str(packet), tensors[0]))
            self.on_cpu = self.on_cpu or any(each.device.type == "cpu" for each in tensors)
        elif packet is not None and _has_many_operations(function, tensors):
            self.unknown.add(str(packet))


#: Names in a list, at most.
_MOST_NAMES = 20
#: torch's own operators, and those that communicate.
_OWN = {"aten", "prim", "prims", "inductor", "c10d", "_c10d_functional", "_dtensor", "profiler"}
#: Names of operators that multiply matrices, convolve or attend: ``_int_mm``, ``addmv``.
_PRODUCT = re.compile(r"(mm|mv|matmul|gemm|linear|conv\d?d?|convolution|attention|attn|rnn)(_|$)")
#: torch's operators that make, move, choose or order elements, and those of a few operations for
#: each, beside the element-wise ones, views and reductions, which torch marks.
_FEW_OPERATIONS = re.compile(
    r"_*(unsafe_|foreach_|fused_|native_|cudnn_|miopen_|amp_|safe_|log_|efficientzero)*"
    r"(view|to_copy|copy|clone|contiguous|lift|detach|set|resize|local_scalar|item|assert|pin_memory"
    r"|empty|new_|zero|ones|full|fill|rand|normal|uniform|bernoulli|multinomial|exponential"
    r"|dropout|arange|linspace|eye|tril|triu|diag|cat|stack|split|chunk|unbind|repeat|roll|flip"
    r"|pad|constant_pad|reflection_pad|replication_pad|index|gather|scatter|select|slice|take|put"
    r"|masked|where|nonzero|unique|sort|topk|argsort|kthvalue|median|nanmedian|mode|searchsorted"
    r"|bucketize|bincount|histc|embedding|sum|nansum|mean|prod|amax|amin|aminmax|max|min|argmax"
    r"|argmin|any|all|count|equal|is_|var|std|norm|linalg_vector_norm|cum|logcum|logsumexp|softmax"
    r"|layer_norm|group_norm|batch_norm|rms_norm|weight_norm|renorm|avg_pool|max_pool|adaptive"
    r"|fractional|upsample|grid_sampl|pixel|channel_shuffle|im2col|col2im|unfold|non_finite"
    r"|adam|sgd|adagrad|\w*loss|\w*backward$)"
)


def _has_many_operations(function: Any, tensors: list[Any]) -> bool:
    """Return whether an operator that is not counted may take more than element-wise ones do."""
    namespace, _, name = str(function._overloadpacket).rpartition(".")
    if namespace not in _OWN:
        return True  # of a library or the user: what it computes is not known
    if _PRODUCT.search(name):
        return not _is_composite(function)
    tag = cast(Any, torch_cuda.require()).Tag
    cheap = {tag.pointwise, getattr(tag, "reduction", None)}
    return not (
        namespace != "aten"
        or not tensors  # it makes elements, or takes lists, as those of optimizers do
        or cheap & {*function.tags}
        or getattr(function, "is_view", False)
        or _FEW_OPERATIONS.match(name)
        or _is_composite(function)
    )


def _bounded(names: list[str]) -> tuple[str, ...]:
    """Return the first names, and the number of the others."""
    more = len(names) - _MOST_NAMES
    return (*names[:_MOST_NAMES], *([f"{more} more"] if more > 0 else []))


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


@contextmanager
def _graph_replays(found: list[None]) -> Iterator[None]:
    """Record the replays of CUDA graphs in this context."""
    graph: Any = getattr(cast(Any, torch_cuda.require()).cuda, "CUDAGraph", None)
    replay = vars(graph).get("replay") if graph is not None else None
    if replay is None:
        yield
        return

    @functools.wraps(replay)
    def recorded(*arguments: Any, **named: Any) -> Any:
        found.append(None)
        return replay(*arguments, **named)

    graph.replay = recorded
    try:
        yield
    finally:
        if vars(graph).get("replay") is recorded:
            graph.replay = replay


def _recording(operators: _Operators) -> Any:
    """Return a dispatch mode that adds the operators that run to ``operators``."""
    base: Any = torch_cuda.dispatch_mode()
    torch: Any = torch_cuda.require()

    class Recording(base):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if not operators.is_counted(function) and _is_composite(function):
                # In inference mode it comes here whole: what it is made of is recorded.
                with self:
                    result = getattr(function, "decompose", _undecomposed)(*args, **named)
                if result is not NotImplemented:
                    return result
            operators.add(function, [each for each in args if isinstance(each, torch.Tensor)])
            return function(*args, **named)

    return Recording()


def _undecomposed(*_: Any, **__: Any) -> Any:
    return NotImplemented


def why_no_share(flops: Flops, devices: Sequence[str]) -> str | None:
    """Return why counted operations have no share of a card's peak; None where others notes say.

    ``devices`` are the names of the devices that were used.
    """
    if flops.on_cpu:
        return "some of the operations ran on the CPU"
    if not flops.count or flops.unseen or flops.threads or flops.replays:
        return None
    if len(devices) > 1:
        return f"the code used {len(devices)} devices"
    if flops.dtype is None:
        return f"the operations are in {' and '.join(flops.dtypes) or 'an unknown dtype'}"
    if devices:
        return f"that of {flops.dtype} is not known for {devices[0]}"
    return None


def share_of_peak(flops: Flops, seconds: float, device: str) -> float | None:
    """Return the share of the card's dense peak; None where the peak or the dtype is not known."""
    unseen = flops.on_cpu or flops.threads or flops.unseen or flops.replays
    if flops.dtype is None or unseen or not seconds > 0:
        return None
    best = peak(device, flops.dtype)
    if best is None and flops.dtype == "tf32":  # the card has none, and computes in float32
        best = peak(device, "float32")
    return None if best is None else flops.count / seconds / best
