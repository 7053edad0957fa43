"""The text of a limit."""

from __future__ import annotations

from gpumagic.results.limit import LimitState


def test_with_and_without() -> None:
    assert str(LimitState()) == (
        "No limit: torch may use the whole device. '%gpumem limit 16GiB' sets one."
    )
    lines = str(LimitState(16 * 2**30)).splitlines()
    assert lines[0] == "This process may use at most 16.0 GiB of each GPU."
    assert "%gpumem limit off" in " ".join(lines)
    assert str(LimitState(None, ("cuda:0: more",))).splitlines() == [
        "No limit by %gpumem. '%gpumem limit 16GiB' sets one.",
        "cuda:0: more",
    ]
    assert str(LimitState(2**30, ("cuda:0: more",))).splitlines()[-1] == "cuda:0: more"
    assert repr(LimitState(2**30)) == "<LimitState: 1.00 GiB>"
