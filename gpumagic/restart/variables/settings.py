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
from typing import Any, NamedTuple, cast

import cloudpickle

from gpumagic.cuda.pytorch import gpu_random, torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.restart.variables.process_objects import STREAMS, own_streams
from gpumagic.system.shell import Shell

#: Settings in the order in which they are set, by what has them: an attribute, or a function that
#: reads it and one that sets it.
_TABLE = (
    ("torch", "get_default_dtype/set_default_dtype is_grad_enabled/set_grad_enabled"),
    ("torch", "is_anomaly_enabled/set_anomaly_enabled"),
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
    ("decimal", "getcontext/setcontext"),
    ("sys", "argv getrecursionlimit/setrecursionlimit"),
    ("torch.utils.hooks.RemovableHandle", "next_id"),  # a new hook must not replace a kept one
    ("torch._tensor_str.PRINT_OPTS", "precision threshold edgeitems linewidth sci_mode"),
    ("numpy", "get_printoptions/set_printoptions geterr/seterr"),
    # Random states at last: what sets another may draw numbers.
    ("torch", "get_num_threads/set_num_threads get_rng_state/set_rng_state"),
    ("numpy.random", "get_state/set_state"),
    ("random", "getstate/setstate"),
)
#: The one whose module NumPy imports when it is first used: else it has no state to keep.
_LATE = "numpy.random"
_FILTERS = "warnings.filters"
#: A warning filter: action, text, category, module, line.
_Filter = tuple[Any, str, Any, str, int]


class Setting(NamedTuple):
    """A setting: its name for the user, how it is read, and how it is set where it differs."""

    name: str
    get: Callable[[], Any]
    #: Raises where it is not what it was afterwards.
    set: Callable[[Any], object]


