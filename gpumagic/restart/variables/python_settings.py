"""Process-wide settings of Python: limits, garbage collection, decimal, logging.

They are read as plain data, and set again in the process that replaces this one.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpumagic.system import introspection


def _decimals() -> Any:
    """Return the context of `decimal`; None for the default one."""
    decimal: Any = sys.modules.get("decimal")
    if not hasattr(decimal, "getcontext"):
        return None
    context = decimal.getcontext().copy()
    context.clear_flags()
    return None if repr(context) == repr(decimal.DefaultContext) else context


def _set_decimals(context: Any) -> None:
    import decimal

    if context is not None:
        decimal.setcontext(context)


def _name_levels(names: Mapping[int, str]) -> None:
    for level, name in names.items():
        logging.addLevelName(level, name)


#: Functions that get and set each.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "thresholds of it": (gc.get_threshold, lambda numbers: gc.set_threshold(*numbers)),
    "default timeout of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "decimal context": (_decimals, _set_decimals),
    "disabled log levels": (lambda: logging.root.manager.disable, logging.disable),
    "names of log levels": (
        lambda: logging._levelToName.copy(),
        _name_levels,
    ),
}
if hasattr(sys, "set_int_max_str_digits"):  # from Python 3.10.7 on
    _SETTINGS["digits of integers"] = (sys.get_int_max_str_digits, sys.set_int_max_str_digits)


def capture() -> dict[str, Any]:
    """Return the settings of this process, as plain data."""
    return {
        **{name: get() for name, (get, _) in _SETTINGS.items()},
        "loggers": dict(_loggers()),
        "handlers": dict(_handlers()),
    }


def restore(found: Mapping[str, Any]) -> list[str]:
    """Set them again; return a phrase for each logger that has lost its handlers."""
    for name, (get, set_) in _SETTINGS.items():
        if get() != found[name]:
            set_(found[name])
    for name, (level, propagate, disabled) in found["loggers"].items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
    return [
        f"the {'root logger' if not name else f'logger {name}'}'s {', '.join(kinds)}"
        for name, kinds in found["handlers"].items()
        if not logging.getLogger(name).handlers
    ]


def _all_loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield "", logging.root
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger):
            yield name, logger


def _loggers() -> Iterator[tuple[str, tuple[int, bool, bool]]]:
    """Return the settings of the root logger, and of others that differ from the default."""
    for name, logger in _all_loggers():
        told = logger.level, bool(logger.propagate), bool(logger.disabled)
        if not name or told != (logging.NOTSET, True, False):
            yield name, told


def _handlers() -> Iterator[tuple[str, list[str]]]:
    """Return the handler classes of loggers, but for those that libraries set up when imported.

    These are loggers of a package that is imported, or has defined the handler's class: torch makes
    some for modules that it imports only later.
    """
    for name, logger in _all_loggers():
        package = name.partition(".")[0]
        kinds = [
            introspection.name_of(kind)
            for kind in map(type, logger.handlers)
            if kind is not logging.NullHandler
            and introspection.module_of(kind).partition(".")[0] != package
        ]
        if kinds and package not in sys.modules:
            yield name, kinds
