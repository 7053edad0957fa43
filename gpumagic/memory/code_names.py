"""Which code certainly uses no GPU memory: its names are looked up, nothing is run.

A cell that names only plain values, functions of Python's own modules and functions of the user's
that do the same, leaves parked memory in the host. Unknown names may use it. What is harmless
whatever it names was removed before (`gpumagic.memory.harmless_code`).
"""

from __future__ import annotations

import ast
import dis
import sys
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from gpumagic.memory import code_values
from gpumagic.memory.harmless_code import HarmlessCode
from gpumagic.system import introspection

#: Of Python's own modules: those that give access to any object of the process, or run any code.
_UNSAFE_MODULES = {
    *("gc", "sys", "inspect", "builtins", "ctypes", "threading", "_thread", "asyncio", "queue"),
    *("concurrent", "multiprocessing", "importlib", "runpy", "code", "codeop", "pdb", "bdb"),
    *("cProfile", "profile", "timeit", "pickle", "copy", "types", "weakref", "traceback"),
    *(
        "atexit",
        "signal",
        "faulthandler",
        "tracemalloc",
        "sched",
        "dis",
        "unittest",
        "doctest",
        "__main__",
    ),
}
#: Modules whose objects refer to no others.
_VALUES = {"datetime", "decimal", "fractions", "uuid", "pathlib", "re", "zoneinfo"}
#: Libraries whose functions use no tensor that is not passed to them.
_LIBRARIES = {"numpy"}
#: Functions that run code, or access objects that are not passed to them.
_UNSAFE_FUNCTIONS = {
    *("eval", "exec", "compile", "__import__", "globals", "locals", "vars", "dir", "getattr"),
    *("setattr", "delattr", "hasattr", "breakpoint", "input", "help"),
}
#: Attributes that may lead from a tensor in host memory to the GPU.
_UNSAFE_ATTRIBUTES = {"cuda", "to", "backward", "pin_memory", "new_tensor", "new_empty"}
_UNSAFE_ATTRIBUTES |= {"new_zeros", "new_ones", "new_full", "share_memory_"}
_SPECIAL_ATTRIBUTES = {
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__version__",
    "__file__",
}
_CONTAINERS = (list, tuple, set, frozenset)
#: The most values of containers that are checked.
_MOST = 10_000
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}


def uses_no_gpu_memory(source: str, names: Mapping[str, Any], *, verbs: Collection[str]) -> bool:
    """Return whether a cell certainly uses no tensor.

    ``source`` is Python, as IPython has transformed the cell; ``verbs`` are those of ``%gpumem``,
    which use none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cell itself shows them
        try:
            tree = ast.parse(source)
            _compiled(tree)
        except (SyntaxError, ValueError, RecursionError):  # the cell does not run
            return True
        try:
            return _Lookup(names, HarmlessCode(tree, names, verbs)).allows_cell(tree)
        except RecursionError:
            return False


def _compiled(tree: ast.Module) -> types.CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    # Not with this module's own imports from __future__: annotations are evaluated.
    return cast(types.CodeType, compile(tree, "<cell>", "exec", flags, dont_inherit=True))


class _Lookup:
    """Looks up the names of code, and of the functions that they name."""

    def __init__(self, names: Mapping[str, Any], harmless: HarmlessCode) -> None:
        self._names = names
        self._harmless = harmless
        self._seen: set[int] = set()
        self._values = 0

    def allows_cell(self, tree: ast.Module) -> bool:
        """Return whether all that a cell names, and uses, uses no tensor."""
        return self._allows_code(_compiled(self._harmless.rest(tree.body, runs=False)))

    def _allows_code(self, code: types.CodeType) -> bool:
        return all(
            self._allows(instruction)
            for each in _nested(code)
            for instruction in dis.get_instructions(each)
        )

    def _allows(self, instruction: dis.Instruction) -> bool:
        name, operation = str(instruction.argval), instruction.opname
        if operation in _LOADS:
            return self._allows_name(name)
        if operation == "IMPORT_NAME":
            return _is_known_module(name)
        if operation.startswith("LOAD_") and ("ATTR" in operation or "METHOD" in operation):
            special = name.startswith("__") and name not in _SPECIAL_ATTRIBUTES
            return not special and name not in _UNSAFE_ATTRIBUTES
        return True

    def _allows_name(self, name: str) -> bool:
        # What the cell gives the name, and what had it before: a function may use either.
        given = self._harmless.deferred.pop(name, [])
        if given and not self._allows_code(_compiled(self._harmless.rest(given, runs=True))):
            return False
        if name in self._names:
            return self._is_plain(self._names[name])
        # Any other is assigned by the cell, from what it may use; or a NameError.
        return name not in _UNSAFE_FUNCTIONS

    def _is_plain(self, value: Any) -> bool:
        self._values += 1
        kind = type(value)
        if self._values > _MOST:
            return False
        if code_values.is_constant(value):
            return True
        if id(value) in self._seen:
            return True
        self._seen.add(id(value))
        if any(kind is container for container in _CONTAINERS):
            return all(map(self._is_plain, list(value)))
        if kind is dict:
            return all(self._is_plain(k) and self._is_plain(v) for k, v in list(value.items()))
        if kind is types.ModuleType:
            return _is_known_module(str(introspection.module_attributes(value).get("__name__")))
        if kind is types.FunctionType:
            return self._is_plain_function(value)
        if kind is types.BuiltinFunctionType:
            owner = value.__self__
            return type(owner) is types.ModuleType and self._is_plain(owner)
        if kind is type:
            return _is_known_module(introspection.module_of(value))
        if code_values.is_tensor(value):
            return code_values.is_plain_host_tensor(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is introspection.module_attributes(numpy).get("ndarray"):
            return not introspection.slot(value, "dtype").hasobject
        return introspection.module_of(kind).partition(".")[0] in _VALUES

    def _is_plain_function(self, function: types.FunctionType) -> bool:
        if function.__globals__ is not self._names:
            return _is_known_module(str(function.__globals__.get("__name__")))
        inside = [function.__defaults__, function.__kwdefaults__, vars(function)]
        try:
            inside += [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a cell that is not filled yet
            return False
        return all(map(self._is_plain, inside)) and self._allows_code(function.__code__)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code and all code within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _nested(each)


def _is_known_module(name: str) -> bool:
    root = name.partition(".")[0]
    if root in _UNSAFE_MODULES:
        return False
    return root in _LIBRARIES or root in sys.stdlib_module_names
