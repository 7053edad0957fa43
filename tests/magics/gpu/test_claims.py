"""Claims by ``%gpu``, and the notebooks that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.selection import claims
from tests.support.kernels import Kernel
from tests.support.other_process import running

#: For another process: it claims the GPUs that its arguments name.
CLAIM = """
import sys
from gpumagic.selection import claims
claims.hold(tuple(sys.argv[1:]))
"""
#: Where CUDA has started already, a choice is too late, and claims nothing.
own_process = pytest.mark.own_process


@own_process
def test_a_choice_is_claimed_shown_and_withdrawn(run_cell: Callable[..., Any]) -> None:
    uuid = run_cell("%gpu 1 -o -q").value.devices[0].uuid
    assert claims.held() == (uuid,)
    table = run_cell("%gpu -o -q").value
    assert [len(device.claims) for device in table] == [0, 1, 0, 0]
    assert "GPU 1: claimed by this process." in str(table)
    inside = run_cell("%%gpu 2 -q\nfrom gpumagic.selection import claims; claims.held()")
    assert inside.value == (table[2].uuid,)
    assert claims.held() == (uuid,)
    for line in ("%gpu 99", "%gpu auto 99"):
        run_cell(line, raising=False)
        assert claims.held() == (uuid,)
    run_cell("%unload_ext gpumagic")
    assert claims.held() == ()
    assert claims.all_of([uuid], claims.locked()) == {uuid: []}
    run_cell("%load_ext gpumagic")


@own_process
def test_another_processes_claim_orders_and_is_named(run_cell: Callable[..., Any]) -> None:
    """The freest GPU, which may be another one where a test before this has used memory."""
    number = len(run_cell("%gpu -o -q").value)
    first = run_cell("%gpu auto --no-claim -o -q").value.devices[0]
    with running(CLAIM, first.uuid) as pid:
        assert f"GPU {first.index}: claimed by process {pid}." in run_cell("%gpu").text
        chosen = run_cell("%gpu auto -o -q").value
        assert chosen.devices[0].uuid != first.uuid
        assert chosen.notes == ()
        for line in (f"%gpu {first.index} -o -q", f"%gpu auto {number} -o -q"):
            note = f"GPU {first.index} is claimed by process {pid}"
            assert run_cell(line).value.notes == (note,)
        chosen = run_cell("%gpu auto --no-claim -o -q").value
        assert (chosen.devices[0].uuid, claims.held()) == (first.uuid, ())
        run_cell("%config GpuMagic.claim = False")
        chosen = run_cell("%gpu auto -o -q").value
        assert (chosen.devices[0].uuid, claims.held()) == (first.uuid, ())
        run_cell("%config GpuMagic.claim = True")
        run_cell("%gpu on -q")


def test_two_notebooks_that_choose_at_once_take_different_gpus(
    kernel: Callable[..., Kernel], child_environment: Callable[..., dict[str, str]]
) -> None:
    """Each sees the other's claim and process, by the name of its notebook."""
    machine = child_environment()
    paths = ("/home/ann/train.ipynb", "/home/ann/eval.ipynb")
    kernels = [kernel(env={**machine, "JPY_SESSION_NAME": path}) for path in paths]
    waiting = [each.submit("%gpu auto -o -q") for each in kernels]
    for each, message in zip(kernels, waiting, strict=True):
        assert each.wait(message).status == "ok"
    uuids = [each.value("Out[max(Out)].devices[0].uuid") for each in kernels]
    assert len({*uuids}) == 2
    shown = kernels[0].run("%gpu").text
    assert "claimed by this process." in shown
    assert "claimed by eval.ipynb." in shown
    for each in kernels:
        each.run("import torch; x = torch.ones(1, device='cuda')")
    names = "{p.notebook for d in __import__('gpumagic').devices() for p in d.processes}"
    assert kernels[0].value(names) == {"train.ipynb", "eval.ipynb"}
