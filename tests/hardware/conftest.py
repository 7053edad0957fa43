"""What the tests on real hardware share: torch on a GPU, and the record of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpumagic
from tests.hardware import work
from tests.hardware.record import Figure, Record
from tests.support import device

RECORDS = Path(__file__).parent / "records"
_RECORD = pytest.StashKey[Record]()


def pytest_configure(config: pytest.Config) -> None:
    """A run on hardware is recorded, one on the virtual GPU only where ``--records`` says so."""
    folder = config.getoption("records") or (RECORDS if device.real(config) else None)
    config.stash[_RECORD] = Record(None if folder is None else Path(folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "call" or not report.passed:
        outcome = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
        item.config.stash[_RECORD].outcome(item.name, report.when, outcome)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    file = config.stash[_RECORD].file
    if file is not None:
        terminalreporter.write_line(f"record: {file}")


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch on a GPU; skips, with the reason, where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU here")
    # torch 2.6 sets CUDA_MODULE_LOADING as it starts CUDA: here no test is blamed for that.
    torch.cuda.init()
    return torch


@pytest.fixture(scope="session")
def figure(request: pytest.FixtureRequest, torch: ModuleType) -> Figure:
    """``figure(name, value)``: a line of the record, which is written at once."""
    record = request.config.stash[_RECORD]
    record.begin(torch)
    return record.figure


@pytest.fixture(scope="session")
def real(request: pytest.FixtureRequest) -> bool:
    """Whether the GPU is real: the virtual one computes nothing and ignores most variables."""
    return device.real(request.config)


@pytest.fixture
def without_mig() -> None:
    """Skips where a GPU is split by MIG: its UUID and its totals are then not this process's."""
    if any(gpu.mig for gpu in gpumagic.devices(processes=False)):
        pytest.skip("a GPU of this machine is split by MIG")


@pytest.fixture
def warmed(torch: ModuleType) -> None:
    """A GPU whose clock has risen."""
    work.spin(torch)
