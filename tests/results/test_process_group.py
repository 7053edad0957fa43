"""``torch.distributed``'s process group over the engines of a cluster."""

from __future__ import annotations

import pytest

from gpumagic.results import ProcessGroup
from tests.support.drawing import check_drawing


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (ProcessGroup(), "no process group; %gpu dist init creates one of the engines"),
        (
            ProcessGroup({0: 0, 1: 1}, "nccl", "10.0.0.1:7"),
            "process group: 2 ranks, backend nccl  (rank = engine id; rendezvous at 10.0.0.1:7)",
        ),
        (
            ProcessGroup({0: 1, 4: 0}, "gloo", failed={7: "late", 8: "late"}, notes=("a note",)),
            "process group: 2 ranks, backend gloo  (ranks 0 to 1 are [4, 0])\n"
            "✗ engines 7–8: late\na note",
        ),
        (ProcessGroup(notes=("left",)), "left"),
    ],
)
def test_drawing_of_a_process_group(group: ProcessGroup, text: str) -> None:
    check_drawing(group, text)


def test_repr_of_a_process_group() -> None:
    assert repr(ProcessGroup({0: 0}, "nccl")) == "<ProcessGroup: 1 rank, nccl>"
    assert repr(ProcessGroup()) == "<ProcessGroup: 0 ranks, not initialised>"
