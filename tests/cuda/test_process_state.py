"""The state of this process."""

from __future__ import annotations

import os

from gpumagic.cuda.process_state import ProcessState


def test_the_environment_of_the_start_is_that_of_the_process() -> None:
    """Also after changes; Linux keeps it."""
    os.environ["GPUMAGIC_TEST_LATER"] = "1"
    try:
        assert "GPUMAGIC_TEST_LATER" not in ProcessState().started_with
    finally:
        del os.environ["GPUMAGIC_TEST_LATER"]
    assert "PATH" in ProcessState().started_with
