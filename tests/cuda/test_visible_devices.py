"""The devices that ``CUDA_VISIBLE_DEVICES`` shows, by the grammar of the CUDA driver."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumagic.cuda.visible_devices import View, came_too_late, hides_all, list_ends_at, shown, view
from gpumagic.results.devices import Device, MigInstance

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")

FOUR = tuple(Device(i, uuid=u, name="H100", memory_free=2**33) for i, u in enumerate(UUIDS))

UNEQUAL = tuple(
    Device(i, uuid=u, name=name)
    for i, (u, name) in enumerate(zip(UUIDS, ("T4", "H100", "T4", "H100"), strict=True))
)


def test_a_machine_without_gpus_hides_none() -> None:
    assert not hides_all({}, ())
    assert hides_all({"CUDA_VISIBLE_DEVICES": "0"}, ())


DIVIDED = (
    Device(0, uuid="GPU-aa", mig=(MigInstance("MIG-1a"), MigInstance("MIG-2b"))),
    Device(1, uuid="GPU-bb"),
)


@pytest.mark.parametrize(
    ("mask", "indexes", "instances"),
    [
        (None, (0,), {0: "MIG-1a"}),
        ("0", (0,), {0: "MIG-1a"}),
        ("GPU-a", (0,), {0: "MIG-1a"}),
        ("1", (1,), {}),
        ("1,0", (0,), {0: "MIG-1a"}),
        ("MIG-2", (0,), {0: "MIG-2b"}),
        ("MIG-2b,MIG-1a", (0,), {0: "MIG-2b"}),
        ("MIG-2b,MIG-2", (), {}),
        ("MIG-2b,GPU-b", (0,), {0: "MIG-2b"}),
        ("GPU-b,MIG-2b", (1,), {}),
        ("MIG-zz", (), {}),
        ("MIG-GPU-aa/1/0", None, {}),
    ],
)
def test_what_a_mask_shows_of_a_divided_gpu(
    mask: str | None, indexes: tuple[int, ...] | None, instances: dict[int, str]
) -> None:
    seen = view({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, DIVIDED)
    assert (seen.indexes, seen.instances) == (indexes, instances)


# --- what a value shows (the table in the CUDA programming guide and torch's parser) -------------


@pytest.mark.parametrize(
    ("mask", "indexes"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("all", ()),
        ("gpu-aa11", ()),
        ("0,2,-1,1", (0, 2)),
        ("0,0", ()),
        ("GPU-aa11,GPU-aa11", ()),
        ("9,0", ()),
        ("0,9", (0,)),
        ("1gpu2,2amp", (1, 2)),
        (" 0, 1 ", (0, 1)),
        ("0;1", (0,)),
        ("3,2", (3, 2)),
        ("GPU-b", (2,)),
        ("GPU-aa", ()),
        ("GPU-bb33,GPU-aa11", (2, 0)),
        ("GPU-bb33, GPU-aa11", (2,)),
        (" GPU-bb33", ()),
        ("GPU-bb33,0", (2,)),
        ("0,GPU-bb33", (0,)),
        ("GPU-bb33,GPU-zz,GPU-aa11", (2,)),
        ("GPU-bb33,GPU-b", ()),
        ("0,9,9", ()),
        ("+1", (1,)),
        ("-0", ()),
    ],
)
def test_what_a_mask_shows(mask: str | None, indexes: tuple[int, ...]) -> None:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    seen = view(environment, FOUR)
    assert seen.indexes == indexes
    assert seen.visible == frozenset(indexes)
    assert hides_all(environment, FOUR) == (mask is not None and not indexes)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (None, None),
        ("", None),
        ("-1", None),
        ("0,2,-1,1", None),  # there to end it
        ("3,2", None),
        ("0,1,", None),
        ("GPU-bb33,GPU-aa11", None),
        ("MIG-GPU-aa11/1/0,9", None),  # not known
        ("0,9,1", "CUDA stops at '9' in CUDA_VISIBLE_DEVICES=0,9,1, .* it hides what follows"),
        ("9", "CUDA stops at '9' in CUDA_VISIBLE_DEVICES=9, which is no GPU: it hides every GPU"),
        ("all", "CUDA stops at 'all'"),
        ("0;1,2", None),
        ("GPU-bb33, GPU-aa11", "CUDA stops at ' GPU-aa11'"),
        ("0,GPU-bb33", "CUDA stops at 'GPU-bb33'"),
        ("0,0", "names a GPU twice: CUDA hides every GPU"),
        ("GPU-bb33,GPU-b", "names a GPU twice: CUDA hides every GPU"),
    ],
)
def test_where_cuda_stops_to_read_a_mask(mask: str | None, says: str | None) -> None:
    found = list_ends_at({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, FOUR)
    assert (found is None) if says is None else re.search(says, str(found))


def test_numbers_are_ambiguous_where_cudas_order_is_not_known() -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "0"}
    assert view(mask, UNEQUAL).visible is None
    assert view(mask | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, UNEQUAL).indexes == (0,)
    assert view({"CUDA_VISIBLE_DEVICES": "GPU-cc44,GPU-aa11"}, UNEQUAL).indexes == (3, 0)
    unset = view({}, UNEQUAL)
    assert unset.visible == {0, 1, 2, 3}
    assert unset.indexes is None


@pytest.mark.parametrize(
    ("mask", "too_late"),
    [
        (None, False),
        ("0,1", False),
        ("1,0,3", False),  # it would show one more
        ("0", True),
        ("-1", True),
        ("GPU-aa11", True),
        ("GPU-aa11,GPU-aa22", False),
    ],
)
def test_a_mask_that_hides_what_is_seen_came_too_late(mask: str | None, too_late: bool) -> None:
    seen = tuple(replace(device, visible=device.index < 2) for device in FOUR)
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert came_too_late(environment, seen) == too_late
    hidden = {"CUDA_VISIBLE_DEVICES": "0"}
    unknown = tuple(replace(device, visible=True) for device in UNEQUAL)
    assert not came_too_late(hidden, unknown), "a number may be any device's"


@pytest.mark.parametrize(
    ("wanted", "uuids", "fits"),
    [
        (View((0, 2), frozenset({0, 2})), ("GPU-aa11", "GPU-bb33"), True),
        (View((2, 0), frozenset({0, 2})), ("GPU-aa11", "GPU-bb33"), False),
        (View((0,), frozenset({0})), ("GPU-aa11", "GPU-bb33"), False),
        (View((0,), frozenset({0})), ("GPU-aa11", "GPU-unknown"), False),
        (View((), frozenset()), (), True),
        (View((), frozenset()), ("GPU-aa11",), False),
        (View(None, frozenset({0, 2})), ("GPU-bb33", "GPU-aa11"), True),
        (View(None, frozenset({0, 2})), ("GPU-aa11",), False),
        (View(), ("GPU-aa11",), True),
    ],
)
def test_what_a_driver_shows_is_compared(wanted: View, uuids: tuple[str, ...], fits: bool) -> None:
    assert wanted.fits(shown(uuids, FOUR)) is fits


def test_the_first_instance_that_a_driver_shows_of_a_gpu() -> None:
    seen = shown(["MIG-2b", "MIG-1a"], DIVIDED)
    assert (seen.indexes, seen.visible, seen.instances) == ((0, 0), {0}, {0: "MIG-2b"})
