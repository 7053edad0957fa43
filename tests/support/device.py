"""The devices that a run of the tests has: virtual ones, unless real ones are asked for.

torch must find the virtual GPU's libraries before NVIDIA's, which only the dynamic loader can
arrange, at the start of a process. So pytest, once started, starts itself again under it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import outside

ROOT = Path(__file__).parents[2]
#: What most tests see.
DEVICES = 4


def real(config: pytest.Config) -> bool:
    """Whether this run is for the machine's own GPUs (``--hardware``)."""
    return bool(config.getoption("hardware") == "real")


def under_the_virtual_gpu(config: pytest.Config) -> None:
    """Start this pytest once more, in the same process, on a virtual GPU.

    Does nothing where it already runs on one, with ``--hardware`` and with ``--vendor``.

    Raises:
        pytest.UsageError: the virtual GPU cannot be built here; the message says what is missing.
    """
    if real(config) or config.getoption("vendor"):
        return
    from tests.virtual_gpu import BuildError, Scenario, adopt, exec_under

    if adopt():
        # readline, once imported, writes the terminal's size where a worker's start finds it.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        return
    outside.leave()
    # Capturing has begun: give the terminal back before the new process takes it over.
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    os.chdir(config.invocation_params.dir)
    try:
        exec_under(Scenario(devices=DEVICES))
    except BuildError as error:
        raise pytest.UsageError(
            f"The tests run on a virtual GPU, which cannot be built here: {error}\n"
            "`make test` brings what is needed (also a C compiler, if there is none)."
        ) from error
