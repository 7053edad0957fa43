"""The choice of ``auto``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.errors import DeviceError, SpecError
from gpumagic.results.claims import Claim
from gpumagic.results.devices import Device, MigInstance
from gpumagic.results.processes import Process
from gpumagic.selection.auto import NotYetError, Wants, pick, without_own

GIB = 2**30

BUSY = (
    Device(0, uuid="GPU-a", memory_free=10 * GIB, utilization=0, processes=()),
    Device(1, uuid="GPU-b", memory_free=70 * GIB, utilization=80, processes=()),
    Device(2, uuid="GPU-c", memory_free=70 * GIB, utilization=5, processes=(Process(7, 1),)),
    Device(3, uuid="GPU-d", memory_free=None, utilization=None, processes=None),
)


def test_auto_takes_the_most_free_memory_then_the_least_utilised() -> None:
    assert pick(BUSY, 4) == ("GPU-c", "GPU-b", "GPU-a", "GPU-d")
    assert pick(BUSY, 2) == ("GPU-c", "GPU-b")


def test_auto_counts_the_unknown_as_unfit() -> None:
    large, idle = Wants(min_free=20 * GIB), Wants(idle=True)
    for wants, fitting in ((large, ("GPU-c", "GPU-b")), (idle, ("GPU-a",))):
        assert pick(BUSY, len(fitting), wants) == fitting


def test_auto_says_what_does_not_fit() -> None:
    with pytest.raises(NotYetError) as caught:
        pick(BUSY, 2, Wants(idle=True))
    assert str(caught.value) == (
        "only 1 of 4 GPUs fit, 2 requested (GPU 1: 80 % utilised; GPU 2: in use by process 7; "
        "GPU 3: its utilisation is not known)"
    )
    # What can never fit is not waited for.
    with pytest.raises(
        DeviceError, match=r"^no GPU fits, 1 requested .GPU 0: only 10.*known\)$"
    ) as no:
        pick(BUSY, 1, Wants(min_free=200 * GIB))
    assert type(no.value) is DeviceError
    with pytest.raises(SpecError, match="9 GPUs are requested; this machine has GPUs 0–3"):
        pick(BUSY, 9)


def test_what_is_not_known_is_not_waited_for() -> None:
    """By its name; a container's list without processes is no proof that nobody is there."""
    unknown = Device(0, uuid="GPU-a", memory_total=80 * GIB, utilization=0)
    for wants, what in (
        (Wants(idle=True), "processes are"),
        (Wants(min_free=GIB), "free memory is"),
    ):
        with pytest.raises(DeviceError, match=f"GPU 0: its {what} not known.$") as never:
            pick([unknown], 1, wants)
        assert type(never.value) is DeviceError
    hidden = replace(unknown, processes=(), memory_used=30 * GIB)
    with pytest.raises(
        NotYetError, match=r"30\.0 GiB in use by processes that are not listed here"
    ):
        pick([hidden], 1, Wants(idle=True))
    assert pick([replace(hidden, memory_used=2**20)], 1, Wants(idle=True)) == ("GPU-a",)


def test_who_waits_waits_for_an_idle_gpu_that_nobody_claims() -> None:
    """Without a claim of another's a GPU may be idle, with one it will be used at once."""
    claimed = {"GPU-a": [Claim(7)]}
    idle, busy = (replace(device, memory_total=80 * GIB) for device in BUSY[:2])
    for wants in (Wants(wait=60), Wants(idle=True), Wants(min_free=GIB, wait=60)):
        with pytest.raises(NotYetError, match="GPU 0: claimed by process 7"):
            pick([idle], 1, wants, claimed)
        assert pick([idle], 1, wants) == ("GPU-a",)
    assert pick([idle], 1, others=claimed) == ("GPU-a",)  # who does not wait shares it
    with pytest.raises(NotYetError, match="80 % utilised"):
        pick([busy], 1, Wants(wait=60))
    assert pick([busy], 1, Wants(min_free=GIB, wait=60)) == ("GPU-b",)


def test_for_a_fresh_process_what_this_one_uses_is_free() -> None:
    mine = (Process(1, 60 * GIB, own=True),)
    own = Device(
        *(0, None, "GPU-a", None, 80 * GIB, 62 * GIB, 18 * GIB, 90),
        processes=mine,
        memory_own=60 * GIB,
    )
    with pytest.raises(NotYetError):
        pick([own], 1, Wants(min_free=70 * GIB))
    assert pick([without_own(own)], 1, Wants(min_free=70 * GIB, idle=True)) == ("GPU-a",)
    shared = without_own(replace(own, processes=(*mine, Process(2, GIB, own=False))))
    assert (shared.memory_free, shared.utilization) == (78 * GIB, 90)
    assert without_own(replace(own, memory_own=None)).memory_free == 18 * GIB


def test_own_memory_does_not_make_a_device_busy() -> None:
    mine = Device(0, uuid="GPU-a", utilization=0, processes=(Process(1, 5, own=True),))
    assert pick([mine], 1, Wants(idle=True)) == ("GPU-a",)


def test_the_least_claimed_come_first() -> None:
    others = {"GPU-c": [Claim(7), Claim(8)], "GPU-b": [Claim(7)]}
    assert pick(BUSY, 4, others=others) == ("GPU-a", "GPU-d", "GPU-b", "GPU-c")
    parts = (MigInstance("MIG-1a", None, 10, 8), MigInstance("MIG-2b", None, 10, 4))
    divided = Device(0, uuid="GPU-aa", mig=parts)
    assert pick([divided], 1, others={"MIG-2b": [Claim(7)]}) == ("MIG-1a",)


def test_auto_takes_an_instance_not_the_gpu_that_it_is_of() -> None:
    parts = (MigInstance("MIG-1a", None, 10, 8), MigInstance("MIG-2b", None, 10, 4))
    divided = Device(0, uuid="GPU-aa", memory_free=99, utilization=0, processes=(), mig=parts)
    assert pick([divided], 1) == ("MIG-2b",)
    assert pick([replace(divided, instance="MIG-1a")], 1) == ("MIG-1a",)
    assert pick([divided, Device(1, uuid="GPU-bb", memory_free=7)], 1) == ("GPU-bb",)
    with pytest.raises(DeviceError, match="MIG-1a: its utilisation is not known"):
        pick([divided], 1, Wants(idle=True))
    with pytest.raises(SpecError, match="only 1 of 2 are whole"):
        pick([divided, Device(1, uuid="GPU-bb")], 2)
