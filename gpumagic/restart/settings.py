"""Settings of libraries that change figures, or how they are shown: carried to the new process.

They are read and set by the libraries' own functions; there, only what differs is set.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import cloudpickle

#: The settings of torch, in the order in which they are set: what has them; an attribute, or a
#: function that reads it and one that sets it.
_TORCH = (
    ("torch", "get_default_dtype set_default_dtype"),
    ("torch", "get_default_device set_default_device"),
    ("torch", "is_grad_enabled set_grad_enabled"),
    ("torch", "is_anomaly_enabled set_anomaly_enabled"),
    ("torch", "get_deterministic_debug_mode set_deterministic_debug_mode"),
    ("torch", "get_float32_matmul_precision set_float32_matmul_precision"),
    ("torch.backends.cuda", "flash_sdp_enabled enable_flash_sdp"),
    ("torch.backends.cuda", "mem_efficient_sdp_enabled enable_mem_efficient_sdp"),
    ("torch.backends.cuda", "math_sdp_enabled enable_math_sdp"),
    ("torch.backends.cuda", "cudnn_sdp_enabled enable_cudnn_sdp"),
    ("torch.backends.cuda.matmul", "allow_tf32"),
    ("torch.backends.cuda.matmul", "allow_fp16_reduced_precision_reduction"),
    ("torch.backends.cuda.matmul", "allow_bf16_reduced_precision_reduction"),
    ("torch.backends.cudnn", "enabled"),
    ("torch.backends.cudnn", "benchmark"),
    ("torch.backends.cudnn", "deterministic"),
    ("torch.backends.cudnn", "allow_tf32"),
    # torch refuses to mix these with the older ones: where those are in use, they agree by now.
    ("torch.backends", "fp32_precision"),
    ("torch.backends.cuda.matmul", "fp32_precision"),
    ("torch.backends.cudnn", "fp32_precision"),
    ("torch.backends.cudnn.conv", "fp32_precision"),
    ("torch.backends.cudnn.rnn", "fp32_precision"),
    ("torch.utils.hooks.RemovableHandle", "next_id"),  # a new hook must not replace a kept one
)
#: How a setting is read, and how it is set.
_Access = tuple[Callable[[], Any], Callable[[Any], Any]]


def read() -> dict[str, bytes]:
    """Return the settings of the libraries that this process has loaded, each pickled."""
    found = {}
    for name, (get, _) in _accesses():
        try:
            found[name] = cloudpickle.dumps(get())
        except Exception:  # this version has it not, or torch's other precision is in use
            continue
    return found


def restore(settings: Mapping[str, bytes], now: Callable[[str], str]) -> list[str]:
    """Set what differs; return what cannot be set. ``now`` returns where a device is now."""
    for name in settings:
        importlib.import_module(name.split(".")[0])
    lost = []
    for name, (get, set_) in _accesses():
        try:
            if name in settings and cloudpickle.dumps(get()) != settings[name]:
                value = pickle.loads(settings[name])
                set_(now(str(value)) if name.endswith("default_device") else value)
        except Exception:  # its class cannot be imported here, for example
            lost.append(name)
    return lost


def others(shell: Any) -> list[str]:
    """Return which other settings are not those of a new process."""
    plots = [each for each in shell.configurables if type(each).__name__ == "InlineBackend"]
    root, ignored = logging.getLogger(), ("ignore", None, Warning, None, 0)
    found = {
        "logging": root.handlers or root.level != logging.WARNING,
        "warning filters": ignored in warnings.filters,
        "the inline backend": any(each.config.get("InlineBackend") for each in plots),
    }
    return [name for name, changed in found.items() if changed]


def _accesses() -> Iterator[tuple[str, _Access]]:
    """Yield the settings of the libraries that are loaded."""
    torch, numpy, pandas, matplotlib = map(_loaded, ("torch", "numpy", "pandas", "matplotlib"))
    if torch is not None:
        for path, names in _TORCH:
            yield f"{path}.{names}", _access(path, *names.split())
        shown = torch._tensor_str.PRINT_OPTS  # no function reads them
        yield "torch.print", (partial(vars, shown), _by_name(torch.set_printoptions))
    if numpy is not None:
        yield "numpy.print", (numpy.get_printoptions, _by_name(numpy.set_printoptions))
        yield "numpy.err", (numpy.geterr, _by_name(numpy.seterr))
    if pandas is not None:
        for name in _options(pandas.options):
            get, set_ = partial(pandas.get_option, name), partial(pandas.set_option, name)
            yield f"pandas.{name}", (get, set_)
    if matplotlib is not None:
        items = partial(dict.items, matplotlib.rcParams)  # its own would choose a backend
        ours = lambda: {name: each for name, each in items() if "backend" not in name}  # noqa: E731
        yield "matplotlib.rcParams", (ours, matplotlib.rcParams.update)


def _loaded(name: str) -> Any:
    """Return a library that has been imported to its end."""
    module = sys.modules.get(name)
    return module if hasattr(module, "__version__") else None


def _by_name(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda values: function(**values)


def _access(path: str, get: str, set_: str = "") -> _Access:
    owner = partial(pkgutil.resolve_name, path)
    if not set_:
        return lambda: getattr(owner(), get), lambda value: setattr(owner(), get, value)
    return lambda: getattr(owner(), get)(), lambda value: getattr(owner(), set_)(value)


def _options(group: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of pandas' options."""
    for name in dir(group):
        inside = getattr(group, name)
        if type(inside) is type(group):
            yield from _options(inside, f"{prefix}{name}.")
        else:
            yield prefix + name
