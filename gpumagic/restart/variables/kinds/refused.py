"""What cannot be kept, in words: it belongs to this process, or ends with it."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from typing import Any, NoReturn

from gpumagic.restart.variables.kinds import rules
from gpumagic.restart.variables.kinds.rules import Rule
from gpumagic.system.introspection import is_a


class Refused(pickle.PicklingError):
    """``thing`` cannot be kept, in words that say what it is; None: the data of a variable."""

    def __init__(self, words: str, thing: object = None) -> None:
        super().__init__(words)
        self.thing = thing


def _as(words: str) -> Rule:
    def refuse(value: object, _: object) -> NoReturn:
        raise Refused(words, value)

    return refuse


_ON_GPU = _as("a stream or event of a GPU")
# Other objects of multiprocessing refuse themselves.
_BY_NAME = _as("shared memory or a connection of multiprocessing")
RULES = {
    "torch:Stream": _ON_GPU,
    "torch:Event": _ON_GPU,
    "torch.utils.data.dataloader:_BaseDataLoaderIter": _as("an iterator of a DataLoader"),
    "multiprocessing.shared_memory:SharedMemory": _BY_NAME,
    "multiprocessing.connection:_ConnectionBase": _BY_NAME,
    "multiprocessing.managers:BaseProxy": _BY_NAME,
    "threading:Thread": _as("a thread"),
    "ipywidgets.widgets.widget:Widget": _as("a widget"),
    # As a `tempfile.TemporaryDirectory` has.
    "weakref:finalize": _as("it is cleaned up when this process ends"),
    "builtins:memoryview": _as("cannot pickle 'memoryview' object"),  # cloudpickle makes bytes
}
#: What may have ended, and how one sees it. Nothing is lost with it then.
_ENDING: dict[str, Callable[[Any], bool]] = {
    "_io:_IOBase": lambda file: file.closed,
    "threading:Thread": lambda thread: thread.ident is not None and not thread.is_alive(),
    "tqdm.std:tqdm": lambda bar: getattr(bar, "disable", False),
}


def is_over(value: Any) -> bool:
    """Return whether nothing is lost with this: a file, a thread or a bar that has ended."""
    return any(has_ended(value) for has_ended in rules.of(type(value), _ENDING))


def type_in_words(value: Any) -> str:
    """Return the type of an object of a library, in words; "" for the notebook's and Python's."""
    kind = value if is_a(value, type, types.FunctionType) else type(value)
    package = kind.__module__.split(".")[0]
    if package in ("__main__", "builtins", "types", "functools", "gpumagic"):
        return ""
    return f"{kind.__qualname__.split('.')[0]} of {package.removeprefix('_')}"
