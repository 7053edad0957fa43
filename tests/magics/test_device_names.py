"""Devices in a list: each once, whether it is named by index, in a range or by UUID."""

from __future__ import annotations

import pytest

from gpumagic.magics.device_names import gpus, torch_devices

DEVICES = tuple((i, f"GPU-{i}aaa") for i in range(4))


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("", ["0", "1", "2", "3"]),
        ("1-", ["1-2", "1-3"]),
        ("0,2-", ["0,2-3"]),
        ("2,1-", []),  # 2 twice
        ("3-", []),
        ("7-", []),
        ("0-2,", ["0-2,3"]),
        ("0-3,", []),
        ("0,GPU-", ["0,GPU-1aaa", "0,GPU-2aaa", "0,GPU-3aaa"]),
        ("GPU-1,", ["GPU-1,0", "GPU-1,2", "GPU-1,3"]),
        ("gpu-1AAA,0-1,", ["gpu-1AAA,0-1,2", "gpu-1AAA,0-1,3"]),
        ("99999999999999999-", []),
    ],
)
def test_gpus(fragment: str, expected: list[str]) -> None:
    assert [each for each in gpus(fragment, DEVICES) if each.startswith(fragment)] == expected


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("", ["cpu", "cuda", "cuda:0", "cuda:1"]),
        ("cuda,", ["cuda,cpu", "cuda,cuda:1"]),
        ("cuda:0,", ["cuda:0,cpu", "cuda:0,cuda:1"]),
        ("cpu,cuda:1,", ["cpu,cuda:1,cuda", "cpu,cuda:1,cuda:0"]),
    ],
)
def test_torch_devices(fragment: str, expected: list[str]) -> None:
    assert [*torch_devices(fragment, 2)] == expected


def test_a_device_without_a_uuid_has_no_other_name() -> None:
    assert [*gpus("GPU-", ((0, None),))] == []
    assert [*gpus("0,", ((0, None), (1, None)))] == ["0,1"]
