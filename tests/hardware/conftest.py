"""What the tests on real hardware share: torch on a GPU, its cycles, and the record of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpumagic
from tests.hardware import work
from tests.hardware.record import Figure, Record
from tests.support import device

RECORDS = Path(__file__).parent / "records"
#: That of this run, once torch has found a GPU; of a dry run, in a temporary folder.
_RECORD = pytest.StashKey[Record]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    record = item.config.stash.get(_RECORD, None)
    if record is not None and (report.when == "call" or not report.passed):
        skipped = report.skipped and isinstance(report.longrepr, tuple)
        outcome = report.longrepr[2] if skipped else report.outcome
        record.note(
            "tests", item.name, outcome if report.when == "call" else f"{outcome} ({report.when})"
        )
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if _RECORD in config.stash:
        terminalreporter.write_line(f"record: {config.stash[_RECORD].file}")


@pytest.fixture(scope="session")
def torch(
    request: pytest.FixtureRequest, real: bool, tmp_path_factory: pytest.TempPathFactory
) -> ModuleType:
    """torch on a GPU; skips, with the reason, where there is none. The record begins."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no GPU here")
    # torch 2.6 sets CUDA_MODULE_LOADING as it starts CUDA: here no test is blamed for that.
    torch.cuda.init()
    folder = RECORDS if real else tmp_path_factory.mktemp("records")
    request.config.stash[_RECORD] = Record(folder, torch)
    return torch


@pytest.fixture(scope="session")
def figure(request: pytest.FixtureRequest, torch: ModuleType) -> Figure:
    """``figure(name, value)``: a line of the record, which is written at once."""
    return partial(request.config.stash[_RECORD].note, "figures")


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


@pytest.fixture(scope="session")
def cycles(torch: ModuleType) -> float:
    """Cycles of ``torch.cuda._sleep`` in a second, by events on a busy device."""
    work.spin(torch)
    counted = 100_000_000
    return counted / statistics.median(
        work.by_events(torch, lambda: torch.cuda._sleep(counted)) for _ in range(5)
    )
