"""Loading, loading twice, reloading, unloading; in a shell, a kernel and a plain terminal."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import driver
from gpumagic.magics.magic_state import state_of
from gpumagic.memory.exact_peaks import LEDGER
from tests.support.kernels import Kernel
from tests.support.shells import registered, run_cell, shell
from tests.support.terminal import Terminal
from tests.virtual_gpu import Scenario

CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def test_loading_and_unloading_are_exact_opposites(virtual_gpu: Any) -> None:
    with shell(load=False) as ip:
        before, environment, imports = registered(ip), dict(os.environ), builtins.__import__
        run_code = ip.run_code
        for _ in range(2):
            run_cell(ip, "%load_ext gpumagic")
            # Where CUDA is initialised, there is nothing left to protect.
            assert os.environ.get(CHECK) == (None if driver.is_initialized() else "1")
            run_cell(ip, "%gpu -q -v table\n%gpumem -q -v report\n%cudatime -q -v timing 1 + 1")
            run_cell(ip, "%cudatime on -q\n%gpumem on -q")
            modes = state_of(ip).cell_timing, state_of(ip).cell_memory
            assert [mode.watching for mode in modes if mode is not None] == [True, True]
            run_cell(ip, "%unload_ext gpumagic")
            assert registered(ip) == before
            assert dict(os.environ) == environment
            assert builtins.__import__ is imports
            assert ip.run_code == run_code
            assert not LEDGER._scopes
        ran = run_cell(ip, "%gpu", raising=False)
        assert "not found" in str(ran.error)


MASK = "CUDA_VISIBLE_DEVICES"


def test_unloading_takes_choices_back(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Too late or not: another test of this process may have initialised CUDA."""
    monkeypatch.setenv(MASK, "0,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with shell(load=False) as ip:
        environment = dict(os.environ)
        run_cell(ip, "%load_ext gpumagic\nimport torch")
        threads = run_cell(ip, "torch.get_num_threads()").value
        run_cell(ip, f"%gpu 1 -q\n%gpu off -q --threads {threads + 1}")
        run_cell(ip, "%%gpu 0 -q\n1 + 1", raising=False)
        run_cell(ip, "%gpu reset -q")  # writes the other variable, too
        run_cell(ip, f"%gpu 0 -q --threads {threads + 2}")
        run_cell(ip, "%reload_ext gpumagic")
        assert os.environ[MASK] == "0"
        assert run_cell(ip, "torch.get_num_threads()").value == threads + 2
        said = run_cell(ip, "%unload_ext gpumagic").stdout
        assert said.startswith(f"gpumagic: its choice of GPUs is undone: {MASK} is 0,1")
        assert dict(os.environ) == environment
        assert run_cell(ip, "torch.get_num_threads()").value == threads


def test_loading_twice_is_loading_once(ip: Any) -> None:
    before, state = registered(ip), state_of(ip)
    ran = run_cell(ip, "%load_ext gpumagic")
    assert "already loaded" in ran.stdout
    gpumagic.load_ipython_extension(ip)
    assert registered(ip) == before
    assert state_of(ip) is state


def test_reloading_changes_nothing(torch: Any, ip: Any) -> None:
    """Many type it by habit at the top; what is on goes on, as after a restart."""
    run_cell(
        ip,
        "%cudatime on --above 60 -q\n%gpumem on -q\n%gpumem limit 1GiB -q\n"
        "%config GpuMagic.claim = False",
    )
    run_cell(ip, "%cudatime -q --name first 1 + 1")
    run_cell(ip, "import torch; x = torch.ones(2**20, device='cuda')")
    assert [mode.watching for mode in (state_of(ip).cell_timing, state_of(ip).cell_memory)] == [
        True,
        True,
    ]
    before = registered(ip)
    ran = run_cell(ip, "%reload_ext gpumagic")
    assert (ran.text, ran.stderr) == ("", "")
    assert registered(ip) == before
    assert len(run_cell(ip, "%cudatime log -o -q").value) >= 2
    assert len(run_cell(ip, "%gpumem log -o -q").value) >= 2
    shown = run_cell(ip, "y = torch.ones(2**20, device='cuda')").text
    assert "GPU memory: cuda:0 +4.00 MiB" in shown
    assert "wall" in shown
    assert "first" in str(run_cell(ip, "%cudatime compare first", raising=False).error)
    assert "1.00 GiB" in run_cell(ip, "%gpumem limit").text
    assert run_cell(ip, "get_ipython().magics_manager.registry['GpuMagic'].claim").value is False


def test_a_users_own_setting_stays(virtual_gpu: Any) -> None:
    os.environ[CHECK] = "0"
    try:
        with shell() as ip:
            assert os.environ[CHECK] == "0"
            run_cell(ip, "1 + 1")
        assert os.environ[CHECK] == "0"
    finally:
        del os.environ[CHECK]


def test_magics_of_the_same_name_come_back(virtual_gpu: Any) -> None:
    with shell(load=False) as ip:

        def gpu(line: str) -> str:
            """A magic of another extension."""
            return "theirs"

        ip.register_magic_function(gpu, "line")
        run_cell(ip, "%load_ext gpumagic")
        assert "cuda:0" in run_cell(ip, "%gpu").text
        run_cell(ip, "%unload_ext gpumagic")
        assert run_cell(ip, "%gpu").value == "theirs"


def test_no_warning_of_torchs_where_nvml_cannot_be_initialised(
    kernel: Callable[..., Kernel],
) -> None:
    """torch calls NVML because of gpumagic, and would warn of its error because of that."""
    not_loaded = {"/proc/driver/nvidia/version": None}
    fresh = kernel(Scenario(devices=0, faults={"nvmlInit*": 9, "cuInit": 100}, files=not_loaded))
    assert fresh.run("import torch\ntorch.cuda.is_available()").stderr == ""
    assert fresh.value(f"__import__('os').environ.get({CHECK!r})") is None


#: What a CPU-only build of torch lacks.
CPU_ONLY = """
import torch
for name in [name for name in vars(torch._C) if name.startswith(("_cuda_", "_CudaStream"))]:
    delattr(torch._C, name)
assert not torch.cuda._is_compiled()
"""


def test_every_magic_works_with_a_torch_that_has_no_cuda(kernel: Callable[..., Kernel]) -> None:
    cpu = kernel()
    cpu.run(CPU_ONLY)
    assert "cuda:0" in cpu.run("%gpu").text
    assert "torch is built without CUDA: these are the driver's figures" in cpu.run("%gpumem").text
    for magic in ("cudatime", "gpumem"):
        measured = cpu.run(f"%%{magic}\ntorch.ones(3).sum()")
        assert "this torch is built without CUDA" in measured.text
        assert measured.value == "tensor(3.)"
    cpu.run("selection = %gpu off -o -q")
    assert cpu.value("selection.status") == "applied"
    assert cpu.value("str(__import__('gpumagic').device())") == "cpu"


def test_a_plain_terminal(terminal: Terminal) -> None:
    plain = terminal
    assert "cuda:0" in plain.run("%gpu")
    assert "applied: this process sees 1 GPU" in plain.run("%gpu 2")
    assert plain.run("%gpu offf").startswith("UsageError: 'offf' is not a choice of GPUs")
    shown = plain.run("%%gpu off\nimport os; os.environ['CUDA_VISIBLE_DEVICES']")
    assert "'-1'" in shown
    plain.run("import torch; x = torch.ones(1, device='cuda')")
    assert "Too late for 'off'" in plain.run("%gpu off")
    assert "GPU" in plain.run("%cudatime x + 1")
    assert "cuda:0" in plain.run("%gpumem")
    plain.run("%gpumem on -q")
    shown = plain.run("y = torch.empty(2**20, dtype=torch.uint8, device='cuda')")
    assert "GPU memory: cuda:0 +1.00 MiB, peak +1.00 MiB, now 1.00 MiB" in shown
