"""Read, write and restore the variables that choose devices."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpumagic.cuda import init_failure
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, WrittenVariable
from gpumagic.cuda.visible_devices import VARIABLES, variables
from gpumagic.errors import DeviceError


def now() -> dict[str, str | None]:
    """Return the current variables; None for one that is not set."""
    return variables(os.environ)


def write(change: Mapping[str, str | None]) -> None:
    """Write the variables of a choice; one that it does not name is as before all choices.

    Raises:
        DeviceError: they do not reach the process, as the user has replaced ``os.environ``.
    """
    if not isinstance(os.environ, os._Environ):
        raise DeviceError(
            "os.environ was replaced: what is written to it reaches neither CUDA nor child "
            "processes; change variables in place, by os.environ[NAME] = VALUE"
        )
    for name, value in changed_by(change).items():
        _note_written(name, WrittenVariable(_before(name), value))
        set_variable(name, value)


def _note_written(name: str, written: WrittenVariable) -> None:
    STATE.choice.variables = {**STATE.choice.variables, name: written}


def changed_by(change: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the variables as `write` would leave them."""
    return {name: change.get(name, _before(name)) for name in VARIABLES}


def _before(name: str) -> str | None:
    """Return a variable as it was before all choices, or as the user has written it since."""
    found = os.environ.get(name)
    last = STATE.choice.variables.get(name)
    return found if last is None or found != last.after else last.before


def set_variable(name: str, value: str | None) -> None:
    """Set an environment variable, or unset it for None, for this process and its children."""
    if torch_cuda.initialized():
        # torch 2.6 counts devices by the variable at the first call, and caches the count: call it
        # while the variable is still the one that CUDA has read.
        torch_cuda.require().cuda.device_count()
    init_failure.note_mask(os.environ)
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    init_failure.note_mask(os.environ)


def undo() -> dict[str, str | None]:
    """Undo all choices, except for a variable that the user has written since.

    Returns:
        The values of the variables that were changed by it.
    """
    chosen = now()
    write({})
    STATE.choice.variables = {}
    return {name: value for name, value in now().items() if value != chosen[name]}


# --- at other times ------------------------------------------------------------------------------


def at_process_start() -> dict[str, str | None]:
    """Return the variables at this process's start."""
    return variables(STATE.started_with)


def read_by_cuda() -> dict[str, str | None]:
    """Return the variables that CUDA has read; not observed, they are those before all choices."""
    then = STATE.init_environment()
    if then is not None:
        return variables(then)
    written = {name: each.before for name, each in STATE.choice.variables.items()}
    return {**now(), **written}


def start_from(values: Mapping[str, str | None]) -> None:
    """Take over, from the process that this one has replaced, the variables at its start.

    The variables of this process are those of the choice with which it was started again.
    """
    for name, value in values.items():
        STATE.started_with.pop(name, None)
        if value is not None:
            STATE.started_with[name] = value
        if value != (now := os.environ.get(name)):
            _note_written(name, WrittenVariable(value, now))
