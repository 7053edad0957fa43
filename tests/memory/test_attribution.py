"""``%gpumem vars`` and ``gpumagic.holders()``: each byte has an owner, no user's code runs."""

from __future__ import annotations

import gc
import importlib.util
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpumagic
from gpumagic.memory.attribution import holders
from gpumagic.results import DeviceHolders, Holders
from tests.support.allocator import MIB


def adds_up(torch: ModuleType, found: Holders) -> None:
    for ordinal, device in found.devices.items():
        assert device.allocated == torch.cuda.memory_allocated(ordinal)
        assert device.rounding is not None
        total = device.named + device.pinned + device.unattributed + device.rounding
        assert total == device.allocated
        held = [(h.bytes, h.pinned) for h in device.holders]
        assert sum(size for size, pinned in held if not pinned) == device.named
        assert sum(size for size, pinned in held if pinned) == device.pinned
        assert all(sum(h.parts.values()) == h.bytes for h in device.holders)
        assert device.unattributed >= 0


def of(torch: ModuleType, namespace: dict[str, Any], **options: Any) -> DeviceHolders:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = holders(namespace, **options)
    adds_up(torch, found)
    return found.devices[0]


@pytest.fixture
def new(torch: ModuleType) -> Iterator[Callable[..., Any]]:
    yield lambda size=MIB, device=0: torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
    torch._C._cuda_clearCublasWorkspaces()  # a product's, which the allocator counts


# --- to the byte ---------------------------------------------------------------------------------


def test_the_column_adds_up(torch: ModuleType, new: Any) -> None:
    sizes = [1, 511, 512, 513, 3 * MIB + 1, 30 * MIB, 1_234_567]
    names = {f"x{size}": new(size) for size in sizes}
    hidden = [new(777), new(5 * MIB, 1)]
    found = holders(names)
    adds_up(torch, found)
    device = found.devices[0]
    assert {h.name: h.bytes for h in device.holders} == {f"x{s}": s for s in sizes}
    assert device.unattributed == 777
    assert found.devices[1].unattributed == 5 * MIB
    assert len(hidden) == 2


def test_shared_storage_counts_once_and_each_owner_is_named(torch: ModuleType, new: Any) -> None:
    base = new(MIB)
    device = of(
        torch, {"base": base, "view": base[17:], "empty": base[:0], "other": base.view(-1, 2)}
    )
    assert device.named == MIB
    assert device["base"].bytes == MIB
    assert device["base"].alone == 0
    assert set(device["base"].also) == {"view", "empty", "other"}
    assert device["view"].shared == MIB
    assert device["view"].bytes == 0


def test_a_module_its_optimizer_and_tied_weights(torch: ModuleType, new: Any) -> None:
    a, b = torch.nn.Linear(256, 256, bias=False), torch.nn.Linear(256, 256, bias=False)
    model = torch.nn.Sequential(a, b).cuda()
    b.weight = a.weight
    model.register_buffer("mask", new(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 256, device="cuda")).sum().backward()
    optimizer.step()
    torch._C._cuda_clearCublasWorkspaces()
    last = next(model.parameters())
    device = of(torch, {"last": last, "optimizer": optimizer, "model": model})
    weight = 256 * 256 * 4
    assert dict(device["model"].parts) == {
        "parameters": weight,
        "buffers": 1000,
        "gradients": weight,
    }
    assert dict(device["optimizer"].parts) == {"optimizer state": weight}
    assert set(device["model"].also) == {"optimizer", "last"}
    assert device["optimizer"].shared == 2 * weight
    assert device["optimizer"].alone == weight
    assert device["model"].alone == 1000


def test_what_autograd_saved(torch: ModuleType, new: Any) -> None:
    weight = torch.ones(256, 256, device="cuda", requires_grad=True)
    with torch.no_grad():
        x = torch.ones(256, 256, device="cuda")
    loss = (x * weight).exp().exp().sum()
    told = hasattr(torch._C._autograd.SavedTensor, "data")
    device = of(torch, {"weight": weight, "loss": loss})
    if told:
        assert device["loss"].parts["autograd graph"] >= 2 * 256 * 256 * 4
        assert "loss" in device["weight"].also
    else:
        assert device.unattributed >= 2 * 256 * 256 * 4
        assert any("autograd" in note for note in holders({"loss": loss}).notes)
    del x


