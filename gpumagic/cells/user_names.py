"""Which names of the notebook's namespace the user has bound: the others are not variables."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.system.shell import Shell

#: Names that IPython binds to outputs, and a notebook to values that nobody needs.
UNDERSCORES = ("_", "__", "___")
#: Names that Python, a front end, a debugger or torch's compiler binds. IPython's own are known by
#: what they are bound to.
_OTHERS = re.compile(
    r"_exit_code|_VSCODE_\w*|__vsc_\w*|___\w*|__pdb_convenience_variables"
    r"|__(name|doc|package|loader|spec|builtins?|warningregistry|(\w+_)?annotat\w+)__"
    r"|__(compiled_fn|resume_at|import|builtins_dict|gen_rand_values|comprehension|warnings_warn)_"
    r"\w*"
)


def is_bound_by_user(shell: Shell, name: str, value: object) -> bool:
    """Return whether the user has bound a name to its value; IPython has bound ``_5``, for one."""
    hidden, nothing = shell.user_ns_hidden, object()
    if hidden.get(name, nothing) is value:
        return False
    if name in UNDERSCORES:  # as for _ in loader; before any output IPython has them nowhere else
        return getattr(shell.displayhook, name, nothing) is not value
    return not _OTHERS.fullmatch(name)


def variables(shell: Shell) -> dict[str, Any]:
    """Return the user's variables, with modules, functions and names that begin with ``_``."""
    found = shell.user_ns.items()
    return {name: value for name, value in found if is_bound_by_user(shell, name, value)}
