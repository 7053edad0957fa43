"""Save a choice of GPUs for ordinary restarts of a kernel (``%gpu SPEC --save``).

A front end restarts a kernel with the environment of its first launch, but with the same connection
file. The choice is saved in the same folder, in a file of mode 0600 that must belong to this user.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from gpumagic.errors import DeviceError
from gpumagic.system.trusted_file import open_own

_PREFIX, _SUFFIX = "gpumagic-", ".saved"

Variables = Mapping[str, str | None]


def file_of(connection_file: str) -> Path:
    """Return the path of the file with a kernel's saved choice."""
    path = Path(connection_file)
    return path.with_name(f"{_PREFIX}{path.name}{_SUFFIX}")


def save(connection_file: str, spec: str, variables: Variables) -> None:
    """Save the variables of a choice, and its spec.

    Raises:
        DeviceError: the file cannot be written.
    """
    path = file_of(connection_file)
    try:
        _remove_orphans(path.parent)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"spec": spec, "variables": dict(variables)}, file)
    except OSError as error:
        raise DeviceError(f"the choice cannot be saved: {error}") from None


def load(connection_file: str) -> tuple[str, Variables] | None:
    """Return the saved spec and variables; None if there are none, or not of this user alone."""
    try:
        with open_own(file_of(connection_file), private=True, follow=False) as file:
            saved = json.load(file)
            variables = {str(name): value for name, value in saved["variables"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return str(saved.get("spec")), variables


def forget(connection_file: str) -> None:
    """Remove the saved choice of a kernel.

    Raises:
        DeviceError: the file cannot be removed.
    """
    try:
        file_of(connection_file).unlink(missing_ok=True)
    except OSError as error:
        raise DeviceError(f"the saved choice cannot be removed: {error}") from None


def _remove_orphans(folder: Path) -> None:
    """Remove the saved choices of kernels whose connection files were removed."""
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        # Another user's file in a shared folder, or not a valid file name.
        with contextlib.suppress(OSError, ValueError):
            if not path.with_name(path.name[len(_PREFIX) : -len(_SUFFIX)]).exists():
                path.unlink(missing_ok=True)
