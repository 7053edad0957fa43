"""What an object refers to, and in which role, by the rule of its type."""

from __future__ import annotations

import functools
import types
import weakref
from types import ModuleType
from typing import Any

import pytest

from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.referents import Rules, finalizers


@pytest.fixture
def rules(torch: ModuleType) -> Rules:
    return Rules(Blocks.read(), frozenset({__name__}), {}, set())


def referents(rules: Rules, thing: Any) -> dict[str, list[Any]]:
    """By role, what an object refers to."""
    rule = rules.of_type.get(id(type(thing)), rules) if type(thing) is not Rules else None
    if rule is rules:
        rule = rules.learn(type(thing))
    found: dict[str, list[Any]] = {}
    for role, things in rule(thing, "own", 0) if rule else ():
        found.setdefault(role, []).extend(things)
    return found


def has(found: dict[str, list[Any]], role: str, thing: Any) -> bool:
    return any(each is thing for each in found.get(role, ()))


@pytest.mark.parametrize("leaf", [None, 1, 2.5, "text", b"bytes", range(3), ..., True])
def test_leaves_refer_to_nothing(rules: Rules, leaf: Any) -> None:
    assert referents(rules, leaf) == {}


def test_containers_and_objects_refer_to_their_contents(rules: Rules) -> None:
    inner = [object()]

    class Own:
        def __init__(self) -> None:
            self.value = inner

    for outer in ([inner], (inner,), {"a": inner}, functools.partial(print, inner)):
        assert has(referents(rules, outer), "own", inner) or any(
            type(each) is tuple and inner in each for each in referents(rules, outer)["own"]
        ), type(outer)
    found = referents(rules, Own())["own"]
    assert any(each is inner or (type(each) is dict and each["value"] is inner) for each in found)


def test_a_function_refers_to_its_closure_and_not_to_a_listed_modules_globals(rules: Rules) -> None:
    held = [1]

    def function(a: Any = held) -> Any:
        return held, a

    found = referents(rules, function)
    assert has(found, "closure", function.__closure__)
    assert has(found, "closure", function.__defaults__)
    assert not has(found, "own", function.__globals__)
    space: dict[str, Any] = {"__name__": "unlisted"}
    exec("def other(): pass", space)
    assert has(referents(rules, space["other"]), "own", space)


def test_a_module_of_torch_has_parameters_and_buffers(rules: Rules, torch: ModuleType) -> None:
    model = torch.nn.BatchNorm1d(4)
    found = referents(rules, model)
    assert has(found, "parameters", model.weight)
    assert has(found, "buffers", model.running_mean)


def test_a_tensor_has_gradient_and_graph(rules: Rules, torch: ModuleType) -> None:
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    result = leaf.exp()
    result.sum().backward()
    assert has(referents(rules, leaf), "gradients", leaf.grad)
    assert has(referents(rules, result), "autograd graph", result.grad_fn)


def test_classes_of_the_users_modules_only(rules: Rules) -> None:
    class Mine:
        held = object()

    assert has(referents(rules, Mine), "own", Mine.held)
    assert referents(rules, types.SimpleNamespace) == {}


def test_finalizers_tell_function_and_arguments() -> None:
    class Key:
        pass

    key, held = Key(), [1]
    finalizer = weakref.finalize(key, print, held)
    try:
        assert (print, (held,), None) in [
            (function, arguments, keywords) for function, arguments, keywords in finalizers()
        ]
    finally:
        finalizer.detach()
