"""Fixtures of the timing tests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def namespace(gpu_work: Any) -> dict[str, Any]:
    """A namespace for the cells of `bottleneck_cells`."""
    from tests.timing import bottleneck_cells
    from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

    return bottleneck_cells.namespace(SLEEP_CYCLES_PER_SECOND)
