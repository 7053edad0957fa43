"""``%gpu restart`` and ``%gpu … --restart`` in real kernels, notebooks and terminals."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipykernel
import pytest

from gpumagic.errors import RestartError
from gpumagic.magics.gpu.restart import restarting
from gpumagic.magics.magic_state import state_of
from tests.restart import FREEZE, SEES, restarted
from tests.support.kernels import Kernel, running_kernel


def test_what_goes_on_and_what_ends(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """Numbering, inputs, folder, the start, a claim; and the options of the line."""
    k = kernel(env={"CUDA_VISIBLE_DEVICES": "1"})
    first = k.run(f"import os; os.chdir({str(tmp_path)!r})").execution_count
    k.run(FREEZE)
    k.run("%gpu 2 -q")
    assert "claimed" not in k.run("%gpu").text, "it was too late"
    k.run("import warnings; warnings.simplefilter('always', ResourceWarning)")
    quiet = k.run("%gpu 2 --restart -q -o")
    assert quiet.text == quiet.stderr == ""
    assert str(quiet.value).startswith("restarted: this process sees 1 GPU")
    assert "GPU 2: claimed by this process." in k.run("%gpu").text
    after = k.run("import os; print(os.getcwd()); In")
    assert (first, quiet.execution_count) == (after.execution_count - 7, after.execution_count - 2)
    assert after.stdout.strip() == str(tmp_path)
    assert "get_ipython().run_line_magic('gpu', '2 --restart -q -o')" in str(after.value)
    assert k.run(f"_{quiet.execution_count}.status").value == "'restarted'"
    assert "CUDA_VISIBLE_DEVICES=1)" in k.run("%gpu reset").text
    assert "%load_ext gpumagic" in k.run("%history").stdout

    k.run(FREEZE)
    assert k.run("%gpu 0 --restart --threads 3 -v chosen;").text == ""
    assert k.value("(chosen.devices[0].index, __import__('torch').get_num_threads())") == (0, 3)
    k.run(FREEZE)
    assert "torch computes with 3 threads" in restarted(k, "%gpu 1 --restart")
    assert k.value("__import__('torch').get_num_threads()") == 3


def test_only_what_is_too_late_restarts(kernel: Callable[..., Kernel]) -> None:
    """Its purpose: is_available() goes from a frozen True to False."""
    k = kernel()
    k.run("kept = 1")
    assert k.run("%gpu off --restart").text.startswith("applied")
    k.run("%gpu reset -q")
    k.run("import torch; x = torch.ones(3, device='cuda')")
    shown = k.run("%gpu reset --restart --keep x").text
    assert shown.startswith("unchanged")
    assert "not restarted: the choice is in effect in this process, which keeps all" in shown
    assert "for a fresh one: %gpu restart --keep x" in shown
    assert k.value("(kept, x.numel(), torch.cuda.is_available())") == (1, 3, True)
    first, second, third = k.run("late = %gpu off --restart --keep none -o").text.splitlines()[:3]
    assert first == "restarted: this process sees no GPU  (CUDA_VISIBLE_DEVICES=-1)"
    assert second == "Lost: 3 variables (kept, torch, x)."
    assert third.startswith("It took ")
    assert k.value("late.lost") == ("kept", "torch", "x")
    assert k.value("{'kept', 'torch', 'x'} & {*globals()}") == set()
    assert k.value("__import__('torch').cuda.is_available()") is False


def test_a_gated_process_restarts_and_the_new_one_has_no_gate(
    kernel: Callable[..., Kernel],
) -> None:
    """What is on the GPU is kept; a restart that is refused leaves gate and choice as they were."""
    k = kernel()
    k.run("import torch; x = torch.tensor([7.] * 3).cuda()")
    k.run("%gpu off --soft -q")
    k.run("held = open('/dev/null', 'w')")
    seen = "(torch.cuda.is_available(), __import__('os').environ.get('CUDA_VISIBLE_DEVICES'))"
    before = k.value(seen)
    assert "held" in k.run("%gpu 0 --restart", raising=False).stderr
    assert k.value(seen) == before == (False, None)
    k.run("held.close(); del held")
    assert restarted(k, "%gpu 0 --restart").startswith("restarted: this process sees 1 GPU")
    assert k.value("(x.tolist(), torch.ones(3, device='cuda').is_cuda)") == ([7.0] * 3, True)
    k.run("%gpu off --soft -q")
    refused = k.run("%gpu restart --keep x", raising=False).shown.replace("\n", " ")
    assert "write %gpu off --restart, or %gpu on before" in refused
    shown = k.run("%gpu 0 --restart").text
    assert "the gate is lifted" in shown
    assert "not restarted: the choice is in effect" in shown
    assert k.value("torch.cuda.is_available()") is True


FORKED = """
import torch
def child(write):
    try:
        torch.ones(1, device='cuda'); os.write(write, b'fine')
    except RuntimeError as error:
        os.write(write, str(error).encode())
    os._exit(0)
