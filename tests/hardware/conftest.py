"""The record of a run on real hardware."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import device

RECORDS = Path(__file__).parent / "records"
_OUTCOMES = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "call" or report.skipped:
        outcome = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
        item.config.stash.setdefault(_OUTCOMES, {})[item.name] = outcome
    return report


@pytest.fixture(scope="session")
def torch(request: pytest.FixtureRequest) -> ModuleType:
    """torch on a GPU; skips, with the reason, where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU here")
    return torch


@pytest.fixture(scope="session")
def figure(
    request: pytest.FixtureRequest, torch: ModuleType
) -> Iterator[Callable[[str, Any], None]]:
    """``figure(name, value)``: a line of the record, written at the end of a run on hardware."""
    figures: dict[str, Any] = {}
    yield figures.__setitem__
    if device.real(request.config):
        _write(torch, figures, request.config.stash.get(_OUTCOMES, {}))


def _write(torch: Any, figures: dict[str, Any], outcomes: dict[str, str]) -> None:
    import gpumagic

    table = gpumagic.devices(processes=False)
    record = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "devices": [f"{d.name}, {d.compute_capability}, {d.memory_total}" for d in table],
        "driver": table.driver_version,
        "driver's CUDA": table.cuda_version,
        "torch": torch.__version__,
        "torch's CUDA": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: version(name) for name in ("ipython", "ipykernel", "nvidia-ml-py")},
        "figures": figures,
        "tests": outcomes,
    }
    name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(0).lower()).strip("-")
    target = RECORDS / f"{time.strftime('%Y-%m-%d-%H%M%S', time.gmtime())}-{name}.json"
    target.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    print(f"\nrecord: {target}")
