"""The global random generators continue where they were."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpumagic.restart.variables import random_state


def _cpu(_: int | None) -> str:
    return "cpu"


def test_the_generators_of_python_numpy_and_torch() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")

    def draw() -> list[Any]:
        return [random.random(), np.random.rand(), torch.rand(1).item()]

    draw()  # NumPy imports its generators when they are first used
    captured = random_state.capture()
    drawn = draw()
    assert draw() != drawn
    captured["cuda"] = {}
    assert random_state.restore(captured, _cpu) == []
    assert draw() == drawn


@pytest.mark.parametrize(
    ("seed", "drawn", "used"),
    [(5, 0, True), (1 << 40, 0, False), (1 << 40, 4, True)],
    ids=["seeded", "as torch seeds it", "drawn from"],
)
def test_a_generator_of_a_hidden_gpu_is_named_if_it_was_used(
    seed: int, drawn: int, used: bool
) -> None:
    pytest.importorskip("torch")
    state = seed.to_bytes(8, "little") + drawn.to_bytes(8, "little")
    captured = {**random_state.capture(), "cuda": {1: state}, "queued_calls": []}
    assert random_state.restore(captured, _cpu) == (["cuda:1"] if used else [])
    # That of a graph that is being captured is not known.
    assert random_state.restore({**captured, "cuda": {0: None}}, _cpu) == ["cuda:0"]
