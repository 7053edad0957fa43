"""The text of parked and restored memory."""

from __future__ import annotations

from gpumagic.results.allocator import DeviceParking, ParkedMemory, Unparked

GIB = 2**30


def test_what_is_parked_and_what_stays() -> None:
    stays = {"C++ code may use it": GIB}
    device = DeviceParking(3 * GIB, stays, 5 * GIB, 2 * GIB, GIB // 2)
    parked = ParkedMemory({0: device}, 2.0)
    lines = str(parked).splitlines()
    assert lines[2].split() == "cuda:0 3.00 GiB 1.00 GiB 5.00 GiB → 2.00 GiB 512 MiB".split()
    text = " ".join(lines)
    assert "cuda:0: 1.00 GiB stay: C++ code may use it; see %gpumem vars" in text
    assert "Copied to host memory in 2.00 s (1.50 GiB/s); it comes back before the next" in text


def test_brought_back() -> None:
    back = Unparked({0: GIB, 1: 2 * GIB}, 2, 0.5, 61.0)
    assert str(back) == (
        "Brought back 1.00 GiB to cuda:0, 2.00 GiB to cuda:1 in 500 ms (6.00 GiB/s), "
        "parked for 1 min 1 s."
    )
    assert str(Unparked({0: GIB}, 1, 0.5, 0.026)).endswith(", parked for 26.0 ms.")
    assert str(Unparked()) == "Nothing is parked."
