"""Notebooks, executed in kernels of their own.

nbformat takes a second or two of CPU time to import, which most tests need not spend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.support.kernels import PATIENCE, manage


class Client(NotebookClient):
    """nbclient, whose kernels are forked where that is the same."""

    def create_kernel_manager(self) -> KernelManager:
        return manage(super().create_kernel_manager())


def execute_notebook(
    cells: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    allow_errors: bool = False,
    timeout: float = PATIENCE,
) -> nbformat.NotebookNode:
    """A notebook of code cells, executed by nbclient as papermill and nbconvert do it."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = Client(
        notebook, timeout=int(timeout), kernel_name="python3", allow_errors=allow_errors
    )
    executed: nbformat.NotebookNode = client.execute(env=dict(environment), cwd=str(cwd))
    return executed
