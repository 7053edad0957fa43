"""Keep the variables of a cell in files, and restore them."""

from __future__ import annotations

import tempfile
from typing import IO, Any

from gpumagic.restart import variables as keep
from tests.restart.variables.runner import new_namespace

CELL = """
from users_module_of_keep import M
m = M(); shared = [1]; also = shared; both = [m, shared]
"""


def kept(cell: str, **options: Any) -> tuple[keep.Plan, list[IO[bytes]]]:
    """The variables of a cell in files, with what was planned."""
    namespace = new_namespace()
    exec(cell, namespace)
    variables = {name: value for name, value in namespace.items() if not name.startswith("__")}
    chosen = keep.plan(namespace, variables, variables, **options)
    return chosen, keep.write(chosen, create)


def create(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def restored(files: list[IO[bytes]]) -> tuple[dict[str, Any], keep.Restored]:
    """What comes back of it, in a new namespace."""
    namespace = new_namespace()
    outcome = keep.restore(
        namespace, files, existing={}, location="cpu", device_now=lambda _: "cpu"
    )
    return namespace, outcome
