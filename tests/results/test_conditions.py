"""What differs between the conditions of two measurements."""

from __future__ import annotations

from gpumagic.results.conditions import Conditions, differences

CONDITIONS = Conditions(
    "2026-01-31T12:00:00+00:00", {0: "NVIDIA H200"}, {0: 1980}, "570.12", "2.9.0", "12.8", "3.11.7"
)


def test_differences_of_conditions() -> None:
    other = Conditions(devices={0: "NVIDIA A100"}, driver="570.12", torch="2.10.0", cuda="12.8")
    assert differences(other, CONDITIONS) == (
        "device NVIDIA A100 instead of NVIDIA H200",
        "torch 2.10.0 instead of 2.9.0",
    )
    assert differences(CONDITIONS, CONDITIONS) == ()
    assert differences(Conditions(), CONDITIONS) == (), "what is not known is not compared"
    assert differences(None, CONDITIONS) == ()
    # the same cards, whatever their ordinals in the process
    assert differences(Conditions(devices={3: "NVIDIA H200"}), CONDITIONS) == ()
