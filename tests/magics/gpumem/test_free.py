"""``%gpumem free``: all memory is freed, except for what the user's variables reference."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from IPython.core.error import UsageError

from tests.support.allocator import MIB

SETUP = """
def new(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

def inner(x):
    held = new(2 ** 20)
    gone = new(3 * 2 ** 20)
    return new(2 ** 40)

def outer():
    mine = [new(5 * 2 ** 20)]
    inner(mine)

class Shy:
    def __init__(self):
        self.held = new(7 * 2 ** 20)
"""


@pytest.fixture
def cells(torch: ModuleType, ip: Any, run_cell: Any) -> Iterator[Any]:
    ip.user_ns["torch"] = torch
    run_cell(SETUP)
    run_cell("%config GpuMagic.explain_oom = False")
    yield run_cell
    run_cell("%config GpuMagic.explain_oom = True")
    run_cell("%gpumem free -q")


FAILING = {
    "a function": "outer()",
    "nested in a cause": """
try:
    outer()
except RuntimeError as error:
    raise ValueError("mine") from error
""",
    "a cycle of the exception with its frame": """
def cycle():
    try:
        outer()
    except RuntimeError as error:
        kept = error
        raise
cycle()
""",
    "a generator": """
def numbers():
    held = new(2 ** 20)
    yield held
    yield new(2 ** 40)
list(numbers())
""",
    "a magic": "%%gpumem\nouter()",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("case", "also"),
    [*((case, "") for case in FAILING), ("a function", "last_exc"), ("a function", "debugger")],
)
def test_all_comes_back_after_out_of_memory(
    torch: ModuleType, cells: Any, ip: Any, case: str, also: str
) -> None:
    cells("kept = new(11 * 2 ** 20)")
    before = torch.cuda.memory_allocated()
    ran = cells(FAILING[case], raising=False)
    assert ran.error is not None
    if also == "last_exc":  # as Python 3.12 does
        sys.last_exc = sys.last_value  # type: ignore[attr-defined]
    if also == "debugger":
        _debug(ip)
    del ran
    assert torch.cuda.memory_allocated() > before
    freed = cells("%gpumem free -v freed")
    assert torch.cuda.memory_allocated() == before
    assert "%debug and %tb have nothing to show" in freed.text
    assert cells("kept.shape").value == (11 * MIB,)
    assert not hasattr(sys, "last_exc")
    assert "No traceback" in cells("%tb").stderr


def _debug(ip: Any) -> None:
    """End the debugger as ``%debug`` does: it keeps the frames it has shown."""
    debugger = ip.InteractiveTB.debugger_cls()
    debugger.reset()
    debugger.setup(sys.last_traceback.tb_frame, sys.last_traceback)
    ip.InteractiveTB.pdb = debugger


def test_outputs(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("6 * 7")
    number = ip.execution_count
    cells("Shy()")
    cells("Shy()")
    assert torch.cuda.memory_allocated() == 14 * MIB
    freed = cells("%gpumem free -o").value
    assert torch.cuda.memory_allocated() == 0
    assert freed.before[0].allocated - freed.after[0].allocated == 14 * MIB
    assert number not in cells("Out").value
    assert f"_{number}" not in ip.user_ns
    assert cells(f"Out[{number - 1}]").value == 42
    assert cells("1 + 1").value == 2
    assert cells("_ + 1").value == 3  # goes on as ever


def test_named_variables(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("a = new(2 ** 20); b = new(2 * 2 ** 20); same = b; c = 3")
    cells("Shy()")
    cells("_2 = a")  # a name of the user's own
    shown = cells("%gpumem free b").text
    assert "memory of b that is also held by same stays" in shown
    assert "still allocated: same 2.00 MiB, a 1.00 MiB" in shown
    assert "b" not in ip.user_ns
    assert torch.cuda.memory_allocated() == 3 * MIB
    shown = cells("%gpumem free a,same, Out").text
    assert "memory of a that is also held by _2 stays" in shown  # that of `same` is freed
    assert "still allocated: _2 1.00 MiB" in shown
    assert torch.cuda.memory_allocated() == MIB
    cells("del _2")
    assert torch.cuda.memory_allocated() == 0


def test_what_the_users_variables_reference_stays(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("try:\n    outer()\nexcept RuntimeError as error:\n    mine = error")
    cells("x = new(2 ** 20)")
    cells("x.shape, Shy()")
    cells("shown = _")
    cells("raise mine", raising=False)
    held = torch.cuda.memory_allocated()
    cells("%gpumem free")
    assert torch.cuda.memory_allocated() == held
    assert cells("shown[1].held.shape").value == (7 * MIB,)
    frames = cells("mine.__traceback__.tb_next.tb_next").value
    assert frames.tb_frame.f_locals
    del frames
    cells("%gpumem free mine shown x")
    assert torch.cuda.memory_allocated() == 0


def test_an_exception_without_gpu_memory_stays_for_the_debugger(cells: Any) -> None:
    cells("1 / 0", raising=False)
    cells("Shy()")
    ran = cells("%gpumem free")
    assert "%debug" not in ran.text
    assert isinstance(sys.last_value, ZeroDivisionError)


def test_garbage_and_the_cache(torch: ModuleType, cells: Any) -> None:
    gc.disable()  # or it may do it before we do
    try:
        cells("loop = [new(2 ** 20)]; loop.append(loop); del loop; new(30 * 2 ** 20).shape")
        freed = cells("%gpumem free -o -q").value
        assert not gc.isenabled()
    finally:
        gc.enable()
    steps = {step.what: step.after[0] for step in freed.steps}
    before, garbage, cache = freed.before[0], steps["collect garbage"], steps["empty the caches"]
    assert before.allocated - garbage.allocated == MIB
    assert garbage.reserved - cache.reserved >= 30 * MIB
    assert torch.cuda.memory_reserved() == 0


KERNEL = """
import torch
kept = torch.empty(2**20, device="cuda")
def step():
    held = torch.empty(30 * 2**30, dtype=torch.uint8, device="cuda")
    return torch.empty(70 * 2**30, dtype=torch.uint8, device="cuda")
before = torch.cuda.memory_allocated()
"""


def test_in_a_kernel(kernel: Any) -> None:
    fresh = kernel()
    fresh.run("a = 1")
    fresh.run("apart = 1")
    shown = fresh.run("%gpumem free a*, a").shown  # where there is a GPU, what holds its memory
    assert "Deleted a: no GPU memory was freed." in shown
    assert "no GPU memory to free: torch is not imported" in shown
    assert fresh.value("('a' in globals(), apart)") == (False, 1)
    assert "no GPU memory to free" in fresh.run("%gpumem free").shown
    fresh.run("a = 1")
    fresh.run(KERNEL)
    assert "'a' holds no GPU memory; del a" in fresh.run("%gpumem free a", raising=False).shown
    assert fresh.value("'a' in globals()") is True
    for cell in ("step()", "import asyncio\nawait asyncio.sleep(0)\nstep()"):
        assert "Out of memory on cuda:0" in fresh.run(cell, raising=False).shown
        assert "forget the last exception" in fresh.run("%gpumem free").shown
        assert fresh.value("torch.cuda.memory_allocated() - before") == 0


def test_these_names_and_nothing_else(torch: ModuleType, cells: Any, ip: Any) -> None:
    """Not the variables of a script that was run, which are IPython's, too; patterns are names."""
    cells("x1, x2, y, a = new(2**20), [new(2**20)], new(2**20), 1")
    other = {"x1": 5}
    ip._main_mod_cache = {"script": other} | getattr(ip, "_main_mod_cache", {})
    cells("%gpumem free x*")
    assert other == {"x1": 5}
    assert {"x1", "x2", "y"} & {*ip.user_ns} == {"y"}
    before = torch.cuda.memory_allocated()
    for names, says in {
        "x*": "'x*'",
        "y nothing_here": "there is no variable 'nothing_here'",
        "y,outr": "did you mean outer?",
        "y.grad": "del y.grad, then %gpumem free",
        "y In": "the notebook's own",
    }.items():
        with pytest.raises(UsageError, match=re.escape(says)):
            cells(f"%gpumem free {names}")
    assert "y" in ip.user_ns
    assert torch.cuda.memory_allocated() == before


def test_what_a_module_of_the_users_holds_is_no_variable(
    torch: ModuleType, cells: Any, ip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import torch\nweights = torch.empty(2**20, dtype=torch.uint8, device='cuda')\n"
    (tmp_path / "helpers9.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    cells("import helpers9; hx = new(2**20)")
    try:
        assert "helpers9.weights" in cells("%gpumem vars").text
        assert "delete hx" in cells("%gpumem free h*").text
        assert {"hx", "helpers9"} & {*ip.user_ns} == {"helpers9"}
        assert torch.cuda.memory_allocated() == MIB
        with pytest.raises(UsageError, match="no variable of the notebook like 'h\\*' holds"):
            cells("%gpumem free h*")
    finally:
        del sys.modules["helpers9"], ip.user_ns["helpers9"]


def test_a_variable_of_a_function(torch: ModuleType, cells: Any, ip: Any) -> None:
    cells("x = new(2**20)\ndef f():\n    x = new(2**20)\n    %gpumem free x\n")
    with pytest.raises(UsageError, match=r"'x' is a variable of the function .* write del x, and"):
        cells("f()")
    assert "x" in ip.user_ns
    cells("def g(name):\n    %gpumem free {name}\n\ng('x')")
    assert "x" not in ip.user_ns


def test_autocasts_cache_is_given_back(torch: ModuleType, cells: Any) -> None:
    """It is left where autocast was not ended by ``with``: as by an exception in a generator."""
    before = torch.cuda.memory_allocated()
    cells(
        "torch.set_autocast_enabled('cuda', True); torch.autocast_increment_nesting()\n"
        "w = torch.nn.Parameter(torch.ones(512, 512, device='cuda'))\n"
        "torch.nn.functional.linear(torch.ones(2, 512, device='cuda'), w).shape\n"
        "torch.autocast_decrement_nesting(); torch.set_autocast_enabled('cuda', False)"
    )
    assert torch.cuda.memory_allocated() - before >= 512 * 512 * (4 + 2)
    cells("%gpumem free w")
    assert torch.cuda.memory_allocated() - before < MIB


def test_what_private_pools_keep_is_named(torch: Any, cells: Any) -> None:
    cells("pool = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(pool):\n    new(2**20).shape")
    said = cells("%gpumem free").text
    assert "cuda:0: 2.00 MiB stay reserved in private pools, of CUDA graphs or" in said
    cells("del pool")
    assert "private pools" not in cells("%gpumem free").text


def test_cublas_work_space_comes_back(kernel: Any) -> None:
    """But not where a graph has its address, or a thread may use it: their results would change."""
    cells = kernel(env={"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}).run  # torch 2.15 keeps none without

    def allocated() -> int:
        return int(cells("print(torch.cuda.memory_allocated())").stdout)

    multiply = "a = torch.ones(64, 64, device='cuda'); b = a @ a; del a, b"
    cells(f"import torch\n{multiply}")
    assert allocated() >= MIB, "this test needs some"
    shown = cells("%gpumem vars").text
    assert "C++ alone: " in shown
    cells("%gpumem free")
    assert allocated() == 0
    cells(f"{multiply}; graph = torch.cuda.CUDAGraph()")
    cells("with torch.cuda.graph(graph):\n    torch.ones(1, device='cuda')")
    held = allocated()
    assert "still allocated: C++ alone" in cells("%gpumem free").text
    assert allocated() == held
    cells("del graph")
    held = allocated()  # before torch 2.7 the graph had a little itself
    cells(
        "import threading; stop = threading.Event()\ndef serve():\n    stop.wait()\n"
        "thread = threading.Thread(target=serve, name='server', daemon=True)\nthread.start()"
    )
    try:
        cells("%gpumem free")
        assert allocated() == held
    finally:
        cells("stop.set(); thread.join()")
    cells("%gpumem free")
    assert allocated() == 0


GENERATOR = """
errors = []
def batches():
    batch = new(2 ** 20)
    for i in range(3):
        try:
            if i == 0:
                raise ValueError("bad batch")
        except ValueError as error:
            errors.append(error)
        yield i
loader = batches()
next(loader)
raise RuntimeError("stopped") from errors[0]
"""


def test_a_generator_goes_on(cells: Any, torch: ModuleType) -> None:
    """Its frame is among those of the failed functions; clearing it would end the generator."""
    cells(GENERATOR, raising=False)
    cells("%gpumem free -q")
    assert cells("list(loader)").value == [1, 2]
    cells("del loader, errors")


def test_an_error_of_cuda_of_unknown_cause_is_one_line(
    cells: Any, ip: Any, virtual_gpu: Any
) -> None:
    """With what is deleted; and it is freed when CUDA works again."""
    cells("x, y = new(30 * 2 ** 20), new(2 ** 20)")
    virtual_gpu.fault("cudaFree", 46)
    try:
        ran = cells("%gpumem free x", raising=False)
        others = [cells(line, raising=False) for line in ("%gpumem", "%gpumem vars", "%gpu")]
    finally:
        virtual_gpu.clear_faults()
    (line,) = ran.stderr.strip().splitlines()
    for part in ("UsageError: ", "deleted: x", "busy or unavailable", "%gpu restart"):
        assert part in line
    assert "Traceback" not in "".join(f"{each.stdout}{each.stderr}" for each in (ran, *others))
    assert "x" not in ip.user_ns
    assert "y" in ip.user_ns
    freed = cells("%gpumem free y -o -q").value
    assert {i: held.reserved for i, held in freed.after.items()} == {0: 0, 1: 0}
