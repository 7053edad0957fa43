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

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.process_state import STATE
from gpumagic.restart.pickler import STREAMS, own_streams

_THREADS = "get_num_threads/set_num_threads"
#: Settings in the order in which they are set, by what has them: an attribute, or a function that
#: reads it and one that sets it.
_TABLE = (
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
    ("torch._tensor_str.PRINT_OPTS", "precision threshold edgeitems linewidth sci_mode"),
    ("numpy", "get_printoptions/set_printoptions geterr/seterr"),
    # Random states at last: what sets another may draw numbers. The seed is also that of the GPUs.
    ("torch", "initial_seed/manual_seed get_rng_state/set_rng_state"),
    ("numpy.random", "get_state/set_state"),
    ("random", "getstate/setstate"),
)
#: A setting's name, how it is read, and how it is set.
_Setting = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def read(shell: Any) -> dict[str, bytes]:
    """Return the settings of the libraries that are loaded, each pickled.

    Those that are not carried, and not as in a new process, are empty.
    """
    found = {}
    for name, get, _ in _settings():
        with suppress(Exception):  # this version has it not, or torch's other precision is in use
            found[name] = _pickled(get)
    if STATE.choice.threads is not None:  # it is not the user's, and `%gpu` sees to it
        found.pop(f"torch.{_THREADS}", None)
    torch: Any = torch_cuda.loaded()
    for number, generator in enumerate(torch.cuda.default_generators if torch else ()):
        try:  # in host memory: a CUDA context that has failed may have it still
            found[f"cuda:{number}"] = _pickled(generator.get_state)
        except RuntimeError:
            found[f"cuda:{number}"] = b""
    return {**found, **dict.fromkeys(_others(shell), b"")}


def _others(shell: Any) -> list[str]:
    plots = [each for each in shell.configurables if type(each).__name__ == "InlineBackend"]
    root, ignored = logging.getLogger(), ("ignore", None, Warning, None, 0)
    found = {
        "logging": root.handlers or root.level != logging.WARNING,
        "warning filters": ignored in warnings.filters,
        "the inline backend": any(each.config.get("InlineBackend") for each in plots),
        **{f"sys.{name}": name not in own_streams() for name in STREAMS},
    }
    return [name for name, changed in found.items() if changed]


def restore(settings: Mapping[str, bytes], now: Callable[[str], str]) -> dict[str, list[str]]:
    """Set what differs; return what cannot be set, behind words that say so.

    ``now`` returns where a device is now.
    """
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
    states = {name: left.pop(name) for name in settings if name.startswith("cuda:")}
    return {
        "As in a new process, set again among others:": [*left],
        "Not kept: CUDA's random state of": [*_lost_states(states, now)],
    }


def _lost_states(states: Mapping[str, bytes], now: Callable[[str], str]) -> Iterator[str]:
    """Restore the random states of GPUs; yield the devices whose state is lost."""
    for device, state in states.items():
        place = now(device)
        if state and place != "cpu":
            torch_cuda.require().cuda.set_rng_state(pickle.loads(state), place)
        elif now("cuda") != "cpu":  # without GPUs nobody misses it
            yield device


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function without the warnings of settings that are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)


def _pickled(get: Callable[[], Any]) -> bytes:
    return cast(bytes, cloudpickle.dumps(_quietly(get)))


def _settings() -> Iterator[_Setting]:
    """Yield the settings of the libraries that are loaded."""
    modules: Any = sys.modules
    pandas, plots = modules.get("pandas"), modules.get("matplotlib")
    if hasattr(pandas, "get_option"):  # not while it is being imported
        for name in pandas._config.config._registered_options:
            get, set_ = partial(pandas.get_option, name), partial(pandas.set_option, name)
            yield f"pandas.{name}", get, set_
    for name in getattr(plots, "rcParams", ()):
        if "backend" not in name:
            get, set_ = plots.rcParams.__getitem__, plots.rcParams.__setitem__
            yield f"matplotlib.{name}", partial(get, name), partial(set_, name)
    for path, names in _TABLE:
        for name in names.split() if path.split(".")[0] in sys.modules else ():
            yield f"{path}.{name}", *_access(path, name)


def _access(path: str, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the functions that read and set a setting of the table."""
    get, _, set_ = name.partition("/")

    def read() -> Any:
        found = getattr(pkgutil.resolve_name(path), get)
        return found() if set_ else found

    def write(value: Any) -> Any:
        owner = pkgutil.resolve_name(path)
        if not set_:
            return setattr(owner, get, value)
        function = getattr(owner, set_)
        return function(**value) if type(value) is dict else function(value)

    return read, write
