"""The state of this process: the choice that ``%gpu`` made, and facts about CUDA.

It is in `STATE`, but for the files that are locked as claims (`selection.claims`), what the gate
has replaced in torch (`selection.soft_off`), and random states that wait for CUDA to start
(`pytorch.gpu_random`). A `Choice`, claims and gate can be undone:
`selection.choice_undo` does that, for `%%gpu` and for a choice that fails. The other fields are
facts: what has happened to CUDA in a process does not change until the process ends.

Caches are in other modules: the driver's library (`driver`), what NVML has read of lost devices
(`nvml`), whether this is the first pid namespace (`processes`), torch's streams
(`pytorch.streams`), whether the machine has a GPU (`no_gpu`).

Imported when the extension loads: imports nothing of the package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class WrittenVariable(NamedTuple):
    """An environment variable that choices have written; None for a variable that is not set."""

    #: The value before the first choice.
    before: str | None
    #: The value that the last choice wrote.
    after: str | None


@dataclass(frozen=True, eq=False, repr=False)
class ThreadCount:
    """A number of CPU threads that was set; compared by identity, so that each setting is a change.

    ``before`` is torch's number before the first choice, ``current`` the one after the last.
    """

    before: int
    current: int


class AutoChoice(NamedTuple):
    """What ``auto`` chose, the UUIDs, and what was required of them (`selection.auto.Wants`)."""

    uuids: tuple[str, ...]
    wants: Any


@dataclass(eq=False, repr=False)
class Choice:
    """What ``%gpu`` has changed in this process; a change replaces a value, and changes none."""

    #: By name.
    variables: Mapping[str, WrittenVariable] = field(default_factory=dict)
    threads: ThreadCount | None = None
    #: What ``auto`` chose last.
    auto: AutoChoice | None = None


@dataclass(eq=False, repr=False)
class InitFailure:
    """Whether CUDA has failed to initialise; see `gpumagic.cuda.init_failure`."""

    #: Whether CUDA's runtime has failed to initialise; it does not try again in this process.
    failed: bool = False
    #: Whether CUDA may have failed to initialise, and the runtime was not queried since.
    suspected: bool = False
    #: Whether all devices were hidden while torch was loaded: the likely cause of a failure.
    hidden: bool = False
    #: Values of ``CUDA_VISIBLE_DEVICES`` while torch was loaded, until the runtime is queried.
    masks: set[str] = field(default_factory=set)
    #: The runtime's error in a forked copy of this process.
    reason: str | None = None


def _environment_at_start() -> dict[str, str]:
    """Return the environment that this process was started with.

    On Linux ``/proc/self/environ`` has it, also after changes; elsewhere the current one is used.
    """
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


@dataclass(eq=False, repr=False)
class ProcessState:
    """The state of one process; see the module's docstring."""

    choice: Choice = field(default_factory=Choice)
    #: The environment at the process's start.
    started_with: dict[str, str] = field(default_factory=_environment_at_start)
    #: Whether loading has set the variable `nvml_check.VARIABLE`.
    nvml_check_set: bool = False
    init_failure: InitFailure = field(default_factory=InitFailure)
    #: That an error destroyed this process's CUDA context, and which, as a clause (`dead_context`);
    #: None while nothing is known.
    dead_context: str | None = None
    #: The `selection.init_trace.InitTrace` that is attached, or has found where it was.
    init_trace: Any = None
    #: The thread that runs a cell with a choice of its own (``%%gpu``); subshells have others.
    cell_thread: int | None = None

    def init_location(self) -> str | None:
        """Return where CUDA was initialised, as a sentence; None where that is not known."""
        if self.init_trace is None:
            return None
        self.init_trace.check()
        location: str | None = self.init_trace.location
        return location

    def init_environment(self) -> Mapping[str, str] | None:
        """Return the environment right after CUDA was initialised; None where not observed."""
        return None if self.init_trace is None else self.init_trace.environment


#: The state of this process.
STATE = ProcessState()
