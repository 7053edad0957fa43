"""torch's warnings name the line of the cell, also where a method is wrapped."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import pytest

from gpumagic.timing.synchronizations import SynchronizationWatch
from gpumagic.timing.waits import WaitSigns

#: Each line may warn, for a reason of its own.
CELL = """\
float(parameter)
pixels[mask]
imaginary.to(torch.float32)
imaginary.to("cpu", torch.float32)
result.copy_(imaginary)
pixels.to_sparse_csr()
pixels[[[0, 1], [0, 1]]]
parameter.new_tensor(parameter)
parameter.type(torch.float16)
pixels.tolist()
pixels.argwhere()
"""


@pytest.mark.parametrize("kind", ["SynchronizationWatch", "WaitSigns"])
def test_they_name_the_cells_line(kind: str, gpu_work: Any) -> None:
    torch = gpu_work.torch
    names = {
        "torch": torch,
        "__name__": "cell",
        "parameter": torch.nn.Parameter(torch.zeros(1).to("cuda")),
        "pixels": torch.zeros(2, 2).to("cuda"),
        "mask": torch.zeros(2, 2, dtype=torch.uint8).to("cuda"),
        "imaginary": torch.zeros(1, dtype=torch.complex64).to("cuda"),
        "result": torch.zeros(1).to("cuda"),
    }
    code = compile(CELL, "<cell>", "exec")

    def run() -> list[tuple[str, int, str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            try:
                exec(code, names)
            finally:
                torch.set_warn_always(False)
        return [(each.filename, each.lineno, str(each.message)[:40]) for each in caught]

    expected = run()
    assert {line for name, line, _ in expected if name == "<cell>"} >= {2, 3, 5}
    if kind == "WaitSigns":
        signs = WaitSigns()
        signs.start({})
        stop = signs.stop
    else:
        watch = SynchronizationWatch()
        watch.start()
        stop = watch.stop
    try:
        assert run() == expected
    finally:
        stop()


def test_what_a_call_raises_has_no_frame_of_ours(gpu_work: Any) -> None:
    torch, watch = gpu_work.torch, SynchronizationWatch()
    several = torch.nn.Parameter(torch.zeros(2).to("cuda"))
    watch.start()
    try:
        float(several)
    except (RuntimeError, ValueError) as error:
        names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    finally:
        watch.stop()
    assert names == ["test_what_a_call_raises_has_no_frame_of_ours"]
