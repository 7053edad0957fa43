"""The grammar of a spec, and the devices that it names."""

from __future__ import annotations

import pytest

from gpumagic.errors import SpecError
from gpumagic.results.devices import Device, MigInstance
from gpumagic.selection.spec import parse, resolve

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")

FOUR = tuple(Device(i, uuid=u, name="H100", memory_free=2**33) for i, u in enumerate(UUIDS))


WORDS = {"off": "off OFF", "on": "on", "reset": "reset", "auto": "auto Auto"}


@pytest.mark.parametrize("kind", WORDS)
def test_words(kind: str) -> None:
    assert {parse(word).kind for word in WORDS[kind].split()} == {kind}


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
        ("9", "there is no GPU 9; this machine has GPUs 0–3"),
        ("2-4", "there is no GPU 4"),
        ("0,0", "GPU 0 is named twice"),
        ("0-2,1", "GPU 1 is named twice"),
        ("0,GPU-aa11", "GPU-aa11 is named twice"),
        ("1-", "'1-' is not a choice of GPUs; write off, on,"),
        ("-1", "'-1' is not a choice of GPUs; did you mean off?"),
        ("CPU", "'CPU' is not a choice of GPUs; did you mean off?"),
        ("disable", "did you mean off?"),
        ("all", "did you mean on?"),
        ("best", "did you mean auto?"),
        ("status", "did you mean %gpu alone, which shows the table?"),
        ("3-1", "runs backwards; write 1-3"),
        ("0-100000", "'0-100000' is not a choice of GPUs"),
        ("9" * 5000, "is not a choice of GPUs"),
        ("GPU-zz", "no UUID begins with 'GPU-zz'; the GPUs are 0: GPU-aa11"),
        ("GPU-", "'GPU-' is not a choice of GPUs"),
        ("GPU-aa", "ambiguous; it begins GPU 0 (GPU-aa11), GPU 1 (GPU-aa22)"),
        (
            "0,,1",
            "'' is not a choice of GPUs; write off, on, reset, auto, nvidia-smi's index (0), a",
        ),
        ("0 1", "'0 1' is not a choice of GPUs; did you mean 0,1?"),
        ("2, 0-1 3", "'0-1 3' is not a choice of GPUs; did you mean 0-1,3?"),
        ("cuda:0,1", "'cuda:0' is not a choice of GPUs; did you mean 0 (nvidia-smi's number)?"),
        ("gpu2", "did you mean 2 (nvidia-smi's number)?"),
        ("auto 0", "takes a number of GPUs, not '0'"),
        ("auto two", "'auto' takes a number of GPUs, not 'two'"),
        ("0,offf", "did you mean off?"),
        ("0,off", "'off' is no part of a list; write it alone: off"),
        ("auto,0", "'auto' is no part of a list; write it alone: auto"),
    ],
)
def test_an_invalid_spec_is_one_clear_line(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(parse(text), FOUR)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_many_gpus_are_not_all_listed() -> None:
    many = [Device(index, uuid=f"GPU-{index:08x}-{'0' * 27}") for index in range(16)]
    with pytest.raises(SpecError, match=r"the GPUs are 0: .*7: GPU-00000007 and 8 more$"):
        resolve(parse("GPU-zz"), many)
    with pytest.raises(SpecError, match="and 8 more: write more of it"):
        resolve(parse("GPU-0"), many)
