"""Which code certainly uses no GPU memory: its names are looked up, nothing is run.

A cell that names only plain values, functions of Python's own modules and functions of the user's
that do the same, leaves parked memory in the host. Unknown names may use it.
"""

from __future__ import annotations

import ast
import builtins
import dis
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

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
#: Magics of IPython's that use no tensor.
_LINE_MAGICS = {"pwd", "cd", "ls", "env", "pip", "conda", "config", "who"}
_LINE_MAGICS |= {"load_ext", "unload_ext", "reload_ext"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...))
_CONTAINERS = (list, tuple, set, frozenset)
#: The most values of containers that are checked.
_MOST = 10_000
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_DELETES = {"DELETE_NAME", "DELETE_GLOBAL"}


def uses_no_gpu_memory(source: str, names: Mapping[str, Any], *, verbs: Collection[str]) -> bool:
    """Return whether a cell certainly uses no tensor.

    ``source`` is Python, as IPython has transformed the cell; ``verbs`` are those of ``%gpumem``,
    which use none.
    """
    try:
        tree = _WithoutMagics(verbs).visit(ast.parse(source))
        code = compile(
            ast.fix_missing_locations(tree), "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
    except (SyntaxError, ValueError, RecursionError):  # the cell does not run
        return True
    return _Lookup(names).allows(code)


class _WithoutMagics(ast.NodeTransformer):
    """Replaces calls of magics and of the system's commands that use no tensor."""

    def __init__(self, verbs: Collection[str]) -> None:
        self._verbs = verbs

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        if not isinstance(function, ast.Attribute) or ast.unparse(function.value) != (
            "get_ipython()"
        ):
            return self.generic_visit(node)
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        known = function.attr in ("system", "getoutput", "getoutput_detect")
        if function.attr == "run_line_magic" and len(texts) == len(node.args) == 2:
            name, words = texts[0], str(texts[1]).split() or [""]
            # %gpu --keep too: a restart writes what is parked as it is.
            known = name in (*_LINE_MAGICS, "gpu") or (
                name == "gpumem" and words[0] in ("", *self._verbs)
            )
        return ast.Constant(None) if known else self.generic_visit(node)


class _Lookup:
    """Looks up the names of code, and of the functions that they name."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._seen: set[int] = set()
        self._values = 0

    def allows(self, code: types.CodeType, names: Mapping[str, Any] | None = None) -> bool:
        """Return whether all that the code names uses no tensor."""
        space = self._names if names is None else names
        assigned: set[str] = set()
        for each in _nested(code):
            instructions = list(dis.get_instructions(each))
            assigned.update(str(i.argval) for i in instructions if i.opname.startswith("STORE_"))
            for instruction in instructions:
                if not self._allows(instruction, space, assigned):
                    return False
        return True

    def _allows(
        self, instruction: dis.Instruction, space: Mapping[str, Any], assigned: set[str]
    ) -> bool:
        name, operation = str(instruction.argval), instruction.opname
        if operation in _LOADS:
            if name in space:
                return self._is_plain(space[name])
            if hasattr(builtins, name):
                return name not in _UNSAFE_FUNCTIONS
            return True  # assigned by the cell, from what it may use; or a NameError
        if operation == "IMPORT_NAME":
            return _is_known_module(name)
        if operation in _DELETES:
            return True
        if operation.startswith("LOAD_") and ("ATTR" in operation or "METHOD" in operation):
            return not name.startswith("__")
        return True

    def _is_plain(self, value: Any) -> bool:
        self._values += 1
        kind = type(value)
        if self._values > _MOST:
            return False
        if any(kind is plain for plain in _PLAIN):
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
        return all(map(self._is_plain, inside)) and self.allows(function.__code__)


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
