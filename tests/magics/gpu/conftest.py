"""Fixtures of the tests of ``%gpu``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kernels import Kernel


@pytest.fixture
def fresh_kernel(kernel: Callable[..., Kernel]) -> Kernel:
    return kernel()
