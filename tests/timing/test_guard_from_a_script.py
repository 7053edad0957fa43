"""The example in docs/howto/guard-in-ci.md: a test that fails when code has become slower."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpumagic

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "guard-in-ci.md"


@pytest.fixture
def guard(gpu_work: Any, tmp_path: Path, monkeypatch: Any) -> Callable[[float], None]:
    """``guard(seconds)``: the page's test of a step that takes so long, in its own folder."""
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)

    def run(seconds: float) -> None:
        scope = {"step": lambda: gpu_work.sleep(seconds)}
        exec(source, scope)
        scope["test_the_step_has_not_become_slower"]()  # type: ignore[call-arg]

    return run


def test_the_page(guard: Callable[[float], None], gpu_work: Any, capsys: Any) -> None:
    gpumagic.cudatime(lambda: gpu_work.sleep(0.01), r=9).save("step.json")
    for seconds in (0.01, 0.01 * (1 + 1e-7), 0.0119, 0.005):
        guard(seconds)
        assert "stored" in capsys.readouterr().out
    with pytest.raises(gpumagic.RegressionError) as raised:
        guard(0.02)
    assert str(raised.value).startswith("2.00 times as long as stored (95 % interval 2.0")


def test_verdicts(gpu_work: Any, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    gpumagic.cudatime(lambda: gpu_work.sleep(0.01), n=1, r=9).save(path)
    for seconds, verdict in ((0.01, "noise"), (0.02, "slower"), (0.005, "faster")):
        now = gpumagic.cudatime(lambda: gpu_work.sleep(seconds), n=1, r=9)  # noqa: B023
        compared = gpumagic.compare(gpumagic.load(path), now)
        assert compared[1].verdict == verdict
