"""The conditions of a measurement: devices, driver, torch, clocks.

Nothing is started for them: they come from torch, an open NVML session and the driver's file.
"""

from __future__ import annotations

import datetime
import platform
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from gpumagic._version import __version__
from gpumagic.cuda import torch_cuda
from gpumagic.results.base import Conditions
from gpumagic.system import system_files

if TYPE_CHECKING:
    from gpumagic.cuda.nvml import Session

_VERSION = re.compile(r"\d{3,}(?:\.\d+)+")


def conditions(ordinals: Iterable[int]) -> Conditions:
    """Return the conditions of a measurement that has just ended on these devices."""
    used = sorted(ordinals)
    torch: Any = torch_cuda.loaded()
    return Conditions(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        devices={ordinal: _name(ordinal) for ordinal in used},
        clocks=_clocks(used),
        driver=_driver(),
        torch=None if torch is None else str(torch.__version__),
        cuda=None if torch is None else torch.version.cuda,
        python=platform.python_version(),
        gpumagic=__version__,
    )


@cache
def _name(ordinal: int) -> str:
    torch = cast(Any, torch_cuda.loaded())
    return str(torch.cuda.get_device_properties(ordinal).name)


#: Read once for each device.
_uuid = cache(torch_cuda.uuid)


def _session() -> Session | None:
    """Return the open NVML session; None where none is open, since opening one takes long."""
    nvml: Any = sys.modules.get("gpumagic.cuda.nvml")
    return None if nvml is None else cast("Session | None", nvml.opened())


def _clocks(ordinals: Iterable[int]) -> dict[int, int]:
    session = _session()
    if session is None:
        return {}
    found = {ordinal: session.sm_clock(_uuid(ordinal)) for ordinal in ordinals}
    return {ordinal: clock for ordinal, clock in found.items() if clock is not None}


def _driver() -> str | None:
    session = _session()
    if session is not None and session.driver_version is not None:
        return session.driver_version
    return _kernel_module()


def kernel_module() -> str | None:
    """Return the version of the NVIDIA driver's kernel module; None if it is not loaded."""
    text = system_files.read("/proc/driver/nvidia/version") or ""
    match = _VERSION.search(text.partition("\n")[0])
    return match[0] if match else None


#: Read once.
_kernel_module = cache(kernel_module)
