"""What code does on the GPU: operations by torch's counter, energy by NVML's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, cast

from gpumagic.cuda import torch_cuda


class FlopCounter(AbstractContextManager[None]):
    """A context manager that counts the operations of its body into ``count``.

    ``torch.utils.flop_counter.FlopCounterMode`` counts by the shapes of matrix products,
    convolutions and attention; it changes how operations are dispatched, so that it has a run of
    its own.

    Raises:
        DeviceError: torch cannot be imported, or counts none.
    """

    def __init__(self) -> None:
        mode = torch_cuda.flop_counter().FlopCounterMode
        options: dict[str, Any] = {"display": False}
        if "skip_unsupported" in inspect.signature(mode).parameters:
            options["skip_unsupported"] = True  # else a Triton kernel is counted, but not run
        self._mode = mode(**options)
        self.count: int | None = None

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._mode.__exit__(kind, *error)
        if kind is None:
            self.count = int(self._mode.get_total_flops())


class EnergyMeter(AbstractContextManager[None]):
    """A context manager that reads NVML's energy counters of some devices around its body.

    ``nvmlDeviceGetTotalEnergyConsumption`` counts millijoules of the whole device since the driver
    was loaded (Volta and newer), in steps of tens of milliseconds. ``joules`` and ``watts`` are set
    if the body did not raise.

    Raises:
        DeviceError: NVML cannot be opened.
    """

    def __init__(self, ordinals: Iterable[int]) -> None:
        from gpumagic.cuda import nvml

        self._session = nvml.session()
        self._uuids = {ordinal: torch_cuda.uuid(ordinal) for ordinal in ordinals}
        self.joules: float | None = None
        self.watts: float | None = None
        #: What the figures cover, or why there are none; one line.
        devices = ", ".join(f"cuda:{ordinal}" for ordinal in self._uuids)
        self.note = f"energy of the whole of {devices}, idle power and other processes included"

    def __enter__(self) -> None:
        self._before = self._read()
        self._started = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
            torch_cuda.synchronize(ordinal)
            found.append(self._session.energy(uuid))
        return None if None in found else sum(cast("list[int]", found))
