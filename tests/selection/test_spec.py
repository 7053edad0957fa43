"""The grammar of a spec, and the choice of ``auto``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.errors import DeviceError, SpecError
from gpumagic.results import Device, MigInstance, Process
from gpumagic.selection.spec import Wants, freest, parse, pick, resolve

GIB = 2**30

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")

FOUR = tuple(Device(i, uuid=u, name="H100", memory_free=8 * GIB) for i, u in enumerate(UUIDS))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("off", "off"),
        ("none", "off"),
        ("cpu", "off"),
        ("OFF", "off"),
        ("on", "on"),
        ("all", "on"),
        ("reset", "reset"),
        ("auto", "auto"),
        ("0", "devices"),
    ],
)
def test_words(text: str, kind: str) -> None:
    assert parse(text).kind == kind


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("0", ["GPU-aa11"]),
        ("0,2", ["GPU-aa11", "GPU-bb33"]),
        ("2,0", ["GPU-bb33", "GPU-aa11"]),
        (" 0 , 2 ", ["GPU-aa11", "GPU-bb33"]),
        ("1-3", ["GPU-aa22", "GPU-bb33", "GPU-cc44"]),
        ("3,0-1", ["GPU-cc44", "GPU-aa11", "GPU-aa22"]),
        ("GPU-b", ["GPU-bb33"]),
        ("gpu-B", ["GPU-bb33"]),
        ("GPU-aa22,0", ["GPU-aa22", "GPU-aa11"]),
    ],
)
def test_devices(text: str, uuids: list[str]) -> None:
    assert list(resolve(parse(text), FOUR)) == uuids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9", "there is no GPU 9; this machine has GPUs 0, 1, 2 and 3"),
        ("0,9", "there is no GPU 9"),
        ("2-4", "there is no GPU 4"),
        ("0,0", "GPU 0 is named twice"),
        ("0," * 300 + "0", "GPU 0 is named twice in '0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0…'"),
        ("0-2,1", "GPU 1 is named twice"),
        ("0,GPU-aa11", "GPU-aa11 is named twice"),
        ("1-", "'1-' is not a range; write, for example, 1-2"),
        ("-1", "to hide all GPUs write: off"),
        ("3-1", "runs backwards; write 1-3"),
        ("0-100000", "the range '0-100000' goes beyond 1023; write 0-3, for example"),
        ("0-999999999999", "goes beyond 1023"),
        ("GPU-zz", "no UUID begins with 'GPU-zz'; the GPUs are 0: GPU-aa11"),
        ("GPU-", "is no UUID"),
        ("GPU-aa", "ambiguous; it begins GPU 0 (GPU-aa11), GPU 1 (GPU-aa22)"),
        ("offf", "did you mean 'off'?"),
        ("rest", "did you mean 'reset'?"),
        ("0,,1", "an empty place between commas"),
        ("0 1", "separate GPUs by commas: 0,1"),
        ("auto 0", "to hide all GPUs write: off"),
        ("auto two", "'auto' takes a number of GPUs, not 'two'"),
        ("0;1", "'0;1' is not a choice of GPUs; write off, on,"),
        ("0,offf", "did you mean 'off'? Write off, on,"),
        ("0,off", "'off' is no part of a list; write it alone: off"),
        ("auto,0", "'auto' is no part of a list; write it alone: auto"),
        ("-1,0", "-1 is no GPU"),
    ],
)
def test_an_invalid_spec_is_one_clear_line(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(parse(text), FOUR)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_without_a_uuid_cannot_be_written() -> None:
    lost = (Device(0, error="the GPU is lost"),)
    with pytest.raises(DeviceError, match=r"GPU 0 cannot be chosen: its .*the GPU is lost"):
        resolve(parse("0"), lost)
    start = "start the kernel with CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES=1"
    for choose in (lambda d: resolve(parse("1"), d), lambda d: pick(d, 1, Wants())):
        with pytest.raises(DeviceError, match=start):
            choose((Device(1),))


def test_a_lost_device_cannot_be_chosen() -> None:
    """By none of its names; the others can."""
    one_lost = (FOUR[0], replace(FOUR[1], error="the GPU is lost"), *FOUR[2:])
    for spec in ("1", "0-1", "GPU-aa22"):
        with pytest.raises(DeviceError, match="GPU 1 cannot be chosen: the GPU is lost; leave it"):
            resolve(parse(spec), one_lost)
    assert resolve(parse("0,2"), one_lost) == ("GPU-aa11", "GPU-bb33")


def test_a_whole_uuid_is_not_ambiguous() -> None:
    longer = (Device(0, uuid="GPU-aa1"), Device(1, uuid="GPU-aa"), Device(2, uuid="GPU-aa12"))
    assert resolve(parse("GPU-AA"), longer) == ("GPU-aa",)
    with pytest.raises(SpecError, match="ambiguous"):
        resolve(parse("GPU-a"), longer)


DIVIDED = (
    Device(0, uuid="GPU-aa", mig=(MigInstance("MIG-1a"), MigInstance("MIG-2b"))),
    Device(1, uuid="GPU-bb"),
)


def test_mig_instances_are_found_by_their_uuid() -> None:
    assert resolve(parse("MIG-2"), DIVIDED) == ("MIG-2b",)
    assert resolve(parse("mig-1A"), DIVIDED) == ("MIG-1a",)


def test_one_mig_instance_is_all_that_cuda_shows() -> None:
    for spec in ("MIG-1a,MIG-2b", "MIG-1a,1", "0,1", "1,0", "0-1", "GPU-b,mig-2"):
        with pytest.raises(SpecError, match=r"cannot be shown together.*write, for example, MIG-"):
            resolve(parse(spec), DIVIDED)
    assert resolve(parse("0"), DIVIDED) == ("GPU-aa",)


def test_auto_takes_an_instance_not_the_gpu_that_it_is_of() -> None:
    parts = (MigInstance("MIG-1a", None, 10, 8), MigInstance("MIG-2b", None, 10, 4))
    divided = Device(0, uuid="GPU-aa", memory_free=99, utilization=0, processes=(), mig=parts)
    assert pick([divided], 1, Wants()) == ("MIG-2b",)
    assert pick([replace(divided, instance="MIG-1a")], 1, Wants()) == ("MIG-1a",)
    assert pick([divided, Device(1, uuid="GPU-bb", memory_free=7)], 1, Wants()) == ("GPU-bb",)
    with pytest.raises(DeviceError, match="MIG-1a: its utilisation is not known"):
        pick([divided], 1, Wants(idle=True))
    with pytest.raises(SpecError, match="only 1 of 2 are whole"):
        pick([divided, Device(1, uuid="GPU-bb")], 2, Wants())


# --- auto --------------------------------------------------------------------------------------

BUSY = (
    Device(0, uuid="GPU-a", memory_free=10 * GIB, utilization=0, processes=()),
    Device(1, uuid="GPU-b", memory_free=70 * GIB, utilization=80, processes=()),
    Device(2, uuid="GPU-c", memory_free=70 * GIB, utilization=5, processes=(Process(7, 1),)),
    Device(3, uuid="GPU-d", memory_free=None, utilization=None, processes=None),
)


def test_auto_takes_the_most_free_memory_then_the_least_utilised() -> None:
    assert [d.index for d in freest(BUSY, Wants())] == [2, 1, 0, 3]
    assert pick(BUSY, 2, Wants()) == ("GPU-c", "GPU-b")


def test_auto_counts_the_unknown_as_unfit() -> None:
    assert [d.index for d in freest(BUSY, Wants(min_free=20 * GIB))] == [2, 1]
    assert [d.index for d in freest(BUSY, Wants(max_util=10))] == [2, 0]
    assert [d.index for d in freest(BUSY, Wants(idle=True))] == [0]


def test_auto_says_what_does_not_fit() -> None:
    with pytest.raises(DeviceError) as caught:
        pick(BUSY, 2, Wants(idle=True), can_wait=True)
    assert str(caught.value) == (
        "only 1 of 4 GPUs fit, 2 requested (GPU 1: 80 % utilised; GPU 2: 5 % utilised; "
        "GPU 3: its utilisation is not known); --wait SECONDS waits for them"
    )
    with pytest.raises(
        SpecError, match="9 GPUs are requested; this machine has GPUs 0, 1, 2 and 3"
    ):
        pick(BUSY, 9, Wants())


def test_waiting_is_advised_where_it_can_help() -> None:
    def expected(devices: tuple[Device, ...], wants: Wants, can_wait: bool = True) -> str:
        with pytest.raises(DeviceError) as caught:
            pick(devices, 1, wants, can_wait=can_wait)
        return str(caught.value)

    small = (Device(0, uuid="GPU-a", memory_total=8 * GIB, memory_free=1 * GIB),)
    assert "--wait" in expected(small, Wants(min_free=2 * GIB))
    assert "--wait" not in expected(small, Wants(min_free=2 * GIB), can_wait=False)  # it has waited
    assert "--wait" not in expected(small, Wants(min_free=9 * GIB))
    assert "--wait" not in expected(small, Wants(max_util=10))  # not known
    assert "--wait" not in expected((replace(small[0], error="the GPU is lost"),), Wants())


def test_own_memory_does_not_make_a_device_busy() -> None:
    mine = Device(0, uuid="GPU-a", utilization=0, processes=(Process(1, 5, own=True),))
    assert pick([mine], 1, Wants(idle=True)) == ("GPU-a",)


def test_too_little_free_memory_everywhere_is_one_statement() -> None:
    gib = 2**30
    found = [
        Device(i, uuid=f"GPU-{i}", memory_free=free * gib) for i, free in enumerate((40, 79, 3))
    ]
    with pytest.raises(
        DeviceError, match=r"^no GPU has 200 GiB free; the most is 79.0 GiB on GPU 1$"
    ):
        pick(found, 1, Wants(min_free=200 * gib))


def test_many_gpus_are_not_all_listed() -> None:
    many = [Device(index, uuid=f"GPU-{index:08x}-{'0' * 27}") for index in range(16)]
    with pytest.raises(SpecError) as caught:
        resolve(parse("GPU-zz"), many)
    assert str(caught.value).startswith(
        "no UUID begins with 'GPU-zz'; the GPUs are 0: GPU-00000000"
    )
    assert str(caught.value).endswith("7: GPU-00000007 and 8 more")
    with pytest.raises(SpecError, match="and 8 more: write more of it"):
        resolve(parse("GPU-0"), many)
