"""Process-wide settings of libraries: torch, NumPy, pandas, matplotlib, warnings.

They are read from loaded libraries as plain data, and set again in the same libraries. Settings
that are functions are pickled as variables are: they may be the notebook's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from gpumagic.cuda import torch_cuda
from gpumagic.restart.variables import python_settings

#: Settings of torch that are attributes, older names first: they also set newer ones.
_SWITCHES = (
    *("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32"),
    *("backends.cuda.matmul.fp32_precision", "backends.cudnn.fp32_precision"),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    *("backends.cudnn.benchmark", "backends.cudnn.deterministic", "backends.cudnn.enabled"),
    "backends.mkldnn.enabled",
)
#: Kinds of attention that torch may use: ``torch.backends.cuda.enable_flash_sdp``, for example.
_ATTENTION = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
#: Others: functions that get and set them.
_CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "default dtype": (
        lambda torch: str(torch.get_default_dtype()).partition(".")[2],
        lambda torch, name: torch.set_default_dtype(getattr(torch, name)),
    ),
    "matmul precision": (
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, precision: torch.set_float32_matmul_precision(precision),
    ),
    "deterministic algorithms": (
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, how: torch.use_deterministic_algorithms(how[0], warn_only=how[1]),
    ),
    "gradients": (
        lambda torch: torch.is_grad_enabled(),
        lambda torch, enabled: torch.set_grad_enabled(enabled),
    ),
    "anomaly detection": (
        lambda torch: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda torch, how: torch.autograd.set_detect_anomaly(*how),
    ),
    "threads": (
        lambda torch: torch.get_num_threads(),
        lambda torch, number: torch.set_num_threads(number),
    ),
    "sharing strategy": (
        lambda torch: torch.multiprocessing.get_sharing_strategy(),
        lambda torch, strategy: torch.multiprocessing.set_sharing_strategy(strategy),
    ),
    "hub's folder": (
        lambda torch: torch.hub.get_dir(),
        lambda torch, folder: torch.hub.set_dir(folder),
    ),
    "print options": (
        lambda torch: vars(torch._tensor_str.PRINT_OPTS).copy(),
        lambda torch, options: vars(torch._tensor_str.PRINT_OPTS).update(options),
    ),
}
#: matplotlib's parameters that depend on the front end.
_OF_FRONT_END = ("backend", "backend_fallback", "interactive", "toolbar")
_PLAIN = (bool, int, float, str, type(None))


def capture() -> dict[str, Any]:
    """Return the settings of the libraries that this process has loaded, as plain data."""
    found: dict[str, Any] = {
        "warnings": [*_filters()],
        "python": python_settings.capture(),
    }
    readers = {
        "torch": _read_torch,
        "numpy": _read_numpy,
        "pandas._config.config": _read_pandas,
        "matplotlib": _read_matplotlib,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated names of the same settings
        for name, read in readers.items():
            module = torch_cuda.loaded() if name == "torch" else sys.modules.get(name)
            try:
                found[name] = {} if module is None else read(module)
            except AttributeError:  # it is being imported, or another version has no such setting
                found[name] = {}
    return found


def restore(found: Mapping[str, Any], device_now: Callable[[int | None], str]) -> list[str]:
    """Set them again; return a phrase for each setting that a library refuses.

    All of torch's are set; those of others only where the library is loaded.
    """
    refused: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated names of the same settings
        if found["torch"]:
            refused += _set_torch(found["torch"], device_now)
        if found["numpy"] and "numpy" in sys.modules:
            numpy: Any = sys.modules["numpy"]
            numpy.set_printoptions(**found["numpy"]["printing"])
            numpy.seterr(**found["numpy"]["errors"])
        for name, set_ in (("pandas._config.config", _set_pandas), ("matplotlib", _set_matplotlib)):
            for option, value in found[name].items() if name in sys.modules else ():
                try:
                    set_(sys.modules[name], option, value)
                except Exception:  # another version
                    refused.append(f"{name.partition('.')[0]}'s option {option}")
    _filter_again(found["warnings"])
    return refused + python_settings.restore(found["python"])


def function_settings() -> dict[str, Any]:
    """Return the settings that are functions, or contain some, by a phrase for each."""
    found: dict[str, Any] = {}
    for name, read in (("numpy", _formatters), ("pandas._config.config", _functions_of_pandas)):
        try:
            if name in sys.modules:
                found |= read(sys.modules[name])
        except AttributeError:  # it is being imported, or another version has no such setting
            continue
    return found


def set_function_setting(phrase: str, value: Any) -> None:
    """Set a setting that is a function, where the library is loaded."""
    if phrase == _FORMATTER:
        if "numpy" in sys.modules:
            numpy: Any = sys.modules["numpy"]
            numpy.set_printoptions(formatter=value)
    elif "pandas._config.config" in sys.modules:
        _set_pandas(sys.modules["pandas._config.config"], phrase.removeprefix(_OPTION), value)


# --- torch ---------------------------------------------------------------------------------------


def _read_torch(torch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (get, _) in _calls():
        try:
            found[name] = get(torch)
        except (
            AttributeError,
            RuntimeError,
        ):  # another version; set by both names
            continue
    # Only where the user has set it: asking torch for the default may initialise CUDA.
    scope = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if scope is not None:
        found["device"] = (scope.device.type, scope.device.index)
    return found


def _calls() -> Iterator[tuple[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]]]:
    yield from _CALLS.items()
    for switch in _SWITCHES:
        owner, _, name = switch.rpartition(".")

        def set_(torch: Any, value: Any, owner: str = owner, name: str = name) -> None:
            setattr(attrgetter(owner)(torch), name, value)

        yield switch, (attrgetter(switch), set_)
    for kind in _ATTENTION:

        def get(torch: Any, kind: str = kind) -> Any:
            return getattr(torch.backends.cuda, f"{kind}_enabled")()

        def enable(torch: Any, on: bool, kind: str = kind) -> None:
            getattr(torch.backends.cuda, f"enable_{kind}")(on)

        yield kind, (get, enable)


def _set_torch(found: Mapping[str, Any], device_now: Callable[[int | None], str]) -> Iterator[str]:
    torch: Any = torch_cuda.require()
    for name, (get, set_) in _calls():
        try:
            if name in found and get(torch) != found[name]:
                set_(torch, found[name])
        except (AttributeError, RuntimeError):
            yield f"torch's {name}"
    kind, ordinal = found.get("device", (None, None))
    if kind is None:
        return
    now = device_now(ordinal) if kind == "cuda" else kind
    if now == "cpu" and kind == "cuda":
        yield f"torch's default device ({kind if ordinal is None else f'cuda:{ordinal}'} is hidden)"
    else:
        torch.set_default_device(now if kind == "cuda" or ordinal is None else f"{kind}:{ordinal}")


# --- others --------------------------------------------------------------------------------------


def _read_numpy(numpy: Any) -> dict[str, Any]:
    options = numpy.get_printoptions()
    printing = {name: value for name, value in options.items() if isinstance(value, _PLAIN)}
    return {"printing": printing, "errors": numpy.geterr()}


def _formatters(numpy: Any) -> dict[str, Any]:
    formatter = numpy.get_printoptions()["formatter"]
    return {_FORMATTER: formatter} if formatter else {}


_FORMATTER, _OPTION = "numpy's formatter", "pandas's option "


def _functions_of_pandas(config: Any) -> dict[str, Any]:
    changed = _changed_in_pandas(config)
    return {f"{_OPTION}{name}": value for name, value in changed if callable(value)}


def _read_pandas(config: Any) -> dict[str, Any]:
    return {name: v for name, v in _changed_in_pandas(config) if isinstance(v, _PLAIN)}


def _changed_in_pandas(config: Any) -> Iterator[tuple[str, Any]]:
    for name, option in config._registered_options.items():
        value = config._global_config
        for part in name.split("."):
            value = value[part]
        if (isinstance(value, _PLAIN) or callable(value)) and value != option.defval:
            yield name, value


def _set_pandas(config: Any, option: str, value: Any) -> None:
    config.set_option(option, value)


def _set_matplotlib(matplotlib: Any, parameter: str, value: Any) -> None:
    matplotlib.rcParams[parameter] = value


def _read_matplotlib(matplotlib: Any) -> dict[str, Any]:
    at_start = matplotlib.rcParamsOrig
    return {
        name: value
        for name, value in dict.items(matplotlib.rcParams)
        if name not in _OF_FRONT_END and value != dict.get(at_start, name)
    }


def _filters() -> Iterator[tuple[Any, ...]]:
    """Return the filters of warnings, last first, as arguments of `warnings.filterwarnings`."""
    for action, message, category, module, line in reversed(warnings.filters):
        patterns = [getattr(p, "pattern", p) or "" for p in (message, module)]
        if isinstance(category, type):
            kind = category.__module__, category.__qualname__
            yield action, patterns[0], kind, patterns[1], line


def _filter_again(filters: list[tuple[Any, ...]]) -> None:
    if [*_filters()] == filters:
        return
    for action, message, (module, name), where, line in filters:
        category = getattr(sys.modules.get(module), name, None)
        if isinstance(category, type) and issubclass(category, Warning):
            warnings.filterwarnings(action, message, category, where, line)
