"""The parts of a cell that certainly use no GPU memory, whatever the objects hold that they name.

A magic that only lists; an object's metadata, length, class or description; the import of what is
loaded; the definition of a function, which runs later if at all. What is left is looked up by name
(`gpumagic.memory.code_names`). Nothing is run.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from gpumagic.memory import code_syntax, code_values
from gpumagic.memory.code_syntax import UNKNOWN
from gpumagic.system import introspection

#: Magics of IPython's that use no variable but those that are named in their line by ``{}`` or $.
_LINE_MAGICS = {"pwd", "cd", "ls", "env", "set_env", "pip", "uv", "conda", "mamba", "config", "who"}
_LINE_MAGICS |= {"load_ext", "unload_ext", "reload_ext", "history", "hist", "lsmagic", "magic"}
_LINE_MAGICS |= {"quickref", "matplotlib", "dirs", "pushd", "popd", "bookmark", "cat", "mkdir"}
_LINE_MAGICS |= {
    "cp",
    "mv",
    "rm",
    "man",
    "pycat",
    "precision",
    "xmode",
    "colors",
    "pprint",
    "clear",
}
_CELL_MAGICS = {"writefile", "file", "html", "HTML", "markdown", "svg", "SVG", "latex"}
_CELL_MAGICS |= {"javascript", "js", "bash", "sh", "script", "system", "sx", "!"}
_SYSTEM = ("system", "getoutput", "getoutput_detect")
#: Libraries whose import, where they are not loaded, uses no object of the notebook.
_LIBRARIES = {"numpy", "pandas", "scipy", "sklearn", "matplotlib", "seaborn", "PIL", "tqdm"}
_LIBRARIES |= {"torch", "torchvision", "torchaudio", "transformers", "datasets", "einops", "yaml"}
_DESCRIBED = ("print", "repr", "str")
_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class HarmlessCode(ast.NodeTransformer):
    """Removes what is harmless from a cell's syntax tree.

    ``deferred`` has by name what runs only where this name is used: the body of a function, an
    object that the name was given.
    """

    def __init__(self, tree: ast.Module, names: Mapping[str, Any], verbs: Collection[str]) -> None:
        self._names = names
        self._verbs = verbs
        self._bound = Counter(code_syntax.bound_names(tree))
        #: The modules, and what is in them, that the cell imports.
        self._imported: dict[str, Any] = {}
        #: Whether the statement that is visited is within a function.
        self._in_function = False
        self._in_class = False
        self.deferred: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._note_import(node)

    def rest(self, statements: list[ast.stmt], *, runs: bool) -> ast.Module:
        """Return what is not harmless; with ``runs``, of functions that may be called."""
        self._in_function = runs
        body = [each for node in statements for each in _statements(self.visit(node))]
        return ast.fix_missing_locations(ast.Module(body, []))

    # --- objects that are named ------------------------------------------------------------------

    def _object(self, node: ast.AST | None) -> Any:
        """Return the object of a name, or of a module's attribute; `UNKNOWN` if that may change.

        Any name that the cell assigns may refer to another object when it is used.
        """
        if isinstance(node, ast.Name):
            if self._bound[node.id]:
                is_import = self._bound[node.id] == 1
                return self._imported.get(node.id, UNKNOWN) if is_import else UNKNOWN
            return self._names.get(node.id, vars(builtins).get(node.id, UNKNOWN))
        if isinstance(node, ast.Attribute):
            owner = self._object(node.value)
            if type(owner) is types.ModuleType:
                return introspection.module_attributes(owner).get(node.attr, UNKNOWN)
        return UNKNOWN

    def _is(self, node: ast.AST, *functions: str) -> bool:
        """Return whether a node is one of Python's own functions."""
        found = self._object(node)
        own = type(found) in (types.BuiltinFunctionType, type)
        return own and any(found is vars(builtins)[name] for name in functions)

    # --- expressions -----------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Remove a call that is harmless."""
        function, values = node.func, node.args
        if isinstance(function, ast.Attribute) and _is_shell(function.value):
            return self._magic(node, function.attr)
        only = values[0] if len(values) == 1 and not node.keywords else None
        found = UNKNOWN if only is None else self._object(only)
        if found is not UNKNOWN:
            if self._is(function, "id"):
                return _value()
            if self._is(function, "len") and code_values.has_known_length(found):
                return _value()
        if self._is(function, *_DESCRIBED):
            node.args = [each for each in values if not self._is_described(each)]
        elif self._is(function, "isinstance") and len(values) == 2 and not node.keywords:
            found, kind = map(self._object, values)
            known = found is not UNKNOWN and code_values.has_known_class(found)
            if known and code_values.is_known_class(kind):
                return _value()
        elif isinstance(function, ast.Attribute) and not node.keywords:
            owner = self._object(function.value)
            constants = all(isinstance(each, ast.Constant) for each in values)
            if constants and code_values.has_metadata(owner, function.attr, called=True):
                return _value()
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Remove an object's metadata, and the name of its class."""
        if isinstance(node.ctx, ast.Load):
            if code_values.has_metadata(self._object(node.value), node.attr):
                return _value()
            if node.attr in ("__name__", "__qualname__") and self._is_class(node.value):
                return _value()
            found = self._object(node)
            if node.attr == "__version__" and found is not UNKNOWN:
                return _value()
            if code_values.is_constant(found):
                return _value()
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Remove the comparison of objects' identities."""
        identity = all(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops)
        sides = (node.left, *node.comparators)
        if identity and all(
            isinstance(each, ast.Constant)
            or self._object(each) is not UNKNOWN
            or self._is_class(each)
            for each in sides
        ):
            return _value()
        return self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        """Remove the description of an object in a text."""
        if node.format_spec is None and self._is_described(node.value):
            return ast.Constant("")
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Remove the display of an object that is described without its content."""
        return ast.Pass() if self._is_described(node.value) else self.generic_visit(node)

    def _is_class(self, node: ast.AST) -> bool:
        """Return whether it is ``type(x)``."""
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            return False
        found = self._object(node.args[0])
        return found is not UNKNOWN and self._is(node.func, "type")

    def _is_described(self, node: ast.AST) -> bool:
        """Return whether to print what a node is uses nothing of an object's content."""
        if isinstance(node, ast.Call) and self._is_class(node):
            return code_values.is_known_class(type(self._object(node.args[0])))
        found = self._object(node)
        return found is not UNKNOWN and code_values.has_known_description(found)

    # --- magics ----------------------------------------------------------------------------------

    def _magic(self, node: ast.Call, called: str) -> ast.AST:
        """Remove a magic, or a command of the system, that uses no tensor."""
        values = [each.value for each in node.args if isinstance(each, ast.Constant)]
        texts = [each for each in values if isinstance(each, str)]
        if len(texts) != len(node.args):
            return self.generic_visit(node)
        if called in _SYSTEM and len(texts) == 1:
            return self._expanded(texts[0])
        if called == "run_cell_magic" and len(texts) == 3 and texts[0] in _CELL_MAGICS:
            return self._expanded(texts[1])
        if called == "run_line_magic" and len(texts) == 2:
            name, line = texts
            words = line.split() or [""]
            if name in ("pinfo", "pinfo2") and self._is_described_text(line):
                return _value()
            # %gpu --keep too: a restart writes what is parked as it is.
            if name in (*_LINE_MAGICS, "gpu") or (
                name == "gpumem" and words[0] in ("", *self._verbs)
            ):
                return self._expanded(line)
        return self.generic_visit(node)

    def _is_described_text(self, line: str) -> bool:
        if line.startswith("%"):
            return True
        try:
            return self._is_described(ast.parse(line.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            return False

    def _expanded(self, line: str) -> ast.AST:
        """Return the expressions in a magic's line, which IPython evaluates."""
        parts: list[ast.expr] = [_value()]
        for text in code_syntax.expressions(line):
            try:
                parts.append(ast.parse(text.strip(), mode="eval").body)
            except (SyntaxError, ValueError):  # IPython leaves the line as it is
                break
        visited = [self.visit(each) for each in parts]
        return visited[0] if len(visited) == 1 else ast.Tuple(visited, ast.Load())

    # --- names that the cell gives a value -------------------------------------------------------

    def _defer(self, name: str, *what: ast.stmt) -> None:
        self.deferred.setdefault(name, []).extend(what)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Defer a name that is only given another name's object, or a function without a name."""
        targets = [each.id for each in node.targets if isinstance(each, ast.Name)]
        if not self._at_top or len(targets) < len(node.targets):
            return self.generic_visit(node)
        function = node.value if isinstance(node.value, ast.Lambda) else None
        if function is not None or self._object(node.value) is not UNKNOWN:
            defaults = [] if function is None else code_syntax.defaults(function.args)
            used = ast.Expr(ast.Tuple([node.value], ast.Load()))
            for name in targets:
                self._defer(name, used)
            return self._block(defaults)
        return self.generic_visit(node)

    @property
    def _at_top(self) -> bool:
        return not self._in_function and not self._in_class

    def _block(self, values: list[ast.expr], *more: ast.stmt) -> ast.stmt:
        """Return a statement that evaluates values, except names, and runs more."""
        body = [ast.Expr(v) for v in values if not isinstance(v, (ast.Name, ast.Constant))]
        visited = [each for node in body for each in _statements(self.visit(node))]
        return ast.If(ast.Constant(True), [*visited, *more, ast.Pass()], [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Defer a function's body."""
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Defer a function's body."""
        return self._function(node)

    def _function(self, node: _Function, *, of: str | None = None) -> ast.AST:
        """Defer a function's body, or as a method of a class until the class is used."""
        annotations = [node.returns]
        for argument in code_syntax.arguments(node.args):
            annotations.append(argument.annotation)
            argument.annotation = None
        node.returns = None
        evaluated: list[ast.expr] = [a for a in annotations if a and not self._is_annotation(a)]
        effects = [each for each in node.decorator_list if not self._is_decorator(each, of)]
        if effects or (of is None and not self._at_top):
            was, self._in_function = self._in_function, True
            visited = self.generic_visit(node)
            self._in_function = was
            assert isinstance(visited, ast.stmt)
            return self._block(evaluated, visited)
        arguments = code_syntax.call_arguments(node.decorator_list)
        node.decorator_list = []
        self._defer(of or node.name, node)
        return self._block([*evaluated, *code_syntax.defaults(node.args), *arguments])

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Run a class's body without its methods, which are deferred."""
        effects = [each for each in node.decorator_list if not self._is_decorator(each, None)]
        if effects or not self._at_top:
            return self.generic_visit(node)
        arguments = code_syntax.call_arguments(node.decorator_list)
        node.decorator_list = []
        node.bases = [b for b in node.bases if not code_values.is_known_base(self._object(b))]
        node.keywords = [self.visit(each) for each in node.keywords]
        node.bases = [self.visit(each) for each in node.bases]
        self._in_class = True
        body: list[ast.stmt] = [ast.Pass()]
        for each in node.body:
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body += _statements(self._function(each, of=node.name))
            else:
                body += _statements(self.visit(each))
        self._in_class = False
        node.body = body
        return self._block(arguments, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Remove an annotation that names only classes."""
        if self._is_annotation(node.annotation):
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def _is_annotation(self, node: ast.AST) -> bool:
        """Return whether an annotation only names classes of known kinds."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._is_annotation(node.left) and self._is_annotation(node.right)
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(map(self._is_annotation, node.elts))
        if isinstance(node, ast.Subscript):
            found = self._object(node.value)
            place = introspection.module_of(found if type(found) is type else type(found))
            known = place.partition(".")[0] in ("builtins", "typing", "collections")
            return known and found is not UNKNOWN and self._is_annotation(node.slice)
        found = self._object(node)
        known = code_values.is_known_class(found) or code_values.is_typing(found)
        return isinstance(node, ast.Constant) or known

    def _is_decorator(self, node: ast.AST, of: str | None) -> bool:
        """Return whether a decorator does nothing when it is applied."""
        if of and isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter"):
            return isinstance(node.value, ast.Name)
        function = node.func if isinstance(node, ast.Call) else node
        return code_values.is_decorator_without_effect(self._object(function))

    # --- imports ---------------------------------------------------------------------------------

    def _note_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Note the objects that an import of loaded modules gives names to."""
        for each in node.names:
            found: Any = None
            if isinstance(node, ast.ImportFrom):
                name = each.asname or each.name
                found = code_syntax.imported_from(node, each.name)
            elif each.asname:
                name, found = each.asname, sys.modules.get(each.name, UNKNOWN)
            else:
                name = each.name.partition(".")[0]
                found = sys.modules.get(name, UNKNOWN)
            if found is not UNKNOWN:
                self._imported[name] = found

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """Remove the import of modules that are loaded, or of libraries."""
        if self._at_top:
            left = []
            for each in node.names:
                if not code_syntax.is_loaded(each.name) and not _is_library(each.name):
                    left.append(each)
                    continue
                name = each.asname or each.name.partition(".")[0]
                self._defer(name, ast.Import([each]))
            return ast.Import(left) if left else ast.Pass()
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Remove the import of what loaded modules have, or from libraries."""
        module = node.module or ""
        names = [each.name for each in node.names]
        if not self._at_top or node.level or "*" in names:
            return node
        loaded = all(code_syntax.imported_from(node, name) is not UNKNOWN for name in names)
        if not loaded and not (_is_library(module) and not code_syntax.is_loaded(module)):
            return node
        for each in node.names:
            only = ast.ImportFrom(module, [each], 0)
            self._defer(each.asname or each.name, only)
        return ast.Pass()


def _value() -> ast.expr:
    """Return an expression in place of one that was removed: a name that no variable has."""
    return ast.Name("<value>", ast.Load())


def _statements(visited: Any) -> list[ast.stmt]:
    return visited if isinstance(visited, list) else [visited]


def _is_shell(node: ast.AST) -> bool:
    return ast.unparse(node) == "get_ipython()"


def _is_library(name: str) -> bool:
    """Return whether the import of a module uses no object of the notebook."""
    root = name.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names
