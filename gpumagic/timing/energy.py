"""The energy that code takes, by NVML's counter of each device.

``nvmlDeviceGetTotalEnergyConsumption`` counts millijoules of the whole device since the driver was
loaded (Volta and newer), in steps of tens of milliseconds. So the code is run until
`ENERGY_SECONDS` have passed. The energy of other processes is in the figure too: where there are
any, there is no figure per loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda
from gpumagic.cuda.devices import in_first_pid_namespace
from gpumagic.errors import DeviceError


@dataclass(frozen=True)
class Energy:
    """The energy and power of the devices while code ran."""

    #: Joules; None where it is not known, and ``note`` says why.
    joules: float | None
    #: Mean watts.
    watts: float | None
    #: What the figures cover, or why there are none; one line.
    note: str


class EnergyMeter(AbstractContextManager["EnergyMeter"]):
    """A context manager that reads the counters of some devices before and after its body.

    ``found`` is set if the body did not raise.
    """

    def __init__(self, ordinals: Iterable[int]) -> None:
        self.found: Energy | None = None
        self._uuids = {ordinal: torch_cuda.uuid(ordinal) for ordinal in ordinals}
        self._started = 0.0
        self._before: dict[int, int | None] = {}
        self._session: Any = None
        self._error: str | None = None

    def __enter__(self) -> EnergyMeter:
        """Wait for the devices' earlier work, and read the counters."""
        from gpumagic.cuda import nvml

        try:
            self._session = nvml.session()
        except DeviceError as error:
            self._error = str(error)
            return self
        for ordinal in self._uuids:
            torch_cuda.synchronize(ordinal)
        self._before = self._read()
        self._started = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.found = self._energy()

    def _energy(self) -> Energy:
        """Wait for the work, read the counters again and return the difference."""
        if self._error is not None:
            return Energy(None, None, f"no energy: {self._error}")
        for ordinal in self._uuids:
            torch_cuda.synchronize(ordinal)
        seconds = perf_counter() - self._started
        after = self._read()
        silent = [i for i in self._uuids if after[i] is None or self._before[i] is None]
        if silent:
            return Energy(None, None, f"no energy: NVML has no counter for {_named(silent)}")
        millijoules = sum(cast(int, after[i]) - cast(int, self._before[i]) for i in self._uuids)
        if millijoules <= 0:
            return Energy(
                None, None, f"no energy: {seconds:.2g} s are less than the counter's step"
            )
        joules = millijoules / 1000
        covers = f"of the whole {_named(self._uuids)}, idle power included"
        shared = [ordinal for ordinal, uuid in self._uuids.items() if self._is_shared(uuid)]
        if shared:
            return Energy(
                None,
                joules / seconds,
                f"energy {covers}; other processes may be at work on {_named(shared)}: "
                "no figure per loop",
            )
        return Energy(joules, joules / seconds, f"energy {covers}")

    def _is_shared(self, uuid: str) -> bool:
        """Return whether another process may use the device; True where NVML does not report it.

        In a container NVML may list this process by another pid; a single one is this.
        """
        pids = self._session.pids(uuid)
        return pids is None or len(pids) > 1 or (len(pids) == 1 and not self._own(pids[0]))

    @staticmethod
    def _own(pid: int) -> bool:
        return pid == os.getpid() or not in_first_pid_namespace()

    def _read(self) -> dict[int, int | None]:
        return {ordinal: self._session.energy(uuid) for ordinal, uuid in self._uuids.items()}


def _named(ordinals: Iterable[int]) -> str:
    return ", ".join(f"cuda:{ordinal}" for ordinal in ordinals)
