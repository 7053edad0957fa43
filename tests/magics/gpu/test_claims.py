"""Claims by ``%gpu``: in the table, off by option and by trait, restored after a cell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cuda.process_state import STATE
from gpumagic.selection import claim_entry, claim_folder, claims
from tests.cluster.conftest import wait_for
from tests.support.claims import claimed_by_another

#: Where CUDA has started already, a choice is too late, and claims nothing.
pytestmark = pytest.mark.own_process


def test_a_choice_is_claimed_shown_and_withdrawn(run_cell: Callable[..., Any]) -> None:
    chosen = run_cell("%gpu 1").value or run_cell("%gpu 1 -o -q").value
    uuid = chosen.devices[0].uuid
    assert STATE.choice.claim == (uuid,)
    table = run_cell("%gpu -o -q").value
    assert [len(device.claims) for device in table] == [0, 1, 0, 0]
    assert table[1].claims[0].own
    assert "GPU 1: claimed by this kernel." in str(table)
    run_cell("%%gpu 2\nfrom gpumagic.cuda.process_state import STATE; inside = STATE.choice.claim")
    inside = run_cell("inside").value
    assert inside == (table[2].uuid,)
    assert STATE.choice.claim == (uuid,)
    run_cell("%gpu on")
    assert STATE.choice.claim == ()
    assert claims.all_claims() == []


def test_another_processes_claim_orders_and_is_named(run_cell: Callable[..., Any]) -> None:
    table = run_cell("%gpu -o -q").value
    first = run_cell("%gpu auto -o -q").value.devices[0]
    run_cell("%gpu on -q")
    with claimed_by_another(first.uuid) as pid:
        chosen = run_cell("%gpu auto -o -q").value
        assert chosen.devices[0].uuid != first.uuid
        assert not any("claimed" in note for note in chosen.notes)
        chosen = run_cell(f"%gpu {first.index} -o -q").value
        assert chosen.status == "applied"
        assert chosen.notes == (f"GPU {first.index} is claimed by process {pid}",)
        run_cell("%gpu on -q")
        chosen = run_cell("%gpu auto --no-claim -o -q").value
        assert chosen.devices[0].uuid == first.uuid
        assert STATE.choice.claim == ()
        run_cell("%config GpuMagic.claim = False")
        chosen = run_cell("%gpu auto -o -q").value
        assert (chosen.devices[0].uuid, STATE.choice.claim) == (first.uuid, ())
        run_cell("%config GpuMagic.claim = True")
        chosen = run_cell(f"%gpu auto {len(table)} -o -q").value
        assert chosen.notes == (f"GPU {first.index} is claimed by process {pid}",)
        run_cell("%gpu on -q")


def test_where_no_claim_can_be_made_one_line_says_so(
    run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(claim_folder.VARIABLE, "/missing")
    for line in ("%gpu 1 -o -q", "%gpu auto -o -q"):
        chosen = run_cell(line).value
        assert len(chosen.devices) == 1
        assert chosen.notes == (
            "not claimed: /missing cannot be opened (No such file or directory)",
        )
    assert run_cell("%gpu on -o -q").value.notes == ()


@pytest.mark.parametrize("system", ["Windows", "macOS"])
def test_a_system_without_claims_says_so_in_one_line(
    run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """And all else goes on: the choice, the table, the settings."""

    def no_proc(pid: int | str) -> tuple[int, int]:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    if system == "Windows":
        monkeypatch.setattr(claim_folder, "os", SimpleNamespace(name="nt"))
    else:
        monkeypatch.setattr(claim_entry, "process", no_proc)
    why = "claims need Linux" if system == "Windows" else "claims need Linux's /proc"
    for line in ("%gpu 1 -o -q", "%gpu auto -o -q"):
        chosen = run_cell(line).value
        assert len(chosen.devices) == 1
        assert chosen.notes == (f"not claimed: {why}",)
    run_cell("%config GpuMagic.publish_notebook = True")
    shown = run_cell("%gpu")
    assert "claimed" not in shown.text
    assert shown.stderr == ""
    run_cell("%config GpuMagic.publish_notebook = False")
    run_cell("%gpu on -q")


def test_the_notebook_is_published_only_when_the_user_says_so(
    run_cell: Callable[..., Any],
) -> None:
    run_cell("%gpu 1 -q")
    assert claims.all_claims()[0].notebook is None
    run_cell("%config GpuMagic.publish_notebook = True")
    (claim,) = claims.all_claims()
    assert claim.notebook == "a notebook"
    assert claim.idle is not None
    assert claim.idle > 0
    run_cell("from gpumagic.selection import claims; idle = claims.all_claims()[0].idle")
    assert run_cell("idle").value == 0
    run_cell("%config GpuMagic.publish_notebook = False")
    assert claims.all_claims()[0].notebook is None
    run_cell("%gpu on -q")


def test_a_failed_choice_leaves_the_claim_as_it_was(run_cell: Callable[..., Any]) -> None:
    run_cell("%gpu 1 -q")
    before = STATE.choice.claim
    run_cell("%gpu 99 -q", raising=False)
    run_cell("%gpu auto 99 -q", raising=False)
    assert STATE.choice.claim == before != ()
    assert [claim.uuids for claim in claims.all_claims()] == [before]
    run_cell("%gpu on -q")


def test_unloading_withdraws_the_claim(ip: Any, run_cell: Callable[..., Any]) -> None:
    run_cell("%gpu 1 -q")
    assert claims.all_claims()
    run_cell("%unload_ext gpumagic")
    assert claims.all_claims() == []
    run_cell("%load_ext gpumagic")


def test_a_claim_of_another_says_that_its_memory_is_parked(run_cell: Callable[..., Any]) -> None:
    uuid = run_cell("%gpu -o -q").value[2].uuid
    then = "claims.publish_notebook('eval.ipynb', busy=False); claims.set_parked(True)"
    with claimed_by_another(uuid, then=then):
        text = run_cell("%gpu").text
        assert "GPU 2: claimed by eval.ipynb, parked, idle " in text
    assert "claimed" not in run_cell("%gpu").text


HOLD = """
import os
from gpumagic.selection.claim_folder import open_folder
opened = open_folder(); folder = opened.__enter__()
lock = folder.lock(10.0)
assert lock.__enter__()
pid = os.getpid()
"""


def test_a_kernel_that_is_killed_with_the_common_lock(
    kernel: Callable[..., Any], child_environment: Callable[..., dict[str, str]]
) -> None:
    """Others choose without it meanwhile, and different GPUs; afterwards nothing is left of it."""
    environment = child_environment()
    one, two, dead = (kernel(env=environment) for _ in range(3))
    dead.run("%gpu auto -q")
    dead.run(HOLD)
    pid = dead.value("pid")

    def auto(k: Any) -> str:
        k.run("chosen = %gpu auto -o -q")
        notes, uuid = k.value("(chosen.notes, chosen.devices[0].uuid)")
        assert notes == ()
        return str(uuid)

    first = auto(one)
    assert len({claim.uuids for claim in claims.all_claims()}) == 2
    os.kill(pid, signal.SIGKILL)
    dead.manager.cleanup_resources()
    wait_for(lambda: len(claims.all_claims()) == 1)
    assert auto(two) != first
    assert {claim.pid for claim in claims.all_claims()} == {
        k.value("__import__('os').getpid()") for k in (one, two)
    }
