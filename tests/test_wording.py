"""Counts with their nouns, and lists of names."""

from __future__ import annotations

from gpumagic.wording import listed, noun, plural


def test_a_count_with_its_noun() -> None:
    assert plural(0, "GPU") == "0 GPUs"
    assert plural(1, "GPU") == "1 GPU"
    assert plural(2048, "GPU") == "2,048 GPUs"
    assert plural(1, "launch", "launches") == "1 launch"
    assert plural(2, "launch", "launches") == "2 launches"
    assert f"{noun(2, 'engine')} 0, 3" == "engines 0, 3"
    assert noun(1, "engine") == "engine"


def test_a_list_of_names() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"], 2) == "a, b"
    assert listed([*"abcd"], 2) == "a, b and 2 more"
    assert listed(["n"] * 2008).endswith(", n and 2,000 more")
