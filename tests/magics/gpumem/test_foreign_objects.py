"""The search for holders of GPU memory runs no code of the user's, and loads no module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import IPython
import pytest

from gpumagic.memory import oom
from gpumagic.memory.freeing import free
from gpumagic.results.memory.out_of_memory import OutOfMemory
from tests.support.allocator import MIB

#: Objects that note in ``ran`` every question which reaches their own code, and refuse it.
HOSTILE_OBJECTS = """
import importlib.util, sys, types, torch
ran = []

def refusing(name):
    def method(self, *arguments, **options):
        ran.append(name)
        raise RuntimeError(name)
    return method

def refuse(kind, title, names, made=lambda method: method):
    for name in names.split():
        setattr(kind, name, made(refusing(f"{title}.{name}")))

class Meta(type):
    pass
compared = "__eq__ __hash__ __getattribute__"
refuse(Meta, "Meta", f"{compared} __instancecheck__ __subclasscheck__ __dir__")

class Hostile(metaclass=Meta):
    __dict__ = property(refusing("Hostile.__dict__"))
    __class__ = property(refusing("Hostile.__class__"))
    def __init__(self, held):
        object.__setattr__(self, "held", held)
asked = "__getattr__ __bool__ __len__ __iter__ __repr__ __get__"
refuse(Hostile, "Hostile", f"{compared} {asked}")

class Slots(Hostile):
    pass

class Dictionary(dict):
    pass
refuse(Dictionary, "dict", "items values keys get pop __iter__ __getitem__ __contains__ __len__")

class Sub(torch.Tensor):
    def __getattribute__(self, name):
        ran.append(f"Sub.{name}")
        return super().__getattribute__(name)
    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), options=None):
        ran.append("__torch_function__")
        return super().__torch_function__(function, kinds, arguments, options or {})
refuse(Sub, "Sub", "grad_fn", property)

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=inner.device)
        made.inner = inner
        return made
refuse(Wrapper, "Wrapper", "__torch_dispatch__", classmethod)

class Net(torch.nn.Module):
    def __init__(self, held):
        super().__init__()
        self.weight = torch.nn.Parameter(held, requires_grad=False)
    def __getattribute__(self, name):
        ran.append(f"Net.{name}")
        return super().__getattribute__(name)
refuse(Net, "Net", "parameters named_parameters")

class Failure(Exception):
    pass
refuse(Failure, "Failure", f"{compared} __str__")

class Module(types.ModuleType):
    pass
refuse(Module, "Module", "__getattribute__")

class Space(dict):
    pass
refuse(Space, "Space", "items values keys __iter__")

class Prepared(type):
    @classmethod
    def __prepare__(cls, name, bases):
        return Space()

def new():
    return torch.empty(2 ** 20, dtype=torch.uint8, device="cuda")
"""

FILLED = """
hostile, slots = Hostile(new()), Slots([new()])
dictionary = Dictionary(); dict.__setitem__(dictionary, "key", new())
sub, wrapper, net = new().as_subclass(Sub), Wrapper(new()), Net(new().float())
listed = [Hostile(new()), Failure(new())]
module = sys.modules["hostile_module"] = Module("hostile_module")
module.__file__ = 7
sys.modules["no_module"] = Hostile(None)
sys.modules["nothing"] = None
ran.clear()
"""
NAMES = {"hostile", "slots", "dictionary", "sub", "wrapper", "net", "listed"}

FAILING = """
def fail():
    local = Hostile(new())
    class Body(metaclass=Prepared):
        inside = new()
        raise Failure(new())
fail()
"""


@pytest.fixture
def hostile_objects(torch: ModuleType, ip: Any, run_cell: Any) -> Iterator[dict[str, Any]]:
    run_cell(HOSTILE_OBJECTS)
    run_cell(FILLED)
    yield ip.user_ns
    for name in ("hostile_module", "no_module", "nothing"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("all_objects")
def test_no_code_of_the_users_runs(hostile_objects: dict[str, Any], run_cell: Any) -> None:
    found = run_cell("%gpumem vars -o -q").value
    assert found.error is None
    assert hostile_objects["ran"] == []
    holders = found.devices[0]
    held = {holder.name: holder.bytes for holder in holders.holders if holder.bytes}
    assert held.keys() == NAMES
    assert held["listed"] == 2 * MIB
    assert holders.unattributed == 0


@pytest.mark.skipif(
    IPython.version_info < (8,), reason="IPython 7 itself fails to show such an exception"
)
def test_no_code_of_the_users_runs_after_a_failed_cell(
    hostile_objects: dict[str, Any], ip: Any, run_cell: Any
) -> None:
    """IPython's traceback runs it; the explanation, `vars` and `free` do not."""
    error = run_cell(FAILING, raising=False).error
    hostile_objects["ran"].clear()
    assert oom.find(error) is None
    del error
    result = run_cell("%gpumem vars -o -q").value.devices[0]
    assert hostile_objects["ran"] == []
    failed = {holder.name for holder in result.holders if holder.kind == "failed function"}
    assert any(name.startswith("local (") for name in failed)
    assert result.unattributed == 0
    freed = free(ip)
    assert hostile_objects["ran"] == []
    assert freed.before[0].allocated - freed.after[0].allocated == 3 * MIB


def test_no_code_of_the_users_runs_to_explain_why_memory_ran_out(
    hostile_objects: dict[str, Any], ip: Any, run_cell: Any
) -> None:
    run_cell("%config GpuMagic.explain_oom = False")
    source = "try:\n    torch.empty(2 ** 50, device='cuda')\nexcept Exception as e:\n    late = e\n"
    with suppress(RuntimeError):  # IPython 7 fails to show it
        run_cell(source + "raise late from Failure()", raising=False)
    hostile_objects["ran"].clear()
    found = oom.explain(hostile_objects["late"], ip)
    assert isinstance(found, OutOfMemory)
    assert found.requested
    assert hostile_objects["ran"] == []


@pytest.mark.usefixtures("all_objects")
def test_no_lazy_module_is_loaded(
    torch: ModuleType, ip: Any, run_cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the recipe of Python's documentation; its failure would end `vars`, too."""
    monkeypatch.setattr(oom, "WALK", 60.0)  # as long as a slow machine needs
    (tmp_path / "heavy_lazy.py").write_text("raise RuntimeError('loaded')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("heavy_lazy")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "heavy_lazy", module)
    loader.exec_module(module)
    ip.user_ns.update(heavy=module, torch=torch)
    run_cell("x = torch.empty(2 ** 20, dtype=torch.uint8, device='cuda')")
    for verb in ("vars", "free"):
        run_cell(f"%gpumem {verb} -q")
    # IPython's traceback would load it: `inspect` asks every module for its file.
    source = "try:\n    torch.empty(2 ** 50, device='cuda')\nexcept Exception as e:\n    late = e"
    run_cell(source)
    found = oom.explain(ip.user_ns["late"], ip)
    assert isinstance(found, OutOfMemory)
    assert [holder.name for holder in found.holders] == ["x"]
    assert type(module) is not ModuleType, "it was loaded"
    del ip.user_ns["x"]
