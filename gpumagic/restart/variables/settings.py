"""Settings of libraries that change figures, or how they are shown: carried to the new process.

They are read and set by the libraries' own functions; there, only what differs is set.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import cloudpickle

from gpumagic.cuda import driver, torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.restart.variables.unpickler import STREAMS, own_streams
from gpumagic.system.shell import Shell

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
    ("decimal", "getcontext/setcontext"),
    ("sys", "getrecursionlimit/setrecursionlimit"),
    ("torch.utils.hooks.RemovableHandle", "next_id"),  # a new hook must not replace a kept one
    ("torch._tensor_str.PRINT_OPTS", "precision threshold edgeitems linewidth sci_mode"),
    ("numpy", "get_printoptions/set_printoptions geterr/seterr"),
    # Random states at last: what sets another may draw numbers.
    ("torch", "get_rng_state/set_rng_state"),
    ("numpy.random", "get_state/set_state"),
    ("random", "getstate/setstate"),
)
#: Two of the settings: the warning filters; levels and handlers of the notebook's loggers.
_FILTERS, _LOGGERS = "warnings:filters", "logging"
#: The GPU that `torch.cuda.set_device` has made the current one.
_CURRENT = "torch.cuda:set_device"
#: The random states of GPUs, which are set when CUDA starts: a GPU may be hidden until then.
_STATES = "torch.cuda:get_rng_state"
_waiting = dict[str, bytes]()
#: The seeds that torch sets when CUDA starts, after those states: `manual_seed_all`, and the like.
_SEEDS = "torch.cuda:manual_seed"
#: A warning filter: action, text, category, module, line.
_Filter = tuple[Any, str, Any, str, int]


def read(shell: Shell) -> dict[str, bytes]:
    """Return the settings of the libraries that are loaded, each pickled, in the order of setting.

    Those that are not carried, and not as in a new process, are empty.
    """
    found, torch = dict[str, bytes](), cast(Any, torch_cuda.loaded())
    filters = _filters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for path, name in _names():
            with suppress(Exception):  # this version has it not, or torch's other precision is used
                found[f"{path}:{name}"] = _pickled(path, name)
    if STATE.choice.threads is not None:  # it is not the user's, and `%gpu` sees to it
        found.pop(f"torch:{_THREADS}", None)
    if states := _states(torch):
        found[_STATES] = cloudpickle.dumps(states)
    if torch and not torch.cuda.is_initialized():
        waiting = [call for call, _ in filter(None, torch.cuda._lazy_seed_tracker.get_calls())]
        seeds = [(each.__qualname__.split(".")[0], each.__closure__[0]) for each in waiting]
        found[_SEEDS] = cloudpickle.dumps([(name, seed.cell_contents) for name, seed in seeds])
    if torch and torch.cuda.is_initialized() and (current := torch.cuda.current_device()):
        found[_CURRENT] = cloudpickle.dumps(f"cuda:{current}")
    if sys.argv[1:] != sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1 :]:  # by the user
        found["sys:argv"] = cloudpickle.dumps(sys.argv)
    plots = [each for each in shell.configurables if type(each).__name__ == "InlineBackend"]
    loggers = [each.name for each in shell.user_ns.values() if type(each) is logging.Logger]
    found[_LOGGERS] = cloudpickle.dumps({name: _logger(name) for name in ("", *loggers)})
    others = {
        "the inline backend": any(each.config.get("InlineBackend") for each in plots),
        **{f"sys.{name}": name not in own_streams() for name in STREAMS},
    }
    found[_FILTERS] = b""
    with suppress(Exception):  # a category has no pickle, for example
        found[_FILTERS] = cloudpickle.dumps(filters)
    return {**found, **{name: b"" for name, changed in others.items() if changed}}


def restore(settings: Mapping[str, bytes], now: Callable[[str], str]) -> dict[str, list[str]]:
    """Set what differs; return what is not set, behind words that say so.

    ``now`` returns where a device is now.
    """
    torch: Any
    again, filters = list[str](), list[_Filter]()
    for library in dict.fromkeys(re.split("[.:]", name)[0] for name in settings):
        with suppress(Exception):  # it is none, or cannot be imported any more
            importlib.import_module(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, state in settings.items():
            path, _, name = key.partition(":")
            try:
                if key == _FILTERS:
                    filters = pickle.loads(state)
                elif key == _LOGGERS:
                    then = pickle.loads(state)
                    if then != {name: _logger(name) for name in then}:
                        again.append(key)
                elif key == _CURRENT:
                    place = now(pickle.loads(state))
                    if place == "cpu":
                        raise ValueError("it is hidden")
                    torch = torch_cuda.require()
                    torch_cuda.when_initialized(partial(torch.cuda.set_device, place))
                elif key == _STATES:
                    _waiting.update(pickle.loads(state))
                    torch_cuda.when_initialized(_set_states)
                elif key == _SEEDS:
                    for name, seed in pickle.loads(state):
                        getattr(torch_cuda.require().cuda, name)(seed)
                elif not state or state != _pickled(path, name):
                    value = pickle.loads(state)
                    if "default_device" in name:
                        value, then = now(str(value)), str(value)
                        again += ["torch.set_default_device"] * (value == "cpu" != then)
                    _set(path, name, value)
            except Exception:  # it is empty, or its class cannot be imported, for example
                again.append(key.replace(":", "."))
    known = _filters()
    for each in reversed(filters):
        if each not in known:  # the first that fits decides
            warnings.filterwarnings(*each)
    return {"As in a new process, set again among others:": again}


def _states(torch: Any) -> dict[str, bytes]:
    """Return the random states of the GPUs by UUID, or those that wait for CUDA to start."""
    if torch is None or not torch.cuda.default_generators:
        return _waiting
    found = dict[str, bytes]()
    for uuid, each in zip(driver.state().uuids or (), torch.cuda.default_generators, strict=False):
        with suppress(RuntimeError):  # in host memory: a context that has failed may have it still
            found[uuid] = cloudpickle.dumps(each.get_state())
    return found


def _set_states() -> None:
    """When CUDA starts: set the random states; a GPU that had none has the seed of all others."""
    torch: Any = torch_cuda.require()
    for uuid, each in zip(driver.state().uuids or (), torch.cuda.default_generators, strict=False):
        if uuid in _waiting:
            each.set_state(pickle.loads(_waiting[uuid]))
        else:
            each.manual_seed(torch.initial_seed())


def _filters() -> list[_Filter]:
    """Return the warning filters as `warnings.filterwarnings` takes them, the first first."""
    found: list[Any] = [*warnings.filters]
    return [
        (action, getattr(text, "pattern", text) or "", kind, getattr(of, "pattern", of) or "", line)
        for action, text, kind, of, line in found
    ]


def _logger(name: str) -> tuple[int, int]:
    """Return a logger's level, and how many handlers it has."""
    found = logging.getLogger(name)
    return found.level, len(found.handlers)


