"""The facts of a healthy machine, and the doctor's findings on changes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.doctor import judge
from gpumagic.doctor.facts import Facts, Package
from gpumagic.results import Device, DeviceTable, Diagnosis, Finding
from gpumagic.selection.cpu_threads import Cores

BUILD = Build(
    "2.9.0+cu128", True, "12.8", None, "9.10.2", ("sm_75", "sm_80", "sm_90", "compute_90")
)


UUIDS = ("GPU-a", "GPU-b")


def table(*capabilities: tuple[int, int], visible: bool = True) -> DeviceTable:
    return DeviceTable(
        tuple(
            Device(
                i, i if visible else None, uuid, f"Card {i}", compute_capability=c, visible=visible
            )
            for i, (uuid, c) in enumerate(zip(UUIDS, capabilities, strict=False))
        ),
        driver_version="570.10",
        cuda_version=(12, 8),
    )


HEALTHY = Facts(
    build=BUILD,
    torch_loaded=True,
    start=Start(2),
    table=table((9, 0), (8, 6)),
    state=DriverState(loaded=True, initialized=False),
    driver_installed=True,
    driver_cuda=(12, 8),
    packages=(Package("nvidia-ml-py", "13.0", True),),
    device_files={"/dev/nvidia0": True, "/dev/nvidiactl": True, "/dev/nvidia-uvm": True},
    threads=4,
    cores=Cores(4, 4),
)


def judged(**changes: Any) -> Diagnosis:
    return judge(replace(HEALTHY, **changes))


def finding(subject: str, **changes: Any) -> Finding:
    found = judged(**changes).about(subject)
    assert found is not None, f"nothing was found on {subject}"
    return found
