"""The energy of one more run, by NVML's counters: ``--energy``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from time import perf_counter
from typing import cast

from gpumagic.cuda import nvml
from gpumagic.cuda.pytorch import torch_cuda, waiting

#: Seconds that code runs at least to read its energy: fifty steps of NVML's counter.
ENERGY_SECONDS = 1.0


class EnergyMeter(AbstractContextManager[None]):
    """A context manager that reads NVML's energy counters of some devices around its body.

    ``nvmlDeviceGetTotalEnergyConsumption`` counts millijoules of the whole device since the driver
    was loaded (Volta and newer), in steps of tens of milliseconds. ``joules`` and ``watts`` are set
    if the body did not raise.

    Raises:
        DeviceError: NVML cannot be opened.
    """

    def __init__(self, ordinals: Iterable[int]) -> None:
        self._uuids = {ordinal: torch_cuda.uuid(ordinal) for ordinal in ordinals}
        self.joules: float | None = None
        self.watts: float | None = None
        #: What the figures cover, or why there are none; one line.
        devices = ", ".join(f"cuda:{ordinal}" for ordinal in self._uuids)
        self.note = f"energy of the whole of {devices}, idle power and other processes included"

    def __enter__(self) -> None:
        with ExitStack() as opened:
            self._session = opened.enter_context(nvml.Session())
            self._before = self._read()
            self._open = opened.pop_all()
        self._started = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._open:
            if kind is not None:
                return
            after, seconds = self._read(), perf_counter() - self._started
        if self._before is None or after is None:
            self.note = "no energy: NVML has no counter for this device"
        elif after <= self._before:
            self.note = f"no energy: {seconds:.2g} s are less than the counter's step"
        else:
            self.joules = (after - self._before) / 1000
            self.watts = self.joules / seconds

    def _read(self) -> int | None:
        """Wait for the devices, and return their millijoules so far."""
        found = []
        for ordinal, uuid in self._uuids.items():
            waiting.synchronize(ordinal)
            found.append(self._session.energy(uuid))
        return None if None in found else sum(cast("list[int]", found))
