"""The text of parked and restored memory."""

from __future__ import annotations

from gpumagic.results.parking import DeviceParking, ParkedMemory, StayingMemory, Unparked

GIB = 2**30


def test_what_is_parked_and_what_stays() -> None:
    stays = (StayingMemory("an object of cupy uses it", GIB, 2, ("a", "model")),)
    device = DeviceParking(4 * GIB, 3 * GIB, stays, 0, 5 * GIB, GIB, 2 * GIB, GIB, GIB // 2)
    parked = ParkedMemory({0: device}, 3 * GIB, 7, 2.0, 0.25, True)
    lines = str(parked).splitlines()
    assert lines[2].split()[:3] == ["cuda:0", "3.00", "GiB"]
    assert "5.00 GiB → 2.00 GiB" in lines[2]
    text = " ".join(lines)
    assert "cuda:0: 1.00 GiB stay (a, model): an object of cupy uses it" in text
    assert "cuda:0: 1.00 GiB stay reserved: the rest of the segments in which that is" in text
    assert (
        "3.00 GiB in pinned host memory, copied in 2.00 s (1.50 GiB/s), and found in 250 ms" in text
    )
    assert "%gpumem unpark" in text


def test_nothing_to_park() -> None:
    assert str(ParkedMemory(notes=("why",))).splitlines() == ["There is nothing to park.", "why"]


def test_brought_back() -> None:
    back = Unparked({0: GIB, 1: 2 * GIB}, 2, 0.5, 61.0)
    assert str(back) == (
        "Brought back 1.00 GiB to cuda:0, 2.00 GiB to cuda:1 in 500 ms (6.00 GiB/s), "
        "parked for 1 min 1 s."
    )
    assert str(Unparked({0: GIB}, 1, 0.5, 0.026)).endswith(", parked for 26.0 ms.")
    assert str(Unparked()) == "Nothing is parked."
    assert repr(Unparked({}, 1)) == "<Unparked: 1 storage>"
