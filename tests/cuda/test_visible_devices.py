"""The devices that ``CUDA_VISIBLE_DEVICES`` shows, by the grammar of the CUDA driver."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpumagic.cuda.visible_devices import View, came_too_late, hides_all, list_ends_at, shown, view
from gpumagic.results.devices import Device, MigInstance
from tests.support import forks
from tests.virtual_gpu import GPU, Scenario

UUIDS = [f"GPU-{n}0000-0000-4000-8000-000000000000" for n in ("aa11", "aa22", "bb33", "cc44")]

FOUR = tuple(Device(i, uuid=u, name="H100", memory_free=2**33) for i, u in enumerate(UUIDS))

UNEQUAL = tuple(
    Device(i, uuid=u, name=name)
    for i, (u, name) in enumerate(zip(UUIDS, ("T4", "H100", "T4", "H100"), strict=True))
)


def variables(mask: str | None) -> dict[str, str]:
    return {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}


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
    seen = view(variables(mask), DIVIDED)
    assert (seen.indexes, seen.instances) == (indexes, instances)


#: What a value shows of `FOUR`; None: it names a GPU twice, which hides all of them.
MASKS: dict[str | None, tuple[int, ...] | None] = {
    None: (0, 1, 2, 3),
    **dict.fromkeys(("", "-1", "NoDevFiles", "all", "gpu-aa11", "9,0"), ()),
    "0,2,-1,1": (0, 2),
    "0,9": (0,),
    "1gpu2,2amp": (1, 2),
    " 0, 1 ": (0, 1),
    "0;1": (0,),
    "3,2": (3, 2),
    "+1": (1,),
    UUIDS[1]: (1,),
    "GPU-b": (2,),
    "GPU-aa": (),
    "GPU-bb33,GPU-aa11": (2, 0),
    "GPU-bb33, GPU-aa11": (2,),
    " GPU-bb33": (),
    "GPU-bb33,0": (2,),
    "0,GPU-bb33": (0,),
    "GPU-bb33,GPU-zz,GPU-aa11": (2,),
    **dict.fromkeys(("0,0", "0,9,0", "0,9,9", "GPU-aa11,GPU-aa11", f"GPU-b,{UUIDS[2]}"), None),
}
#: What the driver and torch's own parser, over NVML, make of them: UUIDs or an error; a number.
READ = """
import ctypes, json, os, torch
def visible():
    lib, n, raw = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    error = lib.cuInit(0)
    lib.cuDeviceGetCount(ctypes.byref(n))
    read = lambda i: lib.cuDeviceGetUuid_v2(raw, i) or bytes(raw).hex()
    return error or [read(i) for i in range(n.value)]
for mask in masks:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ |= {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    count = torch.cuda._device_count_nvml()
    if os.fork() == 0:  # the driver reads it once
        print(json.dumps([visible(), count]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("mask", MASKS)
def test_what_a_mask_shows(mask: str | None) -> None:
    environment, indexes = variables(mask), MASKS[mask] or ()
    seen = view(environment, FOUR)
    assert (seen.indexes, seen.visible) == (indexes, {*indexes})
    assert hides_all(environment, FOUR) == (not indexes)


def test_the_driver_and_torch_read_a_mask_so(child_environment: Callable[..., Any]) -> None:
    env = child_environment(Scenario(devices=[GPU(uuid=uuid) for uuid in UUIDS]))
    command = [sys.executable, "-W", "ignore", "-c", f"masks = {[*MASKS]}\n{READ}"]
    found = [*map(json.loads, forks.output(command, env=env).splitlines())]
    uuids = [uuid.removeprefix("GPU-").replace("-", "") for uuid in UUIDS]
    for (mask, indexes), answers in zip(MASKS.items(), found, strict=True):
        error = 101 if indexes is None else 100
        count = len(indexes or ())
        assert answers == [[uuids[i] for i in indexes or ()] or error, count], mask


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (None, None),
        ("-1", None),
        ("0,2,-1,1", None),  # there to end it
        ("0,1,", None),
        ("MIG-GPU-aa11/1/0,9", None),  # not known
        ("0,9,1", "CUDA stops at '9' in CUDA_VISIBLE_DEVICES=0,9,1, .* it hides what follows"),
        ("9", "CUDA stops at '9' in CUDA_VISIBLE_DEVICES=9, which is no GPU: it hides every GPU"),
        ("all", "CUDA stops at 'all'"),
        ("GPU-bb33, GPU-aa11", "CUDA stops at ' GPU-aa11'"),
        ("0,0", "names a GPU twice: CUDA hides every GPU"),
        ("GPU-bb33,GPU-b", "names a GPU twice: CUDA hides every GPU"),
    ],
)
def test_where_cuda_stops_to_read_a_mask(mask: str | None, says: str | None) -> None:
    found = list_ends_at(variables(mask), FOUR)
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
    assert came_too_late(variables(mask), seen) == too_late
    hidden = {"CUDA_VISIBLE_DEVICES": "0"}
    unknown = tuple(replace(device, visible=True) for device in UNEQUAL)
    assert not came_too_late(hidden, unknown), "a number may be any device's"


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        (View((0, 2), frozenset({0, 2})), (0, 2), True),
        (View((2, 0), frozenset({0, 2})), (0, 2), False),
        (View((0,), frozenset({0})), (0, 2), False),
        (View((0,), frozenset({0})), (0, 4), False),
        (View((), frozenset()), (), True),
        (View((), frozenset()), (0,), False),
        (View(None, frozenset({0, 2})), (2, 0), True),
        (View(None, frozenset({0, 2})), (0,), False),
        (View(), (0,), True),
    ],
)
def test_what_a_driver_shows_is_compared(wanted: View, found: tuple[int, ...], fits: bool) -> None:
    assert wanted.fits(shown([[*UUIDS, "GPU-unknown"][i] for i in found], FOUR)) is fits


def test_the_first_instance_that_a_driver_shows_of_a_gpu() -> None:
    seen = shown(["MIG-2b", "MIG-1a"], DIVIDED)
    assert (seen.indexes, seen.visible, seen.instances) == ((0, 0), {0}, {0: "MIG-2b"})
