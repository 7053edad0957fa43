"""The state of this process: the choice that ``%gpu`` made, and facts about CUDA.

All of it is in `STATE`. A `Choice` can be undone: `ProcessState.snapshot` and `restore` do that for
every field of it, for `%%gpu` and for a choice that fails. The other fields are facts: what has
happened to CUDA in a process does not change until the process ends, so `restore` keeps them.

Caches are in other modules: the handles of the driver's library (`driver`) and of NVML (`nvml`),
whether this is the first pid namespace (`devices`), torch's streams (`torch_cuda`), NVML's count of
devices (`failure`), the queries for captures (`graphs`) and the files that are locked as claims
(`selection.claims`).

Imported when the extension loads: imports nothing of the package at its top.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Gate(Protocol):
    """What ``%gpu off --soft`` has closed (`selection.gate`)."""

    def close(self) -> None:
        """Close it, also after `lift`."""

    def lift(self) -> None:
        """Undo `close`."""


class Claims(Protocol):
    """The claims that this process holds (`selection.claims`)."""

    def hold(self, uuids: tuple[str, ...]) -> None:
        """Claim these devices, and no others any more."""

    def pass_on(self, environment: dict[str, str]) -> Collection[int]:
        """Return the descriptors that hold the claims in the program that replaces this one."""


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


@dataclass(eq=False, repr=False)
class Choice:
    """What ``%gpu`` has changed in this process."""

    #: By name.
    variables: dict[str, WrittenVariable] = field(default_factory=dict)
    threads: ThreadCount | None = None
    gate: Gate | None = None
    #: The UUIDs of the devices that this process claims.
    claim: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class InitFailure:
    """Whether CUDA has failed to initialise; see `gpumagic.cuda.failure`."""

    #: Whether CUDA's runtime has failed to initialise; it does not try again in this process.
    failed: bool = False
    #: Whether CUDA may have failed to initialise, and the runtime was not queried since.
    suspected: bool = False
    #: Whether all devices were hidden while torch was loaded: the likely cause of a failure.
    hidden: bool = False
    #: Values of ``CUDA_VISIBLE_DEVICES`` while torch was loaded, of which it is not yet known
    #: whether they hide all devices: that takes the table.
    masks: set[str] = field(default_factory=set)
    #: The runtime's error in a forked copy of this process.
    reason: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """A `Choice`, with the environment and the number of threads at that time."""

    choice: Choice
    #: The variables that choose devices; None for one that is not set.
    environment: Mapping[str, str | None]
    #: torch's number of CPU threads; None if torch was not loaded.
    threads: int | None


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
    #: Whether loading has set the variable `init_trace.NVML_CHECK`.
    nvml_check_set: bool = False
    init_failure: InitFailure = field(default_factory=InitFailure)
    #: What destroyed this process's CUDA context (`failure`); None while nothing is known.
    dead_context: str | None = None
    #: The `init_trace.InitTrace` that is attached, or that has found where CUDA was initialised.
    init_trace: Any = None
    #: The thread that runs a cell with a choice of its own (``%%gpu``); subshells have others.
    cell_thread: int | None = None
    #: None before the first claim.
    claims: Claims | None = None

    def snapshot(self) -> Snapshot:
        """Return the current choice, for `restore`."""
        from gpumagic.cuda import torch_cuda
        from gpumagic.cuda.visible_devices import VARIABLES

        return Snapshot(
            replace(self.choice, variables=dict(self.choice.variables)),
            {name: os.environ.get(name) for name in VARIABLES},
            torch_cuda.cpu_threads(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Undo the choices since a snapshot: variables, CPU threads, the gate and the claim.

        The variables get their values of that time, also if the user has written them since; the
        number of threads only if a choice has set it since.
        """
        for name, value in snapshot.environment.items():
            set_variable(name, value)
        self._restore_threads(snapshot)
        now, then = self.choice.gate, snapshot.choice.gate
        if now is not None and now is not then:
            now.lift()
        if then is not None and now is not then:
            then.close()
        if self.claims is not None and self.choice.claim != snapshot.choice.claim:
            self.claims.hold(snapshot.choice.claim)
        self.choice = replace(
            snapshot.choice, variables=dict(snapshot.choice.variables), claim=self.choice.claim
        )

    def _restore_threads(self, snapshot: Snapshot) -> None:
        from gpumagic.cuda import torch_cuda

        now, before, torch = self.choice.threads, snapshot.threads, torch_cuda.loaded()
        if now is snapshot.choice.threads or torch is None:
            return
        if before is None and now is not None:  # torch was imported since
            before = now.before
        if before is not None:
            torch.set_num_threads(before)


def set_variable(name: str, value: str | None) -> None:
    """Set an environment variable, or unset it for None, for this process and its children."""
    from gpumagic.cuda import torch_cuda

    if torch_cuda.initialized():
        # torch 2.6 counts devices by the variable at the first call, and caches the count: call it
        # while the variable is still the one that CUDA has read.
        torch_cuda.require().cuda.device_count()
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


#: The state of this process.
STATE = ProcessState()
