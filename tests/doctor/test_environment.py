"""The environment variables, and whether each was set before it is read."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cuda.driver import DriverState
from tests.doctor.healthy import UUIDS, finding, judged

UP = DriverState(True, True, uuids=UUIDS, contexts=(0,))


@pytest.mark.parametrize(
    ("changes", "status", "expected"),
    [
        ({"state": UP}, "unknown", "before or after this change"),
        ({}, "ok", "in time, since it is read when CUDA is initialised"),
        ({"state": UP, "environment_at_init": {"CUDA_MODULE_LOADING": "LAZY"}}, "ok", "in time"),
        ({"state": UP, "environment_at_init": {}}, "warn", "too late, it was read"),
        (
            {"environment_at_start": {"CUDA_MODULE_LOADING": "LAZY"}, "state": UP},
            "ok",
            "unchanged since",
        ),
    ],
)
def test_a_variable_set_in_time_or_too_late(
    changes: dict[str, Any], status: str, expected: str
) -> None:
    found = finding("CUDA_MODULE_LOADING", environment={"CUDA_MODULE_LOADING": "LAZY"}, **changes)
    assert found.status == status
    assert expected in found.evidence
    assert (found.remedy is not None) == (status == "warn")


def test_the_allocator_reports_what_it_read() -> None:
    name, value = "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"
    late = finding(name, environment={name: value}, allocator_settings="")
    assert late.status == "warn"
    assert "read by 'import torch'" in late.evidence
    assert finding(name, environment={name: value}, allocator_settings=value).status == "ok"
    assert finding(name, environment={name: value}).status == "unknown"
    assert finding(name, environment={name: value}, torch_loaded=False).status == "ok"
    removed = finding(name, environment_at_start={name: value}, allocator_settings=value)
    assert removed.status == "warn"
    assert removed.evidence.startswith("not set")


def test_a_mask_that_came_too_late() -> None:
    name, order = "CUDA_VISIBLE_DEVICES", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = finding(name, environment={name: "1", **order}, state=UP)
    assert found.status == "warn"
    assert "this process sees GPU 0, GPU 1" in found.evidence
    assert "--restart" in str(found.remedy)
    # Unequal GPUs in CUDA's own order: what "1" means is not known, when it was written may be.
    unordered = {"environment": {name: "1"}, "state": UP}
    assert finding(name, **unordered).status == "unknown"
    assert finding(name, **unordered, environment_at_start={name: "1"}).status == "ok"
    assert finding(name, **unordered, environment_at_init={}).status == "warn"
    assert finding(name, environment={name: "1"}).status == "ok"


def test_variables_that_make_it_slow() -> None:
    start = {"CUDA_LAUNCH_BLOCKING": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    result = judged(environment=start, environment_at_start=start)
    for name in start:
        found = result.about(name)
        assert found is not None
        assert found.status == "warn"
