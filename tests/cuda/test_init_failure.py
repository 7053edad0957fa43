"""Whether an initialisation of CUDA has failed: queried once, and only if that is likely."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpumagic.cuda import driver, failure, nvml_check, probe, torch_cuda
from gpumagic.cuda.process_state import STATE, InitFailure
from gpumagic.cuda.visible_devices import MASK
from gpumagic.results import Device, DeviceTable

VISIBLE = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=False)
HIDDEN = DeviceTable((Device(0, uuid="GPU-aa", visible=False),), cuda_initialized=False)
INITIALIZED = DeviceTable((Device(0, uuid="GPU-aa", visible=True),), cuda_initialized=True)


class Copy:
    """A forked copy of the process, which returns the ``answer`` of a test."""

    def __init__(self) -> None:
        self.answer, self.queries = probe.Start(count=1), 0

    def __call__(self) -> probe.Start:
        self.queries += 1
        return self.answer


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copy]:
    """The copy that is queried, in a process in which nothing is known yet."""
    import torch  # noqa: F401 - only where it is loaded can CUDA have failed

    monkeypatch.setattr(STATE, "init_failure", InitFailure())
    fake = Copy()
    monkeypatch.setattr(probe, "in_fork", fake)
    monkeypatch.delenv(MASK, raising=False)
    return fake


def test_nothing_is_queried_without_a_suspicion(copy: Copy) -> None:
    assert not failure.suspected()
    assert not failure.has_failed(VISIBLE)
    assert copy.queries == 0


@pytest.mark.parametrize("table", [HIDDEN, INITIALIZED], ids=["hidden", "initialised"])
def test_nothing_is_queried_where_a_failure_could_not_show(copy: Copy, table: DeviceTable) -> None:
    failure.suspect(hidden=True)
    assert not failure.has_failed(table)
    assert copy.queries == 0
    assert failure.suspected()


def test_a_failure_is_found_once_and_final(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.answer = probe.Start(count=0)
    monkeypatch.setattr(STATE, "nvml_check_set", True)
    monkeypatch.setenv(nvml_check.VARIABLE, "1")
    failure.suspect(hidden=True)
    for _ in range(2):
        assert failure.has_failed(VISIBLE)
    assert copy.queries == 1
    assert nvml_check.VARIABLE not in os.environ  # NVML would say that there is a GPU
    assert driver.state().failed is (driver.state().initialized is False)


def test_a_suspicion_that_is_wrong_is_dropped(copy: Copy) -> None:
    failure.suspect(hidden=False)
    for _ in range(2):
        assert not failure.has_failed(VISIBLE)
    assert copy.queries == 1
    assert not failure.suspected()


def test_a_copy_that_returned_nothing_is_queried_again_with_other_variables(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.answer = probe.Start(message="a copy of this process returned nothing")
    failure.suspect(hidden=True)
    for mask, queries in ((None, 1), (None, 1), ("0", 2), ("0", 2), ("1", 3)):
        if mask is not None:
            monkeypatch.setenv(MASK, mask)
        assert not failure.has_failed(VISIBLE)
        assert copy.queries == queries
    assert failure.suspected()
    failure.suspect(hidden=True)  # a new reason
    failure.has_failed(VISIBLE)
    assert copy.queries == 4


@pytest.mark.parametrize(
    ("hidden", "message", "text"),
    [
        (True, None, "CUDA failed to start while all GPUs were hidden"),
        (True, "CUDA initialization: Error 803: no", "CUDA has failed to start (Error 803: no)"),
        (False, None, "CUDA has failed to start, and does not start again in this process"),
    ],
)
def test_the_cause(copy: Copy, hidden: bool, message: str | None, text: str) -> None:
    copy.answer = probe.Start(count=0, message=message)
    failure.suspect(hidden=hidden)
    failure.has_failed(VISIBLE)
    assert failure.start_cause().startswith(text)


@pytest.mark.parametrize(
    ("mask", "suspected"), [(None, False), ("0", False), ("-1", True), ("", True)]
)
def test_hiding_all_devices_is_a_suspicion(copy: Copy, mask: str | None, suspected: bool) -> None:
    failure.note_hiding({MASK: mask}, VISIBLE)
    assert failure.suspected() is suspected


def test_only_a_torch_with_cuda_can_have_failed(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_cuda, "loaded", lambda: None)
    failure.suspect(hidden=True)
    failure.note_hiding({MASK: "-1"}, VISIBLE)
    assert not failure.suspected()
