"""What torch's allocator was asked to do."""

from __future__ import annotations

from gpumagic.results.allocator import DeviceParking, Fit, FitRun, ParkedMemory, Unparked
from tests.results.examples import FIT_RUNS


def test_the_table() -> None:
    fit = Fit("batch", 60, FIT_RUNS, True, ("the cell ran 4 times",))
    lines = str(fit).splitlines()
    assert lines[0] == "batch = 60 is the largest that fits."
    assert [line.split() for line in lines[3:7]] == [
        ["1", "3.00", "MiB"],
        ["2", "4.00", "MiB"],
        ["60", "62.0", "MiB"],
        ["61", "✗", "out", "of", "memory"],
    ]
    assert lines[7:] == ["the cell ran 4 times"]


def test_what_is_not_exact_and_what_does_not_fit() -> None:
    unknown = str(Fit("batch", 60, FIT_RUNS[:3], False)).splitlines()[0]
    assert unknown == "batch = 60 is the largest value that ran; a larger one may fit."
    between = str(Fit("batch", 60, (*FIT_RUNS[:3], FitRun(99, None), FitRun(70, None)), False))
    assert between.splitlines()[0] == (
        "batch = 60 fits, 70 does not. The values between them were not tried."
    )
    ended = str(Fit("batch", 60, FIT_RUNS[:3], True)).splitlines()[0]
    assert ended == "batch = 60 fits: the end of the range."
    nothing = Fit("n", None, (FitRun(1, None),), False)
    assert str(nothing).splitlines()[0] == "n = 1 does not fit: memory ran out."


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
