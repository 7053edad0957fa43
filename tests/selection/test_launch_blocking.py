"""CUDA_LAUNCH_BLOCKING for one process, restored by the next restart."""

from __future__ import annotations

import pytest

from gpumagic.cuda.process_state import STATE
from gpumagic.selection import launch_blocking


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_what_was_before_comes_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.setattr(STATE, "launch_blocking", None)
    start = {} if before is None else {launch_blocking.VARIABLE: before}
    environment = dict(start)
    assert launch_blocking.write(environment, blocking=False) is None
    assert environment == start
    for _ in range(2):  # a second restart with --blocking changes nothing
        launch_blocking.start_from(launch_blocking.write(environment, blocking=True))
        assert environment == {launch_blocking.VARIABLE: "1"}
        assert launch_blocking.is_temporary()
    launch_blocking.start_from(launch_blocking.write(environment, blocking=False))
    assert environment == start
    assert not launch_blocking.is_temporary()


def test_what_the_user_has_written_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "launch_blocking", None)
    launch_blocking.start_from(launch_blocking.write({}, blocking=True))
    environment = {launch_blocking.VARIABLE: "0"}
    assert launch_blocking.write(environment, blocking=False) is None
    assert environment == {launch_blocking.VARIABLE: "0"}
