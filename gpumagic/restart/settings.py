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
from contextlib import suppress
from functools import partial
from typing import Any, cast

import cloudpickle

from gpumagic.cuda.process_state import STATE
from gpumagic.restart.pickler import STREAMS, own_streams

_THREADS = "get_num_threads/set_num_threads"
#: The settings of torch, in the order in which they are set, by what has them: an attribute, or a
#: function that reads it and one that sets it.
_TORCH = (
    ("torch", "get_default_dtype/set_default_dtype get_default_device/set_default_device"),
    ("torch", "is_grad_enabled/set_grad_enabled is_anomaly_enabled/set_anomaly_enabled"),
    ("torch", "get_deterministic_debug_mode/set_deterministic_debug_mode"),
    ("torch", "get_float32_matmul_precision/set_float32_matmul_precision"),
    ("torch.backends.cuda", "flash_sdp_enabled/enable_flash_sdp math_sdp_enabled/enable_math_sdp"),
    ("torch.backends.cuda", "mem_efficient_sdp_enabled/enable_mem_efficient_sdp"),
    ("torch.backends.cuda", "cudnn_sdp_enabled/enable_cudnn_sdp"),
    ("torch.backends.cuda.matmul", "allow_tf32 allow_fp16_reduced_precision_reduction"),
    ("torch.backends.cuda.matmul", "allow_bf16_reduced_precision_reduction"),
    ("torch.backends.cudnn", "enabled benchmark deterministic allow_tf32"),
    # torch refuses to mix these with the older ones: where those are in use, they agree by now.
    *((f"torch.backends{each}", "fp32_precision") for each in ("", ".cuda.matmul", ".cudnn")),
    *((f"torch.backends.cudnn.{each}", "fp32_precision") for each in ("conv", "rnn")),
    ("torch", _THREADS),
    ("torch.utils.hooks.RemovableHandle", "next_id"),  # a new hook must not replace a kept one
)
#: A setting's name, how it is read, and how it is set.
_Setting = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def read() -> dict[str, bytes]:
    """Return the settings of the libraries that this process has loaded, each pickled."""
    found = {}
    for name, get, _ in _settings():
        with suppress(Exception):  # this version has it not, or torch's other precision is in use
            found[name] = _pickled(get)
    if STATE.choice.threads is not None:  # it is not the user's, and `%gpu` sees to it
        found.pop(f"torch.{_THREADS}", None)
    return found


def restore(settings: Mapping[str, bytes], now: Callable[[str], str]) -> list[str]:
    """Set what differs; return what cannot be set. ``now`` returns where a device is now."""
    for library in dict.fromkeys(name.split(".")[0] for name in settings):
        with suppress(Exception):  # it cannot be imported any more
            importlib.import_module(library)
    left = dict(settings)
    for name, get, set_ in _settings():
        with suppress(Exception):  # the class of its value cannot be imported, for example
            if name in left and _pickled(get) != left[name]:
                value = pickle.loads(left[name])
                _quietly(set_, now(str(value)) if name.endswith("default_device") else value)
            left.pop(name, None)
    return [*left]


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function without the warnings of settings that are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)


def _pickled(get: Callable[[], Any]) -> bytes:
    return cast(bytes, cloudpickle.dumps(_quietly(get)))


def others(shell: Any) -> list[str]:
    """Return which other settings are not those of a new process."""
    plots = [each for each in shell.configurables if type(each).__name__ == "InlineBackend"]
    root, ignored = logging.getLogger(), ("ignore", None, Warning, None, 0)
    found = {
        "logging": root.handlers or root.level != logging.WARNING,
        "warning filters": ignored in warnings.filters,
        "the inline backend": any(each.config.get("InlineBackend") for each in plots),
        **{f"sys.{name}": name not in own_streams() for name in STREAMS},
    }
    return [name for name, changed in found.items() if changed]


def _settings() -> Iterator[_Setting]:
    """Yield the settings of the libraries that are loaded."""
    modules = map(sys.modules.get, ("torch", "numpy", "pandas", "matplotlib"))
    # Not of one that is being imported.
    torch, numpy, pandas, plots = (
        each if hasattr(each, "__version__") else None for each in modules
    )
    if torch is not None:
        for path, names in _TORCH:
            for name in names.split():
                yield f"{path}.{name}", *_access(partial(pkgutil.resolve_name, path), name)
        shown = torch._tensor_str.PRINT_OPTS  # no function reads them
        yield "torch.print", partial(vars, shown), _by_name(torch.set_printoptions)
    if numpy is not None:
        yield "numpy.print", numpy.get_printoptions, _by_name(numpy.set_printoptions)
        yield "numpy.err", numpy.geterr, _by_name(numpy.seterr)
    if pandas is not None:
        for name in _options(pandas.options):
            get, set_ = partial(pandas.get_option, name), partial(pandas.set_option, name)
            yield f"pandas.{name}", get, set_
    if plots is not None:
        items = partial(dict.items, plots.rcParams)  # its own would choose a backend
        some = lambda: {name: each for name, each in items() if "backend" not in name}  # noqa: E731
        yield "matplotlib.rcParams", some, plots.rcParams.update


def _by_name(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda values: function(**values)


def _access(owner: Callable[[], Any], name: str) -> Any:
    get, _, set_ = name.partition("/")
    if not set_:
        return lambda: getattr(owner(), get), lambda value: setattr(owner(), get, value)
    return lambda: getattr(owner(), get)(), lambda value: getattr(owner(), set_)(value)


def _options(group: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of pandas' options."""
    for name in dir(group):
        inside = _quietly(getattr, group, name)
        is_group = type(inside) is type(group)
        yield from _options(inside, f"{prefix}{name}.") if is_group else [prefix + name]
