"""The devices that a run of the tests has: virtual ones, unless real ones are asked for.

torch must find the virtual GPU's libraries before NVIDIA's, which only the dynamic loader can
arrange, at the start of a process. So pytest, once started, starts itself again under it.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import pytest

#: Set in a run that is already where it belongs: ``virtual``, ``real`` or ``none``.
MARK = "GPUMAGIC_TEST_DEVICES"
#: What most tests see.
DEVICES = 4


def under_the_virtual_gpu(config: pytest.Config) -> None:
    """Start this pytest once more, in the same process, on a virtual GPU.

    Does nothing where that has been done, and with ``--hardware``.

    Raises:
        pytest.UsageError: the virtual GPU cannot be built here; the message says what is missing.
    """
    if MARK in os.environ or config.getoption("hardware") == "real":
        return
    from tests.virtual_gpu import environment

    try:
        found = environment(devices=DEVICES)
    except Exception as error:
        raise pytest.UsageError(
            f"The tests run on a virtual GPU, which cannot be built here: {error}\n"
            "`make test` brings what is needed (a C compiler from a wheel, if there is none)."
        ) from error
    _start_again(config, {**found, MARK: "virtual"})


def _start_again(config: pytest.Config, environment: dict[str, str]) -> NoReturn:
    # Capturing has begun: give the terminal back before the new process takes it over.
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(config.invocation_params.dir)
    # As it was typed (`pytest …`, `python -X dev -m pytest …`, an editor's runner).
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