def asked_in_a_fork():
    read, write = os.pipe()
    if os.fork() == 0:
        child(write)
    os.close(write)
    return open(read).read()
"""


def test_a_fresh_process_with_the_same_gpus_from_which_one_can_fork(
    kernel: Callable[..., Kernel],
) -> None:
    """The choice, its claim and the CPU threads go on; what is not on a GPU starts no CUDA."""
    k = kernel()
    k.run("%gpu 2 --threads 3 -q")
    k.run("import os, torch; rates = torch.ones(2); device = torch.device('cuda', 0); host = [1]")
    k.run(f"seen = torch.rand(3, device=device); seen\n{FORKED}")
    assert "forked subprocess" in k.value("asked_in_a_fork()")
    k.run("del seen; expected = torch.cuda.get_rng_state(0)")
    pid = k.value("os.getpid()")
    shown = restarted(k, "%gpu restart")
    assert shown.startswith("restarted: this process sees 1 GPU")
    assert "cuda:0 is GPU 2" in shown
    assert "Cell numbers and In go on; Out is empty. CUDA is not started." in shown
    assert "torch computes with 3 threads" in shown
    assert k.value("(os.getpid(), host, rates.tolist(), str(device))") == (
        *(pid, [1], [1.0, 1.0], "cuda:0"),
    )
    assert k.value("asked_in_a_fork()") == "fine"
    assert "GPU 2: claimed by this process." in k.run("%gpu").text
    assert k.value("torch.equal(torch.cuda.get_rng_state(device), expected)") is True

    k.run("from numpy import mean, sin, pi, newaxis")  # neither classes nor functions of Python
    k.run("weights = torch.full((4,), 7.).to(device); gone = 1")
    shown = k.run("again = %gpu restart --keep weights torch os -o").text
    assert "CUDA is started by weights. To fork: %gpu off --restart, then %gpu on." in shown
    assert "CUDA is not started" not in shown
    assert k.value("(str(weights.device), weights.cpu().sum().item())") == ("cuda:0", 28.0)
    assert k.value("(again.status, again.cuda_initialized, 'gone' in again.lost)") == (
        *("restarted", True, True),
    )
    assert k.value("(int(mean([1, 3])), int(sin(0)), int(pi), newaxis)") == (2, 0, 3, None)


def test_a_choice_that_came_too_late_is_not_made_by_it(kernel: Callable[..., Kernel]) -> None:
    """The process has the GPUs that it saw; also where CUDA had started before gpumagic came."""
    k = kernel(load=False)
    k.run(f"{FREEZE}\n%load_ext gpumagic")
    assert "Too late" in k.run("%gpu off").text
    assert k.run("%gpu restart").text.startswith("restarted: this process sees 4 GPUs")
    k.run("%gpu 2 -q\nimport torch; x = torch.ones(1, device='cuda')")
    assert "Too late" in k.run("%gpu off").text
    shown = k.run("%gpu restart").text
    assert "restarted: this process sees 1 GPU" in shown
    assert "cuda:0 is GPU 2" in shown
    assert k.value("(str(x.device), torch.cuda.device_count())") == ("cuda:0", 1)
    late = "".join(k.run("%gpu auto 2 --idle --min-free 1GiB").text.replace("┃", "").split())
    assert "%gpuauto2--min-free1024MiB--idle--restart" in late, late


@pytest.fixture(scope="module")
def frozen_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for all refusals, which change nothing; what their cells do is undone."""
    with running_kernel(tmp_path_factory.mktemp("kernel")) as one:
        one.run(FREEZE + "; kept = 1; import sys; python = sys.executable")
        yield one


