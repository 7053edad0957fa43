"""``%gpu doctor``, ``--threads``, and the line below a cell that failed, in real shells."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.doctor import explanation as explaining
from gpumagic.results import Diagnosis, Explanation
from gpumagic.selection import cpu_threads
from tests.support.kernels import Kernel
from tests.support.shells import Ran
from tests.virtual_gpu import GPU, Scenario, World


def test_doctor_is_shown_and_returned(run_cell: Callable[..., Ran]) -> None:
    import torch  # noqa: F401, so that no child process need be asked

    shown = run_cell("%gpu doctor")
    assert shown.text.startswith("torch can use 4 GPUs here.\nok    driver: ")
    assert "color:var(--jp-success-color1" in shown.html
    assert shown.value is None
    quiet = run_cell("%gpu doctor -o -q -v report")
    assert isinstance(quiet.value, Diagnosis)
    assert quiet.text == ""
    assert run_cell("report").value is quiet.value
    assert run_cell("%gpu doctor;").text == ""


def test_a_misspelt_doctor(run_cell: Callable[..., Ran]) -> None:
    ran = run_cell("%gpu docter", raising=False)
    assert "did you mean 'doctor'?" in str(ran.error)
    cell = run_cell("%%gpu doctor\n1", raising=False)
    assert "needs a choice of GPUs" in str(cell.error)


# --- threads -----------------------------------------------------------------------------------


@pytest.fixture
def torch_threads() -> Iterator[Callable[[], int]]:
    import torch

    before = torch.get_num_threads()
    yield torch.get_num_threads
    cpu_threads.reset()
    torch.set_num_threads(before)


def test_off_tells_the_threads(
    run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, torch_threads: Callable[[], int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    before = torch_threads()
    told = run_cell("%gpu off --soft").text
    assert f"CPU: torch computes with {before} thread" in told
    assert f"{cpu_threads.cores().allowed} core" in told
    set_ = run_cell("%gpu off --soft --threads 3").text
    assert torch_threads() == 3
    assert "CPU: torch computes with 3 threads" in set_
    assert f"{before} thread" in run_cell("%gpu on --soft").text
    assert torch_threads() == before
    assert "CPU" not in run_cell("%gpu on --soft").text


def test_threads_go_with_a_restart(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    fresh.run("import torch\ntorch.cuda.init()")
    shown = fresh.run("%gpu off --restart --threads 3")
    assert "CPU: torch computes with 3 threads" in shown.text
    assert fresh.value(
        "(__import__('torch').get_num_threads(), __import__('torch').cuda.is_available())"
    ) == (
        3,
        False,
    )


def test_threads_for_one_cell(
    run_cell: Callable[..., Ran], torch_threads: Callable[[], int]
) -> None:
    before = torch_threads()
    ran = run_cell("%%gpu off --soft --threads 3\nimport torch\ntorch.get_num_threads()")
    assert ran.value == 3
    assert torch_threads() == before
    failed = run_cell("%%gpu off --soft --threads 3\n1 / 0", raising=False)
    assert isinstance(failed.error, ZeroDivisionError)
    assert torch_threads() == before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%gpu off --threads 0", "'0' is not a number of threads"),
        ("%gpu off --threads many", "'many' is not a number of threads"),
        ("%gpu --threads 2", "--threads goes with a choice of GPUs"),
        ("%gpu doctor --threads 2", "--threads goes with a choice of GPUs"),
    ],
)
def test_wrong_threads_change_nothing(
    run_cell: Callable[..., Ran], torch_threads: Callable[[], int], line: str, says: str
) -> None:
    before = torch_threads()
    assert says in str(run_cell(line, raising=False).error)
    assert torch_threads() == before


# --- the line below a failure ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CUDA error: device-side assert triggered", "restart the kernel"),
        ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: invalid device ordinal", "cuda:0 (GPU 0), cuda:1 (GPU 1)"),
        ("CUDA error: something new", "%gpu doctor tells more"),
        ("The NVIDIA driver on your system is too old (found version 12000).", "driver"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver"),
        ("Cannot re-initialize CUDA in forked subprocess. To use", "spawn"),
        ("Torch not compiled with CUDA enabled", "built without CUDA"),
    ],
)
def test_a_failure_is_explained_in_one_line(
    run_cell: Callable[..., Ran], text: str, says: str
) -> None:
    ran = run_cell(f"raise RuntimeError({text!r})", raising=False)
    assert isinstance(ran.error, RuntimeError)
    assert ran.text.startswith("gpumagic: ")
    assert says in ran.text
    assert "\n" not in ran.text
    assert "opacity" in ran.html
    assert ran.stderr == ""


def test_a_driver_that_is_not_loaded_is_not_called_too_old(kernel: Callable[..., Kernel]) -> None:
    """Whatever torch's runtime says of it: 35 if it is built for CUDA 13, else 100."""
    machine = Scenario(devices=0, faults={"nvmlInit*": 9}, cuda_version=12020)
    failed = kernel(machine).run("import torch; torch.cuda.init()", raising=False)
    assert failed.error is not None
    assert failed.text.startswith("gpumagic: the NVIDIA driver is not loaded, or a container was")


def test_a_cause_further_back_is_explained(run_cell: Callable[..., Ran]) -> None:
    wrapped = (
        "try:\n    raise RuntimeError('CUDA error: misaligned address')\n"
        "except RuntimeError as error:\n    raise ValueError('mine') from error"
    )
    assert "a kernel went wrong" in run_cell(wrapped, raising=False).text


@pytest.mark.parametrize(
    "source",
    [
        "1 / 0",
        "raise RuntimeError('CUDA error: out of memory')",
        "1 +",
        "%gpu 99",
        "'CUDA error: x'",
    ],
)
def test_other_cells_get_no_line(run_cell: Callable[..., Ran], source: str) -> None:
    assert run_cell(source, raising=False).text == ""


