"""``%%gpumem --fit`` and ``limit``: what torch's allocator lets through, found in few runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.memory.limit import LIMIT
from tests.support.allocator import MIB, fits
from tests.support.kernels import Kernel
from tests.support.shells import Ran

Run = Callable[..., Ran]


@pytest.fixture
def torch(ip: Any, torch: Any) -> Iterator[Any]:
    """That of the other tests, in the notebook and without a limit at the end."""
    ip.user_ns["torch"] = torch
    yield torch
    LIMIT.lift()


def test_the_largest_batch(run_cell: Run, ip: Any, torch: Any) -> None:
    run_cell("%gpumem limit 2GiB")
    before = torch.cuda.memory_allocated(0)
    ran = run_cell(
        "%%gpumem --fit batch=1:4096 -v found\n"
        "x = torch.empty(batch, 2**20, dtype=torch.int8, device='cuda:0')\n"
        "y = torch.empty_like(x)"
    )
    found = ip.user_ns["found"]
    failed = min(run.value for run in found.runs if not run.fits)
    assert f"batch = {found.largest:,} fits, {failed:,} does not." in ran.text
    rows = [line.split() for line in ran.text.splitlines()[3 : 3 + len(found.runs)]]
    values = [int(row[0].replace(",", "")) for row in rows]
    assert values == sorted(run.value for run in found.runs)
    assert [row[1] == "✗" for row in rows] == [value >= failed for value in values]
    # it is true: that one fits, one that is a little larger does not
    assert ip.user_ns["batch"] == found.largest
    assert f"batch is left at {found.largest:,}, all other variables are as before" in ran.text
    assert fits(torch, 2 * MIB * found.largest)
    assert not fits(torch, int(2 * MIB * found.largest * 1.02) + MIB)
    # the cell ran a few times only
    assert f"the cell ran {len(found.runs)} times" in ran.text
    assert len(found.runs) <= 12
    shown = run_cell("%%gpumem --fit n=1:3\nx = torch.empty(n, 2**20, device='cuda:0')").text
    assert "n = 3 fits: the end of the " in shown
    # nothing is left of the runs, also of those that failed
    assert not {"x", "y"} & ip.user_ns.keys()
    assert torch.cuda.memory_allocated(0) == before


def test_functions_of_other_cells_see_the_value_and_the_cells_variables(
    run_cell: Run, ip: Any, torch: Any
) -> None:
    """And afterwards all variables are as they were."""
    run_cell("%gpumem limit 2GiB")
    run_cell("x, old, batch, gone = None, [1], 7, 'not yet'")
    run_cell("def step():\n    global made\n    made = x.repeat(2), batch")
    cell = (
        "x = torch.zeros(batch * 2**20, dtype=torch.int8, device='cuda:0')\n"
        "step()\nassert made[1] == batch\nold = made\ndel gone"
    )
    run_cell(f"%%gpumem --fit batch=1:4096 -v found\n{cell}")
    found = ip.user_ns["found"]
    assert 600 < found.largest < 700, "three times 1 MiB each, of 2 GiB"
    assert [ip.user_ns[name] for name in ("x", "old", "gone")] == [None, [1], "not yet"]
    assert "made" not in ip.user_ns
    for error in ("KeyboardInterrupt", "KeyError"):
        run_cell("batch = 7")
        ran = run_cell(f"%%gpumem --fit batch=1:4096\n{cell}\nraise {error}", raising=False)
        assert type(ran.error).__name__ == error
        steps = [step.lineno for step in traceback.extract_tb(ran.error.__traceback__)]
        assert steps[-1] == 7, "the line of the cell"
        names = ("x", "old", "gone", "batch")
        assert [ip.user_ns[name] for name in names] == [None, [1], "not yet", 7]
        assert "made" not in ip.user_ns


def test_a_failed_run_keeps_no_variable_alive(run_cell: Run, ip: Any, torch: Any) -> None:
    run_cell("import weakref; x = torch.ones(9, device='cuda:0'); alive = weakref.ref(x)")
    run_cell("%%gpumem --fit n=1:8\ny = torch.ones(n, device='cuda:0')\n1 / 0", raising=False)
    run_cell("del x")
    assert run_cell("alive() is None").value is True


def test_a_library_that_finds_no_memory(run_cell: Run, ip: Any, torch: Any) -> None:
    """As an H200 says it where a kernel, or cuBLAS, is loaded into a full GPU."""
    run_cell(
        "%%gpumem --fit n=1:50 -v found -q\nx = torch.empty(n, device='cuda:0')\n"
        "if n > 40:\n    raise RuntimeError('CUDA error: out of memory\\nSearch for …')"
    )
    assert (ip.user_ns["found"].largest, ip.user_ns["found"].exact) == (40, True)


def test_a_variable_that_is_no_number_is_not_replaced(run_cell: Run, ip: Any) -> None:
    ip.user_ns["batch"] = kept = [1]
    with pytest.raises(UsageError, match="batch already holds a list; use another name in --fit"):
        run_cell("%%gpumem --fit batch=1:8\nx = torch.empty(batch, device='cuda')")
    assert ip.user_ns["batch"] is kept


def test_nothing_fits(run_cell: Run, ip: Any, torch: Any) -> None:
    """The variable is as it was."""
    ip.user_ns["n"] = 3
    ran = run_cell("%%gpumem --fit n=1:8 -v found\nx = torch.empty(n * 2**40, device='cuda:0')")
    assert ip.user_ns["found"].largest is None
    assert "n = 1 does not fit: memory ran out." in ran.text
    assert "all variables are as before" in ran.text
    assert ip.user_ns["n"] == 3
    run_cell("del n")
    run_cell("%%gpumem --fit n=1:8 -q\nx = torch.empty(n * 2**40, device='cuda:0')")
    assert "n" not in ip.user_ns


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError"])
def test_another_error_is_the_cells_own(run_cell: Run, ip: Any, torch: Any, error: str) -> None:
    """The variable is as it was, also where a value has run before; what was found is said."""
    ip.user_ns["n"] = 7
    cell = f"x = torch.empty(n, device='cuda:0')\nif n > 1:\n    raise {error}"
    ran = run_cell(f"%%gpumem --fit n=1:9\n{cell}", raising=False)
    assert type(ran.error).__name__ == error
    assert ip.user_ns["n"] == 7
    assert "--fit ended at n = 8. Until then: n = 1 is the largest value that ran" in ran.stdout
    assert "ended" not in run_cell(f"%%gpumem --fit n=1:9 -q\n{cell}", raising=False).stdout


def test_what_the_last_failure_holds_is_said(run_cell: Run, ip: Any, torch: Any) -> None:
    """It takes the place of larger values; after %gpumem free they fit."""
    run_cell("%gpumem limit 2GiB")
    run_cell(
        "def run(size):\n    bad = torch.empty(2**30, dtype=torch.int8, device='cuda:0')\n"
        "    return torch.empty(size, dtype=torch.int8, device='cuda:0')\nrun(2**31)",
        raising=False,
    )
    cell = "x = torch.empty(n * 2**20, dtype=torch.int8, device='cuda:0')"
    ran = run_cell(f"%%gpumem --fit n=1:4096 -v found\n{cell}")
    assert ip.user_ns["found"].largest < 1025
    assert "1.00 GiB was held by the last failure or by outputs: %gpumem free" in ran.text
    run_cell("%gpumem free -q")
    ran = run_cell(f"%%gpumem --fit n=1:4096 -v found\n{cell}")
    assert ip.user_ns["found"].largest > 1900
    assert "failure" not in ran.text


def test_an_optimizers_first_step_takes_more(run_cell: Run, ip: Any, torch: Any) -> None:
    """What the first run creates and keeps leaves less for the others."""
    run_cell("%gpumem limit 4GiB")
    run_cell("state = {}")
    run_cell(
        "%%gpumem --fit n=1:4096 -q -v found\n"
        "if not state:\n    state[0] = torch.empty(2**30, dtype=torch.int8, device='cuda:0')\n"
        "x = torch.empty(n, 4 * 2**20, dtype=torch.int8, device='cuda:0')"
    )
    found = ip.user_ns["found"]
    assert fits(torch, 4 * MIB * found.largest)
    assert not fits(torch, int(4 * MIB * found.largest * 1.02) + MIB)
    run_cell("state.clear()")


def test_a_cell_that_does_not_use_the_variable(run_cell: Run, ip: Any, torch: Any) -> None:
    ran = run_cell("%%gpumem --fit batch=1:8\nx = torch.empty(3, device='cuda:0')")
    assert ran.text.startswith("The cell does not depend on batch: its peak is ")


def test_a_cell_that_keeps_what_it_allocates(run_cell: Run, ip: Any, torch: Any) -> None:
    """Earlier runs are in the way of later ones, so that the answer is not the largest value."""
    run_cell("kept = []")
    code = "kept.append(torch.empty(n, 2**20, dtype=torch.int8, device='cuda:0'))"
    shown = run_cell(f"%%gpumem --fit n=1:40960\n{code}").text
    assert "GiB allocated. Free it, and a larger value may fit." in shown
    run_cell("kept.clear()")
    assert "Earlier runs left" not in run_cell(f"%%gpumem --fit n=1:40960\nx = {code[12:-1]}").text


def test_the_limit_is_shown_set_and_lifted(run_cell: Run, ip: Any, torch: Any) -> None:
    assert "No limit" in run_cell("%gpumem limit").text
    assert "may use at most 4.00 GiB of each GPU" in run_cell("%gpumem limit 4GiB").text
    assert "Limited to 4.00 GiB of each GPU" in run_cell("%gpumem").text
    assert not fits(torch, 5 * 1024 * MIB)
    assert "No limit" in run_cell("%gpumem limit off").text
    assert "Limited" not in run_cell("%gpumem").text
    assert fits(torch, 5 * 1024 * MIB)
    run_cell("size = 4 * 2**30")
    assert "at most 4.00 GiB of each GPU" in run_cell("%gpumem limit {size}").text, "bytes"
    ip.run_line_magic("unload_ext", "gpumagic")
    assert fits(torch, 5 * 1024 * MIB)
    ip.run_line_magic("load_ext", "gpumagic")


def test_a_limit_from_before_cuda_is_initialised(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    said = k.run("%gpumem limit 200GiB").shown
    assert "cuda:0 has 80.0 GiB: nothing is limited there" in said
    said = k.run("%gpumem limit 2GiB\nimport torch").text
    k.run("def new(gib, i): torch.empty(gib * 2**30, dtype=torch.int8, device=f'cuda:{i}')")
    assert not k.value("torch.cuda.is_initialized()")
    assert k.run("new(2, 0); print('fits')").stdout == "fits\n"
    if k.value("torch.__version__ >= (2, 10)"):
        assert "out of memory" in k.run("new(3, 2)", raising=False).shown
    else:
        assert "once it is in use: write %gpumem limit again" in said
        k.run("%gpumem limit")
    assert "out of memory" in k.run("new(3, 0)", raising=False).shown
    k.run("%gpumem limit off")
    k.run("new(4, 0); new(4, 1)")


def test_the_first_run_may_be_the_first_use_of_a_gpu(kernel: Callable[..., Kernel]) -> None:
    """A fresh process, whose allocator has no gaps: the limit is predicted, in few runs."""
    k = kernel()
    none = k.run("%%gpumem --fit n=1:8\nx = [0] * n", raising=False)
    assert "--fit: the cell uses no GPU: torch is not imported" in none.stderr
    k.run("%gpumem limit 2GiB -q")
    fit = "%%gpumem --fit n=1:4096 -v found"
    cell = "x = torch.empty(n, 2**26, dtype=torch.int8, device='cuda:1')"
    published = k.wait_idle(k.submit(f"{fit}\nimport torch\n{cell}"))
    shown = [each["data"]["text/plain"] for each in published if "data" in each]
    assert shown[2] == "--fit: run 3 of at most 12: n = 32; 8 fits"
    assert shown[-2] == "", "the line of the runs goes"
    assert "n = 32 fits, 33 does not." in shown[-1]
    assert k.value("(n, found.runs[0].peak, found.exact)") == (32, 2**26, True)
    assert k.value("[run.value for run in found.runs]") == [1, 8, 32, 33]
    # Another GPU may be nearly full: what counts is the one that the cell uses.
    k.run("import torch\nfull = torch.empty(15 * 2**27, dtype=torch.int8, device='cuda:0')")
    k.run(f"{fit}\n{cell}")
    assert k.value("(n, found.exact, len(found.runs) <= 8)") == (32, True, True)


def test_an_error_that_is_raised_again_from_another(torch: Any, run_cell: Any) -> None:
    run_cell(
        "import torch\ndef step(n):\n    try:\n        return torch.empty(n * 2**30, "
        "dtype=torch.uint8, device='cuda')\n    except torch.cuda.OutOfMemoryError as e:\n"
        "        raise ValueError('too large') from e"
    )
    ran = run_cell("%%gpumem --fit n=1:1000\nstep(n).shape")
    assert ran.error is None
    assert "does not" in ran.text