def _names() -> Iterator[tuple[str, str]]:
    """Yield what has the settings of the libraries that are loaded, and their names."""
    pandas, plots = map(cast(Any, sys.modules).get, ("pandas", "matplotlib"))
    if hasattr(pandas, "options"):  # not while it is being imported
        for name in pandas._config.config._registered_options:
            path, _, last = f"pandas.options.{name}".rpartition(".")
            yield path, last
    for name in getattr(plots, "rcParams", ()):
        if "backend" not in name:  # to read that would choose one
            yield "matplotlib.rcParams", name
    for path, names in _TABLE:
        if path.split(".")[0] in sys.modules:
            for name in names.split():
                yield path, name


def _pickled(path: str, name: str) -> bytes:
    owner = pkgutil.resolve_name(path)
    get, _, set_ = name.partition("/")
    if isinstance(owner, dict):
        value = owner[name]
    else:
        value = getattr(owner, get)() if set_ else getattr(owner, get)
    return cast(bytes, cloudpickle.dumps(value))


def _set(path: str, name: str, value: object) -> None:
    owner = pkgutil.resolve_name(path)
    get, _, set_ = name.partition("/")
    if isinstance(owner, dict):
        owner[name] = value
    elif not set_:
        setattr(owner, get, value)
    elif type(value) is dict:
        getattr(owner, set_)(**value)
    else:
        getattr(owner, set_)(value)