def read(shell: Shell) -> dict[str, bytes]:
    """Return the loaded libraries' settings, pickled; b"" for a setting that cannot be pickled."""
    found, filters = dict[str, bytes](), Setting(_FILTERS, partial(list, _filters()), _refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        for each in (*_settings(shell), filters):
            if each.name.startswith(_LATE) and _LATE not in sys.modules:
                continue
            with suppress(Exception):  # this version has it not, or torch's other precision is used
                value = each.get()
                found[each.name] = b""
                found[each.name] = cloudpickle.dumps(value)
    if STATE.choice.threads is not None:  # it is not the user's, and `%gpu` sees to it
        found.pop("torch.set_num_threads", None)
    return found


def restore(
    shell: Shell, settings: Mapping[str, bytes], now: Callable[[str], str]
) -> dict[str, list[str]]:
    """Set what differs; return what is not set, behind words that say so.

    ``now`` returns where a device is now.
    """
    again, filters = list[str](), list[_Filter]()
    for library in dict.fromkeys(name.split(".")[0] for name in settings):
        with suppress(Exception):  # it is none, or cannot be imported any more
            importlib.import_module(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = {each.name: each for each in _settings(shell, now)}
        known[_FILTERS] = Setting(_FILTERS, _filters, filters.extend)
        for name, state in settings.items():
            try:
                if not state or state != cloudpickle.dumps(known[name].get()):
                    known[name].set(pickle.loads(state))
            except Exception:  # it is empty, or its class cannot be imported, for example
                again.append(name)
    known_filters = _filters()
    for each in reversed(filters):
        if each not in known_filters:  # the first that fits decides
            warnings.filterwarnings(*each)
    return {"Not carried over; set again:": again}


def _settings(shell: Shell, now: Callable[[str], str] = str) -> Iterator[Setting]:
    """Yield the settings of the libraries that are loaded, in the order in which they are set."""
    for name in STREAMS:
        yield Setting(f"sys.{name}", partial(own_streams().__contains__, name), _refuse)
    yield Setting("the inline backend", partial(_plots_configured, shell), _refuse)
    yield Setting("logging", partial(_loggers, shell), _refuse)
    if torch_cuda.loaded() is not None:
        torch: Any = torch_cuda.module()
        yield Setting("torch.set_default_device", torch.get_default_device, partial(_default, now))
        yield Setting("torch.cuda.set_device", _current_gpu, partial(_set_current_gpu, now))
        yield Setting("torch.cuda.set_rng_state", gpu_random.states, gpu_random.set_states)
        seeds = gpu_random.waiting_seeds, gpu_random.set_seeds
        yield Setting("torch.cuda.manual_seed", *seeds)
    pandas, plots = map(cast(Any, sys.modules).get, ("pandas", "matplotlib"))
    if hasattr(pandas, "options"):  # not while it is being imported
        for name in pandas._config.config._registered_options:
            get, set_ = (partial(each, name) for each in (pandas.get_option, pandas.set_option))
            yield Setting(f"pandas.{name}", get, set_)
    if hasattr(plots, "rcParams"):
        for name in plots.rcParams:
            if "backend" not in name:  # to read that would choose one
                get, set_ = plots.rcParams.__getitem__, plots.rcParams.__setitem__
                yield Setting(f"matplotlib.{name}", partial(get, name), partial(set_, name))
    for path, names in _TABLE:
        if path.split(".")[0] in sys.modules:
            for name in names.split():
                shown = f"{path}.{name.rpartition('/')[2]}"
                yield Setting(shown, partial(_get, path, name), partial(_set, path, name))


def _get(path: str, name: str) -> Any:
    get, _, set_ = name.partition("/")
    found = getattr(pkgutil.resolve_name(path), get)
    return found() if set_ else found


def _set(path: str, name: str, value: Any) -> None:
    owner, (get, _, set_) = pkgutil.resolve_name(path), name.partition("/")
    if not set_:
        setattr(owner, get, value)
    elif type(value) is dict:
        getattr(owner, set_)(**value)
    else:
        getattr(owner, set_)(value)


def _refuse(_: object) -> None:
    """Set nothing: only the user can.

    Raises:
        ValueError: always; the report names the setting.
    """
    raise ValueError("set it again")


def _filters() -> list[_Filter]:
    """Return the warning filters as `warnings.filterwarnings` takes them, the first first."""
    found: list[Any] = [*warnings.filters]
    return [
        (action, getattr(text, "pattern", text) or "", kind, getattr(of, "pattern", of) or "", line)
        for action, text, kind, of, line in found
    ]


def _plots_configured(shell: Shell) -> bool:
    plots = [each for each in shell.configurables if type(each).__name__ == "InlineBackend"]
    return any(each.config.get("InlineBackend") for each in plots)


def _loggers(shell: Shell) -> list[tuple[str, int, int]]:
    """Return the level, and how many handlers, the root logger and the notebook's have been given.

    None of those that are as in a new process.
    """
    mine = [each for each in shell.user_ns.values() if type(each) is logging.Logger]
    found = [(each.name, each.level, len(each.handlers)) for each in (logging.getLogger(), *mine)]
    return [each for each in found if each[1:] not in ((logging.NOTSET, 0), (logging.WARNING, 0))]


# --- of GPUs --------------------------------------------------------------------------------------


def _default(now: Callable[[str], str], device: Any) -> None:
    torch: Any = torch_cuda.require()
    place = now(str(device))
    torch.set_default_device(place)
    if place == "cpu" != str(device):
        raise LookupError("it is hidden")


def _current_gpu() -> str | None:
    """Return the GPU that ``torch.cuda.set_device`` has made the current one."""
    torch: Any = torch_cuda.module()
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    return f"cuda:{current}" if current else None


def _set_current_gpu(now: Callable[[str], str], device: str | None) -> None:
    torch: Any = torch_cuda.require()
    if device is not None:
        if (place := now(device)) == "cpu":
            raise LookupError("it is hidden")
        torch_cuda.when_initialized(partial(torch.cuda.set_device, place))
