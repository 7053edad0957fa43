"""Whether a run of the tests is measured by coverage.py (`tests.tools.covered`)."""

from __future__ import annotations

import os


def measured() -> bool:
    """Whether child processes have to end by themselves: one that is killed leaves no data."""
    return "COVERAGE_PROCESS_CONFIG" in os.environ