def test_hooks_on_saved_tensors_do_not_run(torch: ModuleType) -> None:
    ran: list[str] = []

    def pack(tensor: Any) -> Any:
        return tensor

    def unpack(tensor: Any) -> Any:
        ran.append("unpack")
        return tensor

    weight = torch.ones(64, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = weight.sin().sum()  # which saves its argument
    of(torch, {"loss": loss})
    assert not ran


@pytest.mark.usefixtures("all_objects")
def test_the_allocators_counters_are_as_without_it(torch: ModuleType, new: Any) -> None:
    names = {"xs": [new(n) for n in range(1, 2000, 37)], "model": torch.nn.Linear(9, 9).cuda()}
    new(9 * MIB)
    before = {i: torch.cuda.memory_stats(i) for i in (0, 1)}
    holders(names)
    holders(names, gc=True)
    assert {i: torch.cuda.memory_stats(i) for i in (0, 1)} == before


# --- all sorts of places -------------------------------------------------------------------------


def test_closures_generators_classes_slots_and_the_rest(torch: ModuleType, new: Any) -> None:
    import collections
    import functools

    def closure(held: Any) -> Any:
        return lambda: held

    def counting(held: Any) -> Any:
        local = new(2000)
        yield held.shape
        del local

    generator = counting(new(1000))
    next(generator)

    class Slotted:
        __slots__ = ("held",)

    slotted = Slotted()
    slotted.held = new(3000)
    kind = type("Kind", (), {"held": new(4000), "__module__": "__main__"})
    function = closure(new(5000))
    function.attribute = new(6000)
    names = {
        "generator": generator,
        "slotted": slotted,
        "kind": kind,
        "function": function,
        "partial": functools.partial(print, new(7000)),
        "deque": collections.deque([new(8000)]),
        "mapping": collections.OrderedDict(a=collections.defaultdict(list, {"b": [new(9000)]})),
        "method": types.MethodType(print, [new(10000)]),
        "default": eval("lambda x=held: x", {"held": new(11000)}),
        "sparse": torch.sparse_coo_tensor(
            torch.zeros(1, 3, dtype=torch.long, device="cuda"),
            torch.zeros(3, device="cuda"),
            (9,),
            check_invariants=False,
        ),
        "storage": new(12000).untyped_storage(),
        "exception": ValueError(new(13000)),
    }
    device = of(torch, names)
    assert device.unattributed == 0
    sizes = {h.name: h.bytes for h in device.holders}
    assert sizes == {
        "generator": 3000,
        "slotted": 3000,
        "kind": 4000,
        "function": 11000,
        "partial": 7000,
        "deque": 8000,
        "mapping": 9000,
        "method": 10000,
        "default": 11000,
        "sparse": 3 * 8 + 3 * 4,
        "storage": 12000,
        "exception": 13000,
    }


def test_cycles_and_objects_that_raise(torch: ModuleType, new: Any) -> None:
    ran: list[str] = []

    class Bad:
        def __init__(self) -> None:
            object.__setattr__(self, "held", new(1000))
            object.__setattr__(self, "me", [self])

        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            raise RuntimeError(name)

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("eq")

        def __len__(self) -> int:
            raise RuntimeError("len")

        def __bool__(self) -> bool:
            raise RuntimeError("bool")

    class BadModule(torch.nn.Module):  # type: ignore[misc, name-defined]
        @property
        def broken(self) -> Any:
            ran.append("broken")
            raise RuntimeError

        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattr__(name)

    module = BadModule()
    module.register_buffer("kept", new(2000))
    ran.clear()
    device = of(torch, {"bad": Bad(), "module": module})
    assert (device["bad"].bytes, device["module"].bytes) == (1000, 2000)
    assert not ran


def test_a_subclass_of_tensors_whose_functions_raise(torch: ModuleType, new: Any) -> None:
    class Loud(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise RuntimeError("loud")

    loud = torch.Tensor._make_subclass(Loud, new(1000))
    assert of(torch, {"loud": loud})["loud"].bytes == 1000


def test_deep_nesting_needs_no_recursion(torch: ModuleType, new: Any) -> None:
    nested: Any = new(1000)
    for _ in range(50_000):
        nested = [nested]
    assert of(torch, {"nested": nested})["nested"].bytes == 1000
    while isinstance(nested, list):  # undone by hand: deep structures are hard on the interpreter
        nested = nested.pop()


def test_many_names_that_share(torch: ModuleType, new: Any) -> None:
    shared = [new(512) for _ in range(50)]
    names = {f"n{i}": {"all": shared, "own": new(512)} for i in range(40)}
    device = of(torch, names)
    assert device.named == 90 * 512
    first = max(device.holders, key=lambda h: h.bytes)
    assert first.bytes == 51 * 512
    assert len(first.also) == 39
    assert all(h.alone == 512 for h in device.holders)
    assert all(h.shared == 50 * 512 for h in device.holders)


def test_a_module_of_the_users_own(
    torch: ModuleType, new: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_cache.py").write_text("STORE = {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_own_cache  # type: ignore[import-not-found]

    my_own_cache.STORE["x"] = new(1000)
    try:
        device = of(torch, {"cache": my_own_cache, "torch": torch})
        assert device["cache.STORE"].bytes == 1000
    finally:
        del sys.modules["my_own_cache"]


def test_a_module_of_a_package_that_has_a_name(
    torch: ModuleType, new: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("from . import cache\n")
    (tmp_path / "my_package" / "cache.py").write_text("STORE = {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_package  # type: ignore[import-not-found]

    my_package.cache.STORE["x"] = new(1000)
    try:
        assert of(torch, {"mine": my_package})["mine.cache.STORE"].bytes == 1000
        assert of(torch, {"c": my_package.cache})["c.STORE"].bytes == 1000
    finally:
        del sys.modules["my_package"], sys.modules["my_package.cache"]


PLUGIN = """
import torch
BUFFER = torch.empty(1000, dtype=torch.uint8, device="cuda")
def function():
    return BUFFER
class Kind:
    held = torch.empty(2000, dtype=torch.uint8, device="cuda")
"""


def test_a_plugin_that_is_in_no_list_of_modules(torch: ModuleType, tmp_path: Path) -> None:
    """By its own names if it has one, and by what references a part of it."""
    (tmp_path / "plugin.py").write_text(PLUGIN)

    def load() -> ModuleType:
        spec = importlib.util.spec_from_file_location("plugin", tmp_path / "plugin.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    plugin: Any = load()
    device = of(torch, {"p": plugin, "f": plugin.function})
    assert {h.name: (h.bytes, h.also) for h in device.holders} == {
        "p.BUFFER": (1000, ()),
        "p.Kind": (2000, ()),
    }
    assert sizes(of(torch, {"listed": [plugin]})) == {"listed": 3000}
    kind, function = plugin.Kind, plugin.function
    del plugin
    gc.collect()
    assert sizes(of(torch, {"kind": kind})) == {"kind": 2000}, "it has no method to lead on"
    assert sizes(of(torch, {"function": function})) == {"function": 3000}
    assert sizes(of(torch, {"listed": [function]})) == {"listed": 3000}


def test_namespaces_of_code_that_is_no_module(torch: ModuleType, new: Any) -> None:
    space: dict[str, Any] = {"held": new(1000)}
    exec("def function(): return held\ndef generator(): yield held", space)
    function, running = space["function"], space["generator"]()
    next(running)
    del space
    assert sizes(of(torch, {"function": function})) == {"function": 1000}
    assert sizes(of(torch, {"running": running})) == {"running": 1000}


def sizes(device: DeviceHolders) -> dict[str, int]:
    return {holder.name: holder.bytes for holder in device.holders if holder.bytes}


def test_a_module_of_the_users_that_only_a_function_of_its_leads_to(
    torch: ModuleType, new: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in `sys.modules`, and has its name there."""
    (tmp_path / "my_parts").mkdir()
    (tmp_path / "my_parts" / "__init__.py").write_text("")
    (tmp_path / "my_parts" / "cache.py").write_text("STORE = []\nfill = STORE.append\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_parts.cache import fill  # type: ignore[import-not-found]

    fill(new(1000))
    try:
        assert of(torch, {})["my_parts.cache.STORE"].bytes == 1000
        device = of(torch, {"fill": fill})
        assert device["my_parts.cache.STORE"].also == ("fill", "my_parts.cache.fill")
    finally:
        del sys.modules["my_parts"], sys.modules["my_parts.cache"]


def test_what_is_called_when_an_object_dies(torch: ModuleType, new: Any) -> None:
    class Watched:
        pass

    def clean(held: Any) -> None:
        pass

    def closure(held: Any) -> Callable[[Any], None]:
        return lambda _: held.clear()

    watched = Watched()
    names = {"reference": weakref.ref(watched, closure([new(1000)]))}
    assert sizes(of(torch, names)) == {"reference": 1000}
    finalizer = weakref.finalize(watched, clean, new(2000))
    names.clear()
    name = f"weakref.finalize({clean.__qualname__})"
    assert sizes(of(torch, {})) == {name: 2000}
    assert of(torch, {"finalizer": finalizer})["finalizer"].also == (name,)
    finalizer.detach()
    assert not of(torch, {}).named


def test_methods_made_in_c_hold_their_object(torch: ModuleType, new: Any) -> None:
    import functools

    names = {"item": new(1000).item, "add": functools.partial(new(2000).add, 1)}
    names["append"] = [new(3000)].append
    device = of(torch, names)
    assert {name: device[name].bytes for name in names} == {
        "item": 1000,
        "add": 2000,
        "append": 3000,
    }


@pytest.mark.parametrize("name", ["__model", "Out", "In", "_i", "_i3", "exit"])
def test_a_name_like_the_notebooks_is_the_users(
    torch: ModuleType, cells: Any, ip: Any, name: str
) -> None:
    before = ip.user_ns.get(name)
    ip.user_ns[name] = [torch.empty(1000, dtype=torch.uint8, device="cuda")]
    try:
        assert holders(shell=ip).devices[0][name].bytes == 1000
        assert not holders(shell=ip).devices[0][name].pinned
    finally:
        ip.user_ns[name] = before


def test_an_allocator_without_counters_is_noted(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not holders({}).notes
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    for found in (holders({}), gpumagic.gpumem(), gpumagic.gpumem("1", {})):
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING is set" in str(found)


def test_a_long_list_ends_with_the_time(torch: ModuleType, new: Any) -> None:
    """The clock is read within a list, too; without a deadline all of it is visited."""
    from gpumagic.memory.allocator_blocks import Blocks
    from gpumagic.memory.object_graph import Root, walk

    numbers: list[Any] = [1] * 300_000
    numbers[200_000] = new(1000)
    root = Root("numbers", "list", (numbers,))
    blocks = Blocks.read()
    assert list(walk([root], blocks).owners.values()) == [1]
    late = walk([root], blocks, seconds=0.0)
    assert not late.owners
    assert late.incomplete


@pytest.mark.usefixtures("all_objects")
def test_all_objects_on_request(torch: ModuleType, new: Any) -> None:
    import json

    json.kept_for_a_test = [new(1000)]  # type: ignore[attr-defined]
    try:
        assert not of(torch, {}).sites
        (site,) = of(torch, {}, gc=True).sites
        assert site.where == "held by json.kept_for_a_test"
        assert (site.bytes, site.blocks) == (1000, 1)
    finally:
        del json.kept_for_a_test  # type: ignore[attr-defined]


@pytest.mark.usefixtures("all_objects")
def test_a_hook_of_a_node_on_request(torch: ModuleType, new: Any) -> None:
    """torch keeps it in C++ and does not list it: the kind of the holder is known, not its name."""

    def hooked() -> Any:
        held = new(1000)

        def hook(*_: Any) -> None:
            held.clear()

        loss = torch.ones(1, device="cuda", requires_grad=True).exp()
        loss.grad_fn.register_hook(hook)
        return loss

    loss = hooked()
    assert 1000 in [site.bytes for site in of(torch, {"loss": loss}, gc=True).sites]
    (where,) = [s.where for s in of(torch, {"loss": loss}, gc=True).sites if s.bytes == 1000]
    name = f"{hooked.__qualname__}.<locals>.hook"
    assert where.startswith(f"held by the function {name} (test_attribution.py line ")


def test_by_the_line_where_history_was_on(torch: ModuleType, new: Any) -> None:
    torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
    try:
        hidden = [new(1000)]
        (site,) = of(torch, {}).sites
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert site.where.startswith("test_attribution.py line ")
    assert site.bytes == 1000
    del hidden


# --- in a notebook -------------------------------------------------------------------------------


@pytest.fixture
def cells(torch: ModuleType, ip: Any, run_cell: Any) -> Any:
    ip.user_ns["torch"] = torch
    yield run_cell
    run_cell("%gpumem free -q")  # the test's shell, and what it pins, outlives the test


def test_what_the_notebook_references(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("torch.empty(1000, dtype=torch.uint8, device='cuda').view(-1, 1)[:0].cpu()")
    cells("class Shy:\n    def __init__(self): self.held = torch.empty(7000, device='cuda:0')")
    number = ip.execution_count
    cells("Shy()")
    cells("x = torch.empty(500, device='cuda')")
    found = holders(shell=ip)
    adds_up(torch, found)
    device = found.devices[0]
    assert device["x"].bytes == 2000
    assert device.pinned == device[f"Out[{number}]"].bytes == 28000
    assert device[f"Out[{number}]"].pinned
    assert "_" in device[f"Out[{number}]"].also
    ran = cells("%gpumem vars")
    assert f"Out[{number}]" in ran.text
    assert "variables 1.95 KiB + notebook 27.3 KiB + rounding" in ran.text
    assert "<table" in ran.html


def test_an_underscore_of_the_users_own_is_the_users(
    torch: ModuleType, cells: Any, ip: Any
) -> None:
    cells("for _ in [torch.empty(500, device='cuda')]: pass")
    assert not holders(shell=ip).devices[0]["_"].pinned


def test_the_locals_of_failed_functions(torch: ModuleType, cells: Any, ip: Any) -> None:
    number = ip.execution_count
    cells(
        "def step(n):\n    held = torch.empty(n, device='cuda')\n    raise KeyError\nstep(999)",
        raising=False,
    )
    found = holders(shell=ip)
    adds_up(torch, found)
    (holder,) = [h for h in found.devices[0].holders if h.bytes]
    assert holder.name == f"held (In[{number}] line 3 in step)"
    assert holder.pinned


@pytest.mark.parametrize("statement", ["vars = 3", "vars=3", "free = 3", "explain = 3", "vars [0]"])
def test_a_statement_stays_a_statement(cells: Any, ip: Any, statement: str) -> None:
    ip.user_ns["vars"] = [0]
    ran = cells(f"%gpumem {statement}")
    assert "allocated" not in ran.text
    name = statement.split("=")[0].strip()
    if "=" in statement:
        assert ip.user_ns[name] == 3


def test_as_data(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("x = torch.empty(500, device='cuda')")
    found = cells("%gpumem vars -o -q").value
    assert isinstance(found, Holders)
    assert found.to_dict()["devices"][0]["holders"][0]["name"] == "x"
    assert found.to_pandas().loc[(0, "x"), "bytes"] == 2000
    assert cells("from gpumagic import holders; holders()").value.devices[0]["x"].bytes == 2000
    assert cells("%gpumem vars;").displays == []
    assert "allocated" in cells("%gpumem vars --gc").text


OTHER_ALLOCATOR = """
import torch, gpumagic
names = {"x": torch.empty(1000, device="cuda"), "torch": torch}
names["y"] = names["x"][3:]
found = gpumagic.holders(names)
device = found.devices[0]
print(device["x"].bytes, device.rounding, device.allocated == torch.cuda.memory_allocated(),
      device.named + device.pinned + device.unattributed == device.allocated, found.notes)
"""


def test_an_allocator_that_does_not_list_its_blocks(run_python: Callable[..., str]) -> None:
    """Slow: torch reads which allocator it has where it is imported."""
    printed = run_python(OTHER_ALLOCATOR, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert printed.startswith("4000 None True True")
    assert "does not list its blocks" in printed


def test_without_a_gpu_in_use(run_python: Callable[..., str]) -> None:
    assert "torch is not imported" in run_python("import gpumagic; print(gpumagic.holders())")
    code = "import torch, gpumagic; print(gpumagic.holders(), torch.cuda.is_initialized())"
    assert run_python(code).endswith("False")


@pytest.mark.usefixtures("all_objects")
def test_no_object_is_kept_alive(torch: ModuleType, new: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        names = {"x": [new(MIB)], "model": torch.nn.Linear(9, 9).cuda()}
        before = torch.cuda.memory_allocated()
        holders(names)
        holders(names, gc=True)
        assert torch.cuda.memory_allocated() == before
        names.clear()
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()
