"""The example in docs/howto/guard-in-ci.md: a test that fails when code has become slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpumagic


def test_a_step_that_became_slower(gpu_work: Any, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    gpumagic.cudatime(lambda: gpu_work.sleep(0.01), n=1, r=9).save(path)
    for seconds, verdict in ((0.01, "noise"), (0.02, "slower"), (0.005, "faster")):
        now = gpumagic.cudatime(lambda: gpu_work.sleep(seconds), n=1, r=9)  # noqa: B023
        compared = gpumagic.compare(gpumagic.load(path), now)
        assert compared[1].verdict == verdict
