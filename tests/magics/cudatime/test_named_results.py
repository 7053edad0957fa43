"""``%%cudatime --name`` and ``%cudatime --compare``."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.results import Comparison


def test_kept_results_side_by_side(run_cell: Any, clock: None) -> None:
    run_cell("import time\n%cudatime -q --name baseline -n 1 -r 5 time.sleep(0.1)")
    ran = run_cell("%%cudatime --name faster -q -n 1 -r 5\ntime.sleep(0.001)")
    assert ran.text == ""
    compared = run_cell("%cudatime --compare -o").value
    assert isinstance(compared, Comparison)
    assert [entry.name for entry in compared] == ["baseline", "faster"]
    assert compared["faster"].verdict == "faster"
    assert "Compared with baseline" in run_cell("%cudatime --compare").text
    assert run_cell("%cudatime --compare;").text == ""


def test_names_choose_and_the_first_is_the_baseline(run_cell: Any) -> None:
    for name in ("a", "b", "c"):
        run_cell(f"%cudatime -q --name {name} 1 + 1")
    for words, names in (("", "abc"), ("c,a", "ca"), ("b c", "bc"), ("c, b", "cb")):
        compared = run_cell(f"%cudatime --compare -q -o {words}").value
        assert [entry.name for entry in compared] == list(names)


def test_names_with_a_blank(run_cell: Any) -> None:
    run_cell("%cudatime -q --name one 1")
    run_cell("import torch\n%cudatime --on cpu,cuda:0 -q -n 1 -r 1 -w 0 --name it 1")
    for words in ("'it cpu' 'it cuda:0'", "'it cpu', 'it cuda:0'"):
        compared = run_cell(f"%cudatime --compare -q -o {words}").value
        assert [entry.name for entry in compared] == ["it cpu", "it cuda:0"]
    error = run_cell("%cudatime --compare one it", raising=False).error
    assert str(error).endswith("no result is named 'it'; there are one, 'it cpu', 'it cuda:0'")
    error = run_cell("%cudatime --compare one 'it cpu", raising=False).error
    assert "no closing quotation" in str(error)


def test_a_name_is_given_anew(run_cell: Any) -> None:
    for statement in ("1 + 1", "__import__('time').sleep(0.01)"):
        run_cell(f"%cudatime -q --name a {statement}")
    run_cell("%cudatime -q --name b 1")
    assert run_cell("%cudatime --compare -q -o").value["a"].timing.wall.median > 0.01


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%cudatime --compare", "it takes two named results, and there is only one"),
        ("%cudatime --compare one", "it takes two named results"),
        ("%cudatime --compare oen", "no result is named 'oen'; did you mean one?"),
        ("%cudatime --compare other", "no result is named 'other'; there is one"),
        ("%cudatime --name a,b 1", "'a,b' is not a name"),
        ("%%cudatime --compare\n1", "write %cudatime --compare"),
        ("%cudatime --trace /no/such/place.json 1", "there is no folder /no/such"),
        ("%cudatime --trace / 1", "that is a folder"),
    ],
)
def test_bad_lines_are_one_line(line: str, says: str, run_cell: Any) -> None:
    run_cell("%cudatime -q --name one 1")
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert says in str(error)
    assert "\n" not in str(error)


def test_one_name_of_several(run_cell: Any) -> None:
    for name in ("'a b'", "ä", "c"):
        run_cell(f"%cudatime -q --name {name} 1")
    for words in ("ä", "ä ä"):
        error = run_cell(f"%cudatime --compare {words}", raising=False).error
        assert type(error) is UsageError
        assert str(error).endswith("and the line names only 'ä'; add another: 'a b', c")


def test_nothing_is_kept_without_a_name(run_cell: Any) -> None:
    run_cell("%cudatime -q 1")
    error = run_cell("%cudatime --compare", raising=False).error
    assert "and there is none" in str(error)
