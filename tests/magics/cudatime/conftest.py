"""Assertions of the conformance list are shown as those of a test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.magics.cudatime.conformance")
