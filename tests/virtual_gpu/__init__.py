"""A virtual GPU: real torch.cuda and real NVML clients, on a machine that has no GPU.

Small C libraries stand in for NVIDIA's runtime, driver, NVML and cuBLAS. `Scenario` says what the
machine holds; `environment(scenario)` is the environment of a process to run on it;
`ensure(scenario)` puts this process there. `World` reads and changes a scenario while it runs. In
tests, plugin.py gives the fixture `virtual_gpu`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .build import BuildError
from .clock import virtual_clock
from .scenario import (
    GPU,
    SLEEP_CYCLES_PER_SECOND,
    ExternalProcess,
    Mig,
    Scenario,
    default_uuid,
)
from .world import World, adopt, environment, separate, unimplemented_calls

__all__ = [
    "GPU",
    "SLEEP_CYCLES_PER_SECOND",
    "BuildError",
    "ExternalProcess",
    "Mig",
    "Scenario",
    "World",
    "adopt",
    "default_uuid",
    "ensure",
    "environment",
    "exec_under",
    "separate",
    "unimplemented_calls",
    "virtual_clock",
]


def ensure(scenario: Scenario) -> None:
    """Puts this process on `scenario`: starts it anew, once, with the same command line."""
    if not adopt():
        exec_under(scenario)


def exec_under(scenario: Scenario, command: list[str] | None = None) -> NoReturn:
    """Replaces this process by `command` (default: itself, from the start) on `scenario`."""
    command = command or [sys.executable, *sys.orig_argv[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], command, environment(scenario))
