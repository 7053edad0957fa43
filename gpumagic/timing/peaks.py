"""Dense peaks of cards by NVIDIA's data sheets: operations per second, with tensor cores.

A data sheet often quotes the figure with sparsity, which is twice as high; these are without. Where
a card has variants, its name says which. The peak of a card that is not listed is not known.

Sources: the data sheets of NVIDIA H100 (2023), H200 (2024), A100 (2021), L40S (2023), L4 (2023),
A10 (2021), A40 (2021), RTX A6000 (2021), V100 (2020), T4 (2019); the white papers of the Ada (v2.1)
and Ampere GA102 (v2.1) architectures for GeForce cards, with FP32 accumulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_T = 1e12


def _tera(**peaks: float) -> dict[str, float]:
    found = {dtype: value * _T for dtype, value in peaks.items()}
    if "half" in found:
        found["float16"] = found["bfloat16"] = found.pop("half")
    if "float8" in found:
        found["float8_e4m3fn"] = found["float8_e5m2"] = found.pop("float8")
    return found


#: By a pattern for the whole of NVML's (and torch's) name of the card.
_PEAKS: Mapping[str, Mapping[str, float]] = {
    r"NVIDIA H200": _tera(float8=1979, half=989.5, tf32=494.7, float32=67, float64=67),
    r"NVIDIA H100 80GB HBM3": _tera(float8=1979, half=989.5, tf32=494.7, float32=67, float64=67),
    r"NVIDIA H100 PCIe": _tera(float8=1513, half=756.5, tf32=378, float32=51, float64=51),
    r"NVIDIA H100 NVL": _tera(float8=1671, half=835.5, tf32=417.5, float32=60, float64=60),
    r"NVIDIA A100.*": _tera(half=312, tf32=156, float32=19.5, float64=19.5),
    r"NVIDIA L40S": _tera(float8=733, half=362.05, tf32=183, float32=91.6),
    r"NVIDIA L4": _tera(float8=242.5, half=121, tf32=60, float32=30.3),
    r"NVIDIA A10": _tera(half=125, tf32=62.5, float32=31.2),
    r"NVIDIA A40": _tera(half=149.7, tf32=74.8, float32=37.4),
    r"NVIDIA RTX A6000": _tera(half=154.8, tf32=77.4, float32=38.7),
    r"(NVIDIA |Tesla )V100-SXM2-.*": {
        "float16": 125 * _T,
        "float32": 15.7 * _T,
        "float64": 7.8 * _T,
    },
    r"(NVIDIA |Tesla )V100-PCIE-.*": {"float16": 112 * _T, "float32": 14 * _T, "float64": 7 * _T},
    r"(NVIDIA |Tesla )T4": {"float16": 65 * _T, "float32": 8.1 * _T},
    r"NVIDIA GeForce RTX 4090": _tera(half=165.2, tf32=82.6, float32=82.6),
    r"NVIDIA GeForce RTX 4080": _tera(half=97.5, tf32=48.7, float32=48.7),
    r"NVIDIA GeForce RTX 3090": _tera(half=71, tf32=35.6, float32=35.6),
    r"NVIDIA GeForce RTX 3080": _tera(half=59.5, tf32=29.8, float32=29.8),
}


def peak(device: str, dtype: str) -> float | None:
    """Return the dense peak of a card in operations per second; None where it is not known.

    ``dtype`` as torch names it, or ``"tf32"``.
    """
    for pattern, peaks in _PEAKS.items():
        if re.fullmatch(pattern, device):
            return peaks.get(dtype)
    return None
