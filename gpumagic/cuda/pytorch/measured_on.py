"""The conditions of a measurement: the devices in use, and the versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime, timezone

from gpumagic._version import __version__
from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.results.conditions import Conditions


def conditions(ordinals: Iterable[int]) -> Conditions:
    """Return the conditions of a measurement that has just ended on these CUDA ordinals.

    Nothing is started for them: they come from torch and the driver's file.
    """
    torch = torch_cuda.loaded()
    return Conditions(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        devices={ordinal: torch_cuda.name(ordinal) for ordinal in sorted(ordinals)},
        driver=driver.kernel_module(),
        torch=None if torch is None else str(torch.__version__),
        cuda=None if torch is None else torch.version.cuda,
        python=platform.python_version(),
        gpumagic=__version__,
    )