SMALL = "for name in [each for each in os.environ if each.startswith('BIG')]: del os.environ[name]"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%gpu off --restart\nx = 1", "last line of its cell"),
        ("def f():\n    %gpu off --restart\nf()", "last line of its cell"),
        ("get_ipython().run_cell('%gpu off --restart')\n1 / 0", "last line of its cell"),
        (
            "%%time\n%gpu off --restart",
            "%%time runs this cell, and would not see its end",
        ),
        ("import sys; sys.executable = '/nowhere'\n%gpu off --restart", "/nowhere"),
        (
            "import os; os.environ['BIG'] = 'x' * 140_000\n%gpu off --restart --keep none",
            " BIG has 1",
        ),
        (
            "import os; os.environ.update({f'BIG{n}': 'x' * 130_000 for n in range(60)})\n"
            "%gpu off --restart",
            " is the longest of all, which have 7,8",
        ),
        ("d = {}\nd['k'] = %gpu off --restart -o", "d['k'] is not there after a restart"),
        ("%gpu off --restart --keep kpt", "no variable kpt to keep; did you mean kept?"),
    ],
)
def test_refusals_change_nothing(frozen_kernel: Kernel, cell: str, said: str) -> None:
    """One line with the reason; the kernel is unchanged."""
    k = frozen_kernel
    refused = k.run(cell, raising=False)
    unchanged = k.run(f"{SEES}; kept; sys.executable = python\n{SMALL}").stdout
    assert said in refused.shown
    if "%%time" in cell:  # the one of IPython 7 shows the error, and goes on
        assert "UsageError: " in refused.shown
    elif "1 / 0" not in cell:
        assert refused.status == "error"
        assert refused.shown.startswith("UsageError: ")
        assert refused.shown.count("\n") == 1
    assert unchanged == "None False\n"


def test_refused_in_a_forked_worker(ip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_of(ip), "pid", os.getppid())
    with pytest.raises(RestartError, match="this is a forked copy of the notebook process"):
        restarting.check(ip)


def test_refused_in_a_subshell(kernel: Callable[..., Kernel]) -> None:
    if ipykernel.version_info < (7,):
        pytest.skip("this ipykernel has no subshells")
    k = kernel()
    k.run(FREEZE)
    refused = k.wait(k.subshell()("%gpu off --restart"))
    assert "runs in a subshell" in refused.shown
    # An idle subshell is nothing to lose.
    assert k.run("%gpu off --restart").text.startswith("restarted")


EXTENSION = "get_ipython().magics_manager.registry['GpuMagic']"


