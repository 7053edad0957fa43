"""The walk's arithmetic: which objects lead to memory, against a model; its limits of time."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory import object_graph
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.object_graph import Root, bits, numbers_leading_to, walk


def test_bits() -> None:
    assert list(bits(0)) == []
    assert list(bits(0b101001)) == [0, 3, 5]


def leading(targets: set[int], edges: list[list[int]]) -> list[int]:
    """The model: add what refers to a leading object until nothing more does."""
    found = set(targets)
    while True:
        new = {n for n, to in enumerate(edges) if n not in found and found & set(to)}
        if not new:
            return sorted(found)
        found |= new


@pytest.mark.parametrize("seed", range(20))
def test_what_leads_to_memory_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((1, 5, 60))
    edges = [[rng.randrange(count) for _ in range(rng.randrange(3))] for _ in range(count)]
    targets = {rng.randrange(count) for _ in range(rng.randrange(4))}
    assert numbers_leading_to(targets, edges) == leading(targets, edges)


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_a_long_chain_in_any_order_takes_few_passes(order: str) -> None:
    """A linked list of 20,000: as many passes over it would take minutes."""
    numbers = list(range(20_000))
    if order == "backwards":
        numbers.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(numbers)
    edges: list[list[int]] = [[] for _ in numbers]
    for here, to in itertools.pairwise(numbers):
        edges[here] = [to]
    assert numbers_leading_to([numbers[-1]], edges) == sorted(numbers)
    assert numbers_leading_to([numbers[0]], edges) == [numbers[0]]


def roots(**values: Any) -> list[Root]:
    return [Root(name, "", (value,)) for name, value in values.items()]


def test_each_block_has_all_its_roots_and_the_role_for_the_first(torch: ModuleType) -> None:
    shared = torch.empty(1000, device="cuda")
    model = torch.nn.Linear(9, 9, bias=False).cuda()
    blocks = Blocks.read()
    found = walk(roots(a=[shared], b={"x": shared}, c=model, d=[]), blocks)
    by_address = {blocks.all[i].address: owners for i, owners in found.owners.items()}
    assert by_address == {shared.data_ptr(): 0b011, model.weight.data_ptr(): 0b100}
    assert sorted(found.parts.values()) == ["", "parameters"]
    assert found.incomplete == ()


@pytest.mark.parametrize("turn", [1, 2, 8, 32])
def test_roles_do_not_depend_on_the_order_of_the_walk(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """In turns the graph of an output leads to the parameters before their module does."""
    model = torch.nn.Sequential(*[torch.nn.Linear(9, 9) for _ in range(5)]).cuda()
    output = model(torch.ones(1, 9, device="cuda"))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    holders = roots(many=[[i] for i in range(50)], model=model, output=output)
    blocks = Blocks.read()
    whole = walk(holders, blocks)
    assert {*whole.parts.values()} >= {"parameters", "gradients"}
    told = hasattr(torch._C._autograd.SavedTensor, "data")
    assert ("autograd graph" in whole.parts.values()) == told
    monkeypatch.setattr(object_graph, "_TURN", turn)
    monkeypatch.setattr(object_graph, "_MORE", 1)
    in_turns = walk(holders, blocks, seconds=1e6)
    assert in_turns.parts == whole.parts
    assert in_turns.owners == whole.owners


def test_a_cycle_is_walked_once(torch: ModuleType) -> None:
    cycle: list[Any] = [torch.empty(9, device="cuda")]
    cycle.append([cycle, cycle])
    found = walk(roots(a=cycle, b=cycle[1]), Blocks.read())
    assert list(found.owners.values()) == [0b11]


def test_an_excluded_object_is_not_entered(torch: ModuleType) -> None:
    inner = [torch.empty(9, device="cuda")]
    found = walk(roots(a=[inner]), Blocks.read(), without=[inner])
    assert not any(found.owners.values())


def test_a_reference_from_elsewhere_is_a_root_of_its_own(torch: ModuleType) -> None:
    space = {"a": [torch.empty(9, device="cuda")]}
    values = [Root("a", "", (space["a"],))]
    assert list(walk(values, Blocks.read(), places=[space]).owners.values()) == [0b01]
    iterator = iter([space["a"]])  # what holds it is in no namespace
    assert list(walk(values, Blocks.read(), places=[space]).owners.values()) == [0b11]
    del iterator


def test_what_is_not_visited_is_said(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [[i] for i in range(5000)]
    blocks = Blocks.read()
    assert walk(roots(a=many), blocks, seconds=-1.0).incomplete == (
        "there was no time to visit all objects",
    )
    monkeypatch.setattr(object_graph, "LIMIT", 1000)
    assert walk(roots(a=many), blocks).incomplete == (
        "more than 1,000 objects: the rest was not visited",
    )