def test_a_real_missing_kernel_image(run_cell: Callable[..., Ran], virtual_gpu: World) -> None:
    """The error comes from torch itself; its class is torch.AcceleratorError where there is one."""
    run_cell("import torch\nx = torch.ones(2, device='cuda')")
    for launch in ("cudaLaunchKernel*", "__cudaLaunchKernel*"):  # as CUDA 12 and 13 call it
        virtual_gpu.fault(launch, 209)
    ran = run_cell("x + 1", raising=False)
    assert "no kernel image is available" in str(ran.error)
    assert ran.text.startswith("gpumagic: the code that failed was not built for this GPU")


def test_an_exceptions_own_code_does_not_run() -> None:
    """Its text is that which it was made with, also where the text is a class of the user's."""
    ran: list[str] = []

    class Text(str):
        def __str__(self) -> str:
            ran.append("Text.__str__")
            return "mine"

        __repr__ = __str__

    class HostileError(RuntimeError):
        def __str__(self) -> str:
            ran.append("__str__")
            raise ValueError("mine")

        __repr__ = __str__

        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            raise ValueError("mine")

    text = Text("Caught AcceleratorError:\nCUDA error: misaligned address")
    for error in (HostileError(text), HostileError(7, text), KeyError(text)):
        found = explaining.explain(error)
        assert isinstance(found, Explanation)
        assert "a kernel went wrong" in str(found)
    assert explaining.explain(HostileError(HostileError("CUDA error: something"))) is None
    assert not ran


def test_the_exception_is_not_kept(run_cell: Callable[..., Ran]) -> None:
    class MineError(RuntimeError):
        pass

    error = MineError("CUDA error: something")
    gone = weakref.ref(error)
    assert isinstance(explaining.explain(error), Explanation)
    del error
    gc.collect()
    assert gone() is None


def test_an_explainer_that_fails_steps_aside(
    run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(error: BaseException) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(explaining, "EXPLAINERS", [broken])
    ran = run_cell("1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert ran.stderr == "gpumagic: no explanation (KeyError: 'ours')\n"


def test_in_a_kernel(kernel: Callable[..., Kernel]) -> None:
    """On a machine whose GPU is too old; the line comes after the traceback."""
    fresh = kernel(Scenario(devices=[GPU(name="GTX 680", compute_capability=(3, 0))]))
    fresh.run("import torch\nx = torch.ones(1, device='cuda')")
    failed = fresh.run(
        "raise RuntimeError('CUDA error: no kernel image is available for execution')",
        raising=False,
    )
    assert [output["output_type"] for output in failed.outputs] == ["error", "display_data"]
    assert failed.text.startswith("gpumagic: GPU 0 and torch: GTX 680, compute capability 3.0;")
    assert "sm_30" in failed.text
    loader = (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, i): return torch.ones(1, device='cuda')\n"
        "next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, "
        "multiprocessing_context='fork')))"
    )
    forked = fresh.run(loader, raising=False)
    assert "Cannot re-initialize CUDA in forked subprocess" in forked.shown
    assert "(CUDA was initialised while cell [2] ran `x = torch.ones" in forked.text
    report = fresh.run("%gpu doctor")
    assert "CUDA was initialised while cell [2]" in report.text
    assert report.text.startswith("torch cannot use a GPU here, because this torch has no kernels")
    fresh.run("%unload_ext gpumagic")
    assert fresh.run("raise RuntimeError('CUDA error: x')", raising=False).text == ""


def test_hidden_gpus_are_named_as_the_cause(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(env={"CUDA_VISIBLE_DEVICES": "-1"})
    failed = fresh.run("import torch\ntorch.ones(1, device='cuda')", raising=False)
    assert "No CUDA GPUs are available" in failed.shown
    assert failed.text.startswith("gpumagic: every GPU is hidden, CUDA_VISIBLE_DEVICES=-1; ")
    assert "%gpu on" in failed.text


def test_a_start_that_failed_earlier_is_named_as_the_cause(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    fresh.run("%%gpu off -q\nimport torch\ntorch.ones(2, requires_grad=True).sum().backward()")
    failed = fresh.run("torch.ones(1, device='cuda')", raising=False)
    assert "this process remembers that, for good: %gpu on --restart" in failed.text
    assert "=None" not in failed.text
    assert "hidden" not in failed.text


def test_without_a_mask_none_is_named(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(env={"CUDA_VISIBLE_DEVICES": "-1"})
    fresh.run("import torch, ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)")
    fresh.run("import os; del os.environ['CUDA_VISIBLE_DEVICES']")
    failed = fresh.run("torch.ones(1, device='cuda')", raising=False)
    assert "for good: %gpu on --restart" in failed.text
    assert "=None" not in failed.text


def test_a_missing_driver_is_named_as_the_cause(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(Scenario(devices=2, driver=False))
    failed = fresh.run("import torch\ntorch.ones(1, device='cuda')", raising=False)
    assert "libcuda.so.1, cannot be loaded" in failed.text
    assert "hidden" not in failed.text


def test_variables_written_before_and_after_the_start_are_told_apart(
    kernel: Callable[..., Kernel],
) -> None:
    fresh = kernel()
    fresh.run("import os\nos.environ['CUDA_MODULE_LOADING'] = 'EAGER'")
    fresh.run("import torch\ntorch.cuda.init()")
    fresh.run("report = %gpu doctor -o -q")
    status = "report.about('CUDA_MODULE_LOADING').status"
    assert fresh.value(status) == "ok"
    fresh.run("os.environ['CUDA_MODULE_LOADING'] = 'LAZY'\nreport = %gpu doctor -o -q")
    assert fresh.value(status) == "warn"
