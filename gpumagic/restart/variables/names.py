"""Find the globals that a function uses, and the names of a notebook that imports have bound."""

from __future__ import annotations

import ast
import dis
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.system import introspection

#: Instructions that look a name up among the globals; the second one in the body of a class.
_LOOKUPS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def global_names(code: CodeType) -> set[str]:
    """Return the global names that a code object, with those nested in it, looks up.

    Names of attributes are not included.
    """
    found, waiting = set[str](), [code]
    while waiting:
        current = waiting.pop()
        found.update(
            instruction.argval
            for instruction in dis.get_instructions(current)
            if instruction.opname in _LOOKUPS
        )
        waiting += [const for const in current.co_consts if isinstance(const, CodeType)]
    return found


#: Where an imported name comes from: a module, and its attribute, or None for the module itself.
Import = tuple[str, "str | None"]


def imports(variables: Mapping[str, Any], sources: Iterable[str]) -> dict[str, Import]:
    """Return the names among ``variables`` that an import statement can bind again.

    Modules, and classes and functions of modules; other objects if one of the ``sources`` imports
    them. A name with a dot is a submodule that its package has only once it was imported.
    """
    found: dict[str, Import] = {}
    for name, value in variables.items():
        if isinstance(value, ModuleType):
            # Past the `__getattr__` of a module that loads when it is first used.
            module = introspection.module_attributes(value).get("__name__")
            if isinstance(module, str) and importable(module):
                found[name] = (module, None)
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            module, qualified = value.__module__, value.__qualname__
            if _is_attribute(value, module, qualified):
                found[name] = (module, qualified)
    for name, (module, attribute) in _imported(sources):
        if "." in name and name.partition(".")[0] in found and importable(name):
            found[name] = (name, None)
        if name in found or name not in variables or attribute is None:
            continue
        if _is_attribute(variables[name], module, attribute):
            found[name] = (module, attribute)
    return found


#: Immutable objects, and those with a name of their own: they need no identity.
_CONSTANT: tuple[type, ...] = (
    *(type, ModuleType, types.FunctionType, types.BuiltinFunctionType, type(None), type(...)),
    *(bool, int, float, complex, str, bytes, tuple, frozenset, range),
)


def is_users_data(value: Any, place: Import) -> bool:
    """Return whether an import bound data of a module of the user's, not a class or function."""
    file = getattr(sys.modules.get(place[0]), "__dict__", {}).get("__file__")
    data = not isinstance(value, (type, ModuleType, types.FunctionType, types.BuiltinFunctionType))
    return place[1] is not None and data and tracebacks.is_users(file)


def data_of_modules() -> dict[int, list[tuple[str, str]]]:
    """Return where in the user's modules mutable objects are, by their identities."""
    found: dict[int, list[tuple[str, str]]] = {}
    for name, module in tracebacks.users_modules().items():
        if name == "__main__":
            continue
        for attribute, value in list(vars(module).items()):
            if not attribute.startswith("__") and not isinstance(value, _CONSTANT):
                found.setdefault(id(value), []).append((name, attribute))
    return found


def importable(module: str) -> bool:
    """Return whether a module was imported, and the import system finds it again."""
    if module == "__main__" or module not in sys.modules or not _has_file(module):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # created by code: it has no specification
        return False


def _has_file(module: str) -> bool:
    """Return whether the file that a module was read from, if there was one, is still there."""
    spec = getattr(sys.modules.get(module), "__dict__", {}).get("__spec__")
    loader = spec.loader if type(spec) is ModuleSpec else None
    return type(loader) is not SourceFileLoader or Path(loader.path).exists()


def _is_attribute(value: Any, module: Any, attribute: str) -> bool:
    if not isinstance(module, str) or module in ("__main__", "builtins"):
        return False
    attributes = getattr(sys.modules.get(module), "__dict__", {})
    return attributes.get(attribute, _NOTHING) is value and _has_file(module)


_NOTHING = object()


def _imported(sources: Iterable[str]) -> Iterator[tuple[str, Import]]:
    """Yield each name that a ``from … import`` in a source binds; ``import a.b`` as ``a.b``."""
    for source in sources:
        if "import" not in source:
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # another language, or never run
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                dotted = [alias.name for alias in node.names if "." in alias.name]
                yield from ((name, (name, None)) for name in dotted)
            if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
                continue
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, (node.module, alias.name)
                    continue
                module = getattr(sys.modules.get(node.module), "__dict__", {})
                for name in module.get("__all__", [n for n in module if not n.startswith("_")]):
                    yield name, (node.module, name)
