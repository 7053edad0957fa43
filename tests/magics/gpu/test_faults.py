"""``%gpu`` where something is missing, broken or lost: one line or a dash, never a traceback."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpumagic
from gpumagic.cuda import nvml
from gpumagic.errors import GpuMagicWarning
from tests.support.kernels import Kernel
from tests.virtual_gpu import Scenario

NO_GPU = "This machine has no GPU that CUDA can use"
#: The NVML calls behind a row of the table, and the field that each alone has.
FIELDS = {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryInfo_v2": None,
    "nvmlDeviceGetMemoryInfo": None,
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit",
    "nvmlDeviceGetComputeRunningProcesses_v2": None,
    "nvmlDeviceGetGraphicsRunningProcesses_v2": None,
    "nvmlDeviceGetMigMode": None,
}
#: Every NVML call behind the table. The count and the handle decide whether there is a device.
CALLS = [
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    *FIELDS,
]


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    """Nothing is known of the devices but what NVML says in the test."""
    nvml._identities.clear()
    yield
    nvml._identities.clear()


def test_these_are_the_calls_that_the_table_makes(virtual_gpu: Any) -> None:
    gpumagic.devices()
    made = {name for name in CALLS if virtual_gpu.calls(name)}
    # Version 1 of the memory call is the fallback of version 2.
    assert made == {*CALLS} - {"nvmlDeviceGetMemoryInfo"}


@pytest.mark.parametrize("code", [3, 15, 16, 999])
@pytest.mark.parametrize("call", CALLS)
def test_any_call_may_fail_in_any_way(
    virtual_gpu: Any, run_cell: Callable[..., Any], call: str, code: int
) -> None:
    virtual_gpu.fault(call, code)
    ran = run_cell("%gpu -p")
    assert ran.error is None
    assert ran.stderr == ""
    assert "This process sees" in ran.text or "CUDA_VISIBLE_DEVICES" in ran.text
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")  # put back at the end, whatever becomes of it
        # Another test of this process may have initialised CUDA: then it is too late, and said so.
        warnings.simplefilter("ignore", GpuMagicWarning)
        ran = run_cell("%gpu off -o -q")
    assert ran.value.requested == "off"
    assert ran.value.environment["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(("call", "field"), FIELDS.items())
def test_a_field_that_fails_is_a_dash_and_the_others_stand(
    virtual_gpu: Any, call: str, field: str | None
) -> None:
    def unknown() -> set[str]:
        return {name for name, value in vars(gpumagic.devices()[0]).items() if value is None}

    before = unknown()
    nvml._identities.clear()
    virtual_gpu.fault(call, 3)
    # Where another test has initialised CUDA, what this process sees is known by the UUIDs.
    derived = {"ordinal", "visible", "memory_own", "memory_others"}
    assert unknown() - before - derived == {*filter(None, [field])}
    assert "error" in before & unknown()


def test_a_lost_device_is_not_chosen_without_a_word(kernel: Callable[..., Kernel]) -> None:
    damaged = kernel(Scenario(devices=3, lost=[1]))
    for spec in ("1", "0-2"):
        reply = damaged.run(f"%gpu {spec}", raising=False)
        assert reply.stderr.startswith("UsageError: GPU 1 "), reply.shown
        assert "the GPU is lost" in reply.stderr
        assert reply.stderr.count("\n") == 1
        assert damaged.value("'CUDA_VISIBLE_DEVICES' in __import__('os').environ") is False
    assert "GPU 1: the GPU is lost" in damaged.run("%gpu on").text
    assert "lost" not in damaged.run("%gpu 0,2").text


def test_a_device_that_needs_a_reset_is_said(virtual_gpu: Any) -> None:
    virtual_gpu.fault("nvmlDeviceGetUtilizationRates", 16)
    device = gpumagic.devices()[0]
    assert "nvidia-smi --gpu-reset" in device.error
    assert device.name is not None
    assert device.memory_used is None
    with pytest.raises(
        gpumagic.DeviceError, match="GPU 0 cannot be chosen: the GPU cannot be used"
    ):
        gpumagic.select("0")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (9, "the NVIDIA driver is not loaded"),
        (18, "the NVIDIA driver was upgraded and its parts do not match"),
    ],
)
def test_why_there_is_no_nvml_is_said(virtual_gpu: Any, code: int, says: str) -> None:
    virtual_gpu.fault("nvmlInitWithFlags", code)
    table = gpumagic.devices()
    assert len(table) == 0
    assert says in str(table.error)


def test_without_nvml_only_all_or_none_can_be_chosen(kernel: Callable[..., Kernel]) -> None:
    without = kernel(Scenario(devices=3, nvml=False))
    assert "NVML is not installed, though the CUDA driver is" in without.run("%gpu").text
    reply = without.run("%gpu 2", raising=False)
    assert "choose by CUDA_VISIBLE_DEVICES=0" in reply.stderr
    for spec, sees in (("off", "no GPU"), ("on", "not known")):
        assert sees in without.run(f"selection = %gpu {spec} -o").text
        assert without.value("selection.status") == "applied"
    without.run("import torch; x = torch.empty(1, device='cuda')")
    for spec, status in (("on", "unchanged"), ("off", "too-late"), ("on", "applied")):
        without.run(f"selection = %gpu {spec} -o -q")
        assert without.value("selection.status") == status


def test_choices_where_nvml_refuses_uuids(kernel: Callable[..., Kernel]) -> None:
    refused = kernel(Scenario(devices=3, faults={"nvmlDeviceGetUUID": 4}))
    for spec in ("1", "auto"):
        reply = refused.run(f"%gpu {spec}", raising=False)
        assert "start the notebook process with CUDA_DEVICE_ORDER=PCI_BUS_ID and" in reply.stderr
        assert reply.stderr.count("\n") == 1


#: Of a machine without a GPU: why, what the table says, and what helps.
WITHOUT: dict[str, tuple[Scenario, str, str, str]] = {
    "no driver": (
        *(Scenario(devices=2, driver=False, nvml=False), "no NVIDIA driver is installed."),
        *("make demo", "make demo"),
    ),
    "a container with the capability 'utility' alone": (
        *(Scenario(devices=2, driver=False), "CUDA's own driver library"),
        *("NVIDIA_DRIVER_CAPABILITIES=compute,utility", "--gpus all"),
    ),
    "no device": (Scenario(devices=0), "NVML lists none.", "NVML lists none.", ""),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_without_a_gpu(kernel: Callable[..., Kernel], name: str) -> None:
    scenario, why, table, helps = WITHOUT[name]
    k = kernel(scenario)
    shown = k.run("%gpu").text
    assert shown.startswith(NO_GPU)
    assert table in shown
    assert "can still be changed" not in shown
    for spec in ("0", "auto 2", "auto --wait 60", "auto --min-free 1GiB", "0,9"):
        reply = k.run(f"%gpu {spec}", raising=False)
        assert reply.stderr.startswith(f"UsageError: {NO_GPU}: {why}")
        assert helps in reply.stderr
        assert reply.stderr.count("\n") == 1
    k.run("import gpumagic, torch")
    assert k.value("(gpumagic.device().type, torch.cuda.is_available())") == ("cpu", False)
    for spec in ("off", "on", "reset", "off", "auto", "auto"):  # it is so already
        shown = k.run(f"selection = %gpu {spec} -o").text
        assert shown.startswith("unchanged: this machine has no GPU that CUDA can use")
        assert k.value("(selection.status, selection.devices)") == ("unchanged", ())
    for spec in ("off", "auto"):
        assert k.run(f"%%gpu {spec}\n6 * 7").value == "42"
    script = k.run("import gpumagic; gpumagic.select('auto')", raising=False)
    assert NO_GPU in script.shown
    assert k.value("'CUDA_VISIBLE_DEVICES' in __import__('os').environ") is False
    assert "can still be selected" not in k.run("%gpu doctor").text
    if name != "a container with the capability 'utility' alone":  # there NVML counts some
        assert k.value("str(__import__('gpumagic').device())") == "cpu"
    assert "no GPU time: " in k.run("%cudatime 1").text
    k.run("model = torch.nn.Linear(2, 2)")  # code that runs with and without a GPU goes on
    assert "Deleted model: no GPU memory was freed." in k.run("%gpumem free model").text
    assert k.value("'model' in globals()") is False
    for line in ("%gpumem limit 16GiB", "%gpumem limit off", "%gpumem limit"):
        assert "there is no GPU to limit: " in k.run(line).text
    refused = k.run("%gpumem record on", raising=False).stderr
    assert refused.startswith("UsageError: there is no allocator to ask: ")


@pytest.mark.parametrize("package", ["torch", "pynvml", "rich"], ids=lambda name: f"without {name}")
def test_a_package_that_cannot_be_imported(kernel: Callable[..., Kernel], package: str) -> None:
    poor = kernel(load=False)
    poor.run(f"import sys; sys.modules[{package!r}] = None")
    poor.run("%load_ext gpumagic")
    poor.run("%gpu off -q")
    reply = poor.run("%gpu", raising=False)
    if package == "rich":
        assert reply.status == "error"
    elif package == "pynvml":
        assert "install it with: pip install nvidia-ml-py" in reply.text
    else:
        assert "This process sees none" in reply.text
        poor.run("%gpu reset -q")
        for line in ("%cudatime 42", "%%gpumem\n42", "%%cudatime -n 1 -r 1\n42", "%gpumem vars"):
            ran = poor.run(line)
            assert "torch is not imported" in ran.text, line
            assert ran.value == ("42" if line in ("%cudatime 42", "%%gpumem\n42") else None)
        report = poor.run("%gpumem").text
        assert "79.5 GiB" in report
        assert "torch is not imported: these are the driver's figures alone" in report
    assert poor.run("%%gpu on -q\n6 * 7").value == "42"