def test_what_the_session_has_turned_on_is_on_again(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("import torch; torch.cuda.set_device(1); x = torch.ones(1, device='cuda')")
    k.run("%cudatime on --above 7s\n%gpumem on\n%gpumem limit 500MiB\n%gpumem record on")
    k.run("%config GpuMagic.min_free = '3GiB'\n%cudatime -q --name first begun = 1")
    k.run("from __future__ import annotations")
    k.run("%gpu restart -q")
    asked = f"({EXTENSION}.cell_timing.above, {EXTENSION}.cell_memory.watching)"
    assert k.value(asked) == (7.0, True)
    assert k.value(f"{EXTENSION}.min_free") == "3GiB"
    assert "there is first" in k.run("%cudatime compare", raising=False).shown
    assert "500 MiB" in k.run("%gpumem limit").text
    assert "is recorded" in k.run("%gpumem record").text
    assert k.run("def f(x: Unknown): return 1").status == "ok"
    assert k.value("torch.cuda.current_device()") == 1


def test_a_restart_that_does_not_come_about_changes_nothing(kernel: Callable[..., Kernel]) -> None:
    """Without a file for its state at the last moment; and interrupted as it waits for a stream."""
    k = kernel()
    k.run("import os, torch; x = torch.ones(2).cuda(); side = torch.cuda.Stream()")
    k.run("%gpumem on")
    hooks = k.value(f"len([*{EXTENSION}.hooks])")
    k.run("real = os.memfd_create\ndef full(*_): raise OSError(24, 'Too many open files')")
    k.run("os.memfd_create = full")
    assert "Too many open files" in k.run("%gpu 1 --restart", raising=False).shown
    k.run("os.memfd_create = real")
    assert k.value(f"len([*{EXTENSION}.hooks])") == hooks > 0
    k.run("with torch.cuda.stream(side): torch.cuda._sleep(10**12)")
    running = k.submit("%gpu 1 --restart --keep x")
    k.until(running, "waiting for the GPUs")
    k.interrupt()
    assert "interrupted" in k.wait(running).shown
    assert k.value(f"(x.cpu().tolist(), len([*{EXTENSION}.hooks]))") == ([1.0, 1.0], hooks)
    assert k.value("os.environ.get('CUDA_VISIBLE_DEVICES')") is None


def test_all_is_a_keyword_also_where_the_notebook_has_such_a_variable(
    kernel: Callable[..., Kernel],
) -> None:
    """``from numpy import *`` binds one; and none of the words is needed for all."""
    k = kernel()
    k.run("from numpy import *; weights = arange(3); none = 1")
    for line in ("%gpu restart --keep all", "%gpu restart", "%gpu restart --keep none weights"):
        assert "restarted" in k.run(line).text
        assert k.value("weights.tolist()") == [0, 1, 2]
    k.run("import numpy; one = two = 1")
    shown = k.run("%gpu restart --keep none").text
    assert re.search(r"Lost: \d+ variables \(", shown), shown
    assert k.value("{'weights', 'one', 'two', 'numpy'} & {*globals()}") == set()


def test_a_refusal_says_what_to_type(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("kept = [1]; gen = (i for i in kept)")
    refused = k.run("%gpu restart --threads 1;", raising=False).shown
    assert "unknown option --threads" in refused or "--threads does not go with" in refused
    refused = " ".join(k.run("%gpu restart --keep kept gen;", raising=False).shown.split())
    assert "gen (cannot pickle 'generator' object). Nothing was lost; " in refused
    assert "add --force to lose just this" in refused
    assert "Not kept: gen" in k.run("%gpu restart --keep kept gen --force").text
    assert k.value("kept") == [1]


def test_what_is_ended_is_named(kernel: Callable[..., Kernel]) -> None:
    """A loader's process by its variable; with --force all of it in the report."""
    k = kernel()
    k.run("import asyncio, subprocess, threading, time, torch")
    k.run("threading.Thread(target=time.sleep, args=(600,), name='saver').start()")
    k.run("def _worker(): time.sleep(600)\nthreading.Thread(target=_worker).start()")
    k.run("pid = subprocess.Popen(['sleep', '600']).pid")
    k.run("async def poll(): await asyncio.sleep(600)\nasyncio.ensure_future(poll());")
    k.run("data = torch.arange(4)")
    k.run("loader = torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)")
    k.run("for _ in loader: pass")
    refused = " ".join(k.run("%gpu restart", raising=False).shown.split())
    for each in ("saver", "Thread-", "task poll", "(sleep)", "(a worker of loader, which del"):
        assert each in refused
    shown = restarted(k, "%gpu restart --force")
    for each in ("saver", "Thread-", "Ended: asyncio task poll.", "(sleep)"):
        assert each in shown
    assert k.value("(data.tolist(), __import__('os').path.exists(f'/proc/{pid}'))") == (
        *([0, 1, 2, 3], False),
    )
