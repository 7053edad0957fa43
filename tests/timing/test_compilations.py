"""Whether torch.compile has compiled: a count, and where to find the reasons."""

from __future__ import annotations

from typing import Any

from gpumagic.timing.run import compiled_frames, counted, not_counted


def test_frames_are_counted(gpu_work: Any) -> None:
    torch = gpu_work.torch
    before = compiled_frames()
    compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
    compiled(torch.ones(3))
    assert compiled_frames() == before + 1
    compiled(torch.ones(3))
    assert compiled_frames() == before + 1


def test_the_notes() -> None:
    assert counted(0) == not_counted([]) == ()
    (note,) = counted(2)
    assert note.startswith("torch.compile compiled 2 functions in this run; TORCH_LOGS=recompiles")
    (note,) = not_counted([3.0])
    assert note.startswith("torch.compile compiled in the first run, not counted: 3 s; ")
    (note,) = not_counted([3.0, 1.0])
    assert note.startswith("torch.compile compiled in 2 runs, not counted: 3 s, 1 s; ")
