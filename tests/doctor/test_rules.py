"""What the doctor concludes from given facts; no machine involved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cuda import devices as inventory
from gpumagic.cuda.driver import DriverState
from gpumagic.cuda.probe import Build, Start
from gpumagic.doctor import judge, system
from gpumagic.doctor.build import fit, runs_on
from gpumagic.doctor.facts import Facts, Package, Toolkit
from gpumagic.render import as_html, as_text
from gpumagic.results import Device, DeviceTable, Diagnosis, Finding
from gpumagic.selection.cpu_threads import Cores, quota
from gpumagic.system import system_files
from tests.virtual_gpu import Scenario

BUILD = Build(
    "2.9.0+cu128", True, "12.8", None, "9.10.2", ("sm_75", "sm_80", "sm_90", "compute_90")
)
UUIDS = ("GPU-a", "GPU-b")


def table(*capabilities: tuple[int, int], visible: bool = True) -> DeviceTable:
    return DeviceTable(
        tuple(
            Device(
                i, i if visible else None, uuid, f"Card {i}", compute_capability=c, visible=visible
            )
            for i, (uuid, c) in enumerate(zip(UUIDS, capabilities, strict=False))
        ),
        driver_version="570.10",
        cuda_version=(12, 8),
    )


HEALTHY = Facts(
    build=BUILD,
    torch_loaded=True,
    start=Start(2),
    table=table((9, 0), (8, 6)),
    state=DriverState(loaded=True, initialized=False),
    driver_installed=True,
    driver_cuda=(12, 8),
    packages=(Package("nvidia-ml-py", "13.0", True),),
    device_files={"/dev/nvidia0": True, "/dev/nvidiactl": True, "/dev/nvidia-uvm": True},
    threads=4,
    cores=Cores(4, 4),
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``machine(**fields)``: from now on the files of the system are those of that `Scenario`."""

    def use(**fields: Any) -> None:
        root = tmp_path / str(len([*tmp_path.iterdir()]))
        Scenario(**fields).write_files(root)
        monkeypatch.setenv(system_files.ROOT, str(root))
        inventory.in_first_pid_namespace.cache_clear()

    yield use
    inventory.in_first_pid_namespace.cache_clear()


#: What a machine has whose driver is installed and not loaded.
NOT_LOADED: dict[str, Any] = {
    "nvml_error": "the NVIDIA driver is not loaded",
    "nvml_code": 9,
    "table": DeviceTable(error="the NVIDIA driver is not loaded"),
    "start": Start(0, "No CUDA GPUs are available"),
    "device_files": {"/dev/nvidiactl": True},
    "library": "535.309.01",
}


def judged(**changes: Any) -> Diagnosis:
    return judge(replace(HEALTHY, **changes))


def finding(subject: str, **changes: Any) -> Finding:
    found = judged(**changes).about(subject)
    assert found is not None, f"nothing was found on {subject}"
    return found


def test_a_healthy_machine_has_nothing_to_look_at() -> None:
    result = judged()
    assert result.verdict == "torch can use 2 GPUs here."
    assert result.usable == 2
    assert {found.status for found in result} == {"ok"}
    assert all(found.remedy is None and found.evidence for found in result)
    assert repr(result).endswith("To look at: nothing>")
    assert result.about("no such subject") is None
    assert result[0].subject == "driver"
    assert len(result[:2]) == 2


@pytest.mark.parametrize(
    ("changes", "verdict", "subject"),
    [
        (
            {"build": Build(error="torch is not installed"), "start": Start()},
            "torch cannot use a GPU here, because torch is not installed.",
            "torch",
        ),
        (
            {"build": Build("2.9.0+cpu"), "start": Start()},
            "torch cannot use a GPU here, because this torch (2.9.0+cpu) is built without CUDA.",
            "torch",
        ),
        (
            {
                "driver_installed": False,
                "driver_cuda": None,
                "table": DeviceTable(error="NVML is not installed"),
                "start": Start(0),
            },
            "torch cannot use a GPU here, because there is no NVIDIA driver.",
            "driver",
        ),
        (
            {"driver_cuda": (11, 8), "start": Start(0, "CUDA initialization: too old. Please …")},
            "torch cannot use a GPU here, because the driver is too old for it: torch is built for "
            "CUDA 12.8, the driver supports up to 11.8.",
            "driver and torch",
        ),
        (
            {"nvml_error": "they do not match", "nvml_code": 18, "start": Start(0, "Error 803: x")},
            "torch cannot use a GPU here, because the driver was upgraded, and its kernel module "
            "and libraries do not match.",
            "NVML",
        ),
        (
            {
                **NOT_LOADED,
                "driver_cuda": (11, 8),  # too old besides, which would be the smaller trouble
                "start": Start(0, "CUDA initialization: too old. Please …"),
            },
            "torch cannot use a GPU here, because the NVIDIA driver's kernel module is not loaded.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "container": ("/.dockerenv",)},
            "torch cannot use a GPU here, because this container was started without its GPUs, or "
            "its host has not loaded the NVIDIA driver.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "container": ("/.dockerenv",), "kernel_module": "570.10"},
            "torch cannot use a GPU here, because this container was started without its GPUs.",
            "NVML",
        ),
        (
            {**NOT_LOADED, "kernel_module": "570.10"},
            "torch cannot use a GPU here, because the NVIDIA driver's kernel module is loaded but "
            "does not answer.",
            "NVML",
        ),
        (
            {
                "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
                "table": table((9, 0), visible=False),
                "start": Start(0),
            },
            "torch cannot use a GPU here, because every GPU is hidden from this process: "
            "CUDA_VISIBLE_DEVICES=-1.",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            {"table": DeviceTable(), "start": Start(0)},
            "torch cannot use a GPU here, because the machine, or the container, has no GPU.",
            "GPUs",
        ),
        (
            {"bad_fork": True, "start": Start(0)},
            "torch cannot use a GPU here, because this process was forked from one in which CUDA "
            "was initialised.",
            "fork",
        ),
        (
            {"state": DriverState(True, False, failed=True)},
            "torch cannot use a GPU here, because CUDA has failed in this process, which remembers "
            "that.",
            "this process",
        ),
        (
            {"state": DriverState(True, True, uuids=()), "start": Start(0)},
            "torch cannot use a GPU here, because CUDA was initialised in this process when no GPU "
            "was visible.",
            "this process",
        ),
        (
            {"gate": "off"},
            "torch cannot use a GPU here, because it is gated by '%gpu off --soft'.",
            "gate",
        ),
        (
            {"table": table((5, 0), (5, 2))},
            "torch cannot use a GPU here, because this torch has no kernels for GPU 0 (compute "
            "capability 5.0; it has sm_75 sm_80 sm_90 compute_90).",
            "GPU 0 and torch",
        ),
        (
            {"device_files": {"/dev/nvidiactl": False, "/dev/nvidia0": True}, "start": Start(0)},
            "torch cannot use a GPU here, because the driver's device files are closed to this "
            "user.",
            "device files",
        ),
    ],
)
def test_the_verdict_names_the_cause(changes: dict[str, Any], verdict: str, subject: str) -> None:
    """And the finding that it rests on says what to do."""
    result = judged(**changes)
    assert result.verdict == verdict
    assert result.usable == 0
    found = result.about(subject)
    assert found is not None
    assert found.status in ("bad", "warn")
    assert found.remedy


def test_what_was_not_verified_is_not_claimed() -> None:
    result = judged(start=Start(None, "a copy of this process gave no answer"))
    assert result.usable is None
    assert result.verdict == (
        "Whether torch can use a GPU here is not known: a copy of this process gave no answer."
    )
    broken = judged(build=Build(error="OSError: libcudart.so.12: cannot open"), start=Start())
    assert broken.usable is None
    assert broken.verdict == "torch cannot use a GPU here, because torch cannot be imported."
    unexplained = judged(start=Start(0))
    assert "CUDA finds no device, although the variables show some" in unexplained.verdict


def test_only_gpus_that_can_be_used_count() -> None:
    mixed = judged(table=table((5, 0), (9, 0)))
    assert mixed.usable == 1
    assert mixed.verdict == "torch can use 1 GPU here; for 1 GPU more it has no kernels."
    gated = judged(gate="1", gate_allows=(1,))
    assert gated.verdict == "torch can use 1 GPU here: the gate keeps the others out."


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 6), "sm_86", True),
        ((8, 6), "sm_80", True),
        ((8, 0), "sm_86", False),
        ((9, 0), "sm_80", False),
        ((9, 0), "sm_80 compute_80", True),
        ((7, 5), "compute_80", False),
        ((9, 0), "sm_90a", True),
        ((10, 0), "sm_90a compute_90a", False),
        ((10, 3), "sm_100f", True),
        ((12, 0), "sm_100f", False),
        ((12, 1), "sm_75 sm_120", True),
        ((5, 0), "sm_75 sm_120", False),
        ((9, 0), "gfx942", False),
    ],
)
def test_which_code_runs_where(capability: tuple[int, int], architectures: str, runs: bool) -> None:
    assert runs_on(capability, architectures.split()) is runs


def test_the_remedy_for_a_gpu_depends_on_its_age() -> None:
    old, new = (
        finding("GPU 0 and torch", table=table((5, 0))),
        finding(
            "GPU 0 and torch", table=table((12, 0)), build=replace(BUILD, architectures=("sm_90",))
        ),
    )
    assert "older torch" in str(old.remedy)
    assert "sm_50" in str(old.remedy)
    assert "newer torch" in str(new.remedy)


@pytest.mark.parametrize(
    ("built", "supported", "status", "says"),
    [
        ("12.8", (12, 8), "ok", "they fit"),
        ("12.8", (13, 0), "ok", "they fit"),
        ("12.8", (12, 1), "ok", "the same major version suffices"),
        ("13.0", (12, 8), "bad", "580 or newer"),
        ("12.1", (11, 8), "bad", "525 or newer"),
    ],
)
def test_driver_and_build(built: str, supported: tuple[int, int], status: str, says: str) -> None:
    found = fit(Build("x", True, built), supported)
    assert found is not None
    assert found.status == status
    assert says in f"{found.evidence} {found.remedy}"


def test_a_driver_that_starts_all_the_same_is_not_called_too_old() -> None:
    found = fit(Build("x", True, "13.0"), (12, 8), starts=True)
    assert found is not None
    assert found.status == "ok"
    assert fit(Build("x", True, "13.0"), None) is None
    assert fit(Build("x", True, None, "6.4"), (12, 8)) is None


def test_a_driver_that_is_not_loaded() -> None:
    assert "version 535.309.01 (NVML's file)" in finding("driver", **NOT_LOADED).evidence
    assert "modprobe" in str(finding("NVML", **NOT_LOADED).remedy)
    # The driver's libraries make /dev/nvidiactl themselves: nothing to be mended there.
    files = finding("device files", **NOT_LOADED)
    assert (files.status, files.remedy) == ("unknown", None)
    closed = finding("device files", **{**NOT_LOADED, "device_files": {"/dev/nvidiactl": False}})
    assert closed.status == "bad"
    # CUDA that starts all the same, as on WSL, is what counts.
    works = judged(**{**NOT_LOADED, "start": Start(1)})
    assert works.usable == 1
    assert [found.status for found in works if found.subject == "NVML"] == ["warn"]


def test_the_wrong_pynvml() -> None:
    both = (Package("nvidia-ml-py", "13.0", True), Package("pynvml", "11.5", True))
    found = finding("pynvml", packages=both)
    assert found.status == "warn"
    assert "in the files of nvidia-ml-py and pynvml" in found.evidence
    assert str(found.remedy).startswith("%pip uninstall -y pynvml, then")
    stray = finding("pynvml", packages=(), module_file="/home/me/pynvml.py")
    assert "/home/me/pynvml.py" in stray.evidence
    assert finding("pynvml", packages=()).remedy == "%pip install nvidia-ml-py"


def test_toolkit() -> None:
    assert "no nvcc" in finding("toolkit").evidence
    assert finding("toolkit", toolkit=Toolkit("/x/nvcc", (12, 4))).status == "ok"
    other = finding("toolkit", toolkit=Toolkit("/x/nvcc", (11, 8)))
    assert other.status == "warn"
    assert "nvcc 11.8 at /x/nvcc" in other.evidence
    assert finding("toolkit", toolkit=Toolkit("/x/nvcc")).status == "unknown"


# --- variables ---------------------------------------------------------------------------------

UP = DriverState(True, True, uuids=UUIDS, contexts=(0,))


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"state": UP}, "unknown", "before or after the change"),
        ({}, "ok", "in time: it is read when CUDA is initialised"),
        ({"state": UP, "environment_then": {"CUDA_MODULE_LOADING": "LAZY"}}, "ok", "in time"),
        ({"state": UP, "environment_then": {}}, "warn", "too late to count"),
        ({"environment_at_start": {"CUDA_MODULE_LOADING": "LAZY"}, "state": UP}, "ok", "as at the"),
    ],
)
def test_a_variable_set_in_time_or_too_late(
    changes: dict[str, Any], status: str, says: str
) -> None:
    found = finding("CUDA_MODULE_LOADING", environment={"CUDA_MODULE_LOADING": "LAZY"}, **changes)
    assert found.status == status
    assert says in found.evidence
    assert (found.remedy is not None) == (status == "warn")


def test_the_allocator_says_what_it_read() -> None:
    name, value = "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64"
    late = finding(name, environment={name: value}, allocator_settings="")
    assert late.status == "warn"
    assert "read with 'import torch'" in late.evidence
    assert finding(name, environment={name: value}, allocator_settings=value).status == "ok"
    assert finding(name, environment={name: value}).status == "unknown"
    assert finding(name, environment={name: value}, torch_loaded=False).status == "ok"
    removed = finding(name, environment_at_start={name: value}, allocator_settings=value)
    assert removed.status == "warn"
    assert removed.evidence.startswith("not set")


def test_a_mask_that_came_too_late() -> None:
    name, order = "CUDA_VISIBLE_DEVICES", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = finding(name, environment={name: "1", **order}, state=UP)
    assert found.status == "warn"
    assert "this process sees GPU 0, GPU 1" in found.evidence
    assert "--restart" in str(found.remedy)
    # Unequal GPUs in CUDA's own order: what "1" means is not known, when it was written may be.
    unordered = {"environment": {name: "1"}, "state": UP}
    assert finding(name, **unordered).status == "unknown"
    assert finding(name, **unordered, environment_at_start={name: "1"}).status == "ok"
    assert finding(name, **unordered, environment_then={}).status == "warn"
    assert finding(name, environment={name: "1"}).status == "ok"


def test_variables_that_cost_something() -> None:
    start = {"CUDA_LAUNCH_BLOCKING": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    result = judged(environment=start, environment_at_start=start)
    for name in start:
        found = result.about(name)
        assert found is not None
        assert found.status == "warn"


def test_a_container_that_was_given_no_gpu() -> None:
    for variable, value in (
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("NVIDIA_DRIVER_CAPABILITIES", "utility,video"),
    ):
        found = finding(
            "container", container=("/.dockerenv",), environment_at_start={variable: value}
        )
        assert found.status == "warn"
        assert f"{variable}={value}" in found.evidence
    assert judged().about("container") is None


# --- threads, files, display -------------------------------------------------------------------


def test_more_threads_than_cores() -> None:
    found = finding("CPU threads", threads=64, cores=Cores(64, 64, 3.5))
    assert found.status == "warn"
    assert "4 cores allowed (control group: 3.5, machine: 64)" in found.evidence
    assert "%gpu off --threads 4" in str(found.remedy)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("0::/not/here\n", {"cpu.max": "400000 100000\n"}, 4.0),
        (
            "3:cpu,cpuacct:/x\n2:memory:/x\n",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
)
def test_the_control_groups_limit(
    machine: Callable[..., None], own: str, files: dict[str, str], expected: float | None
) -> None:
    groups = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()}
    machine(files={"/proc/self/cgroup": own, **groups})
    assert quota() == expected
    machine(files=groups)
    assert quota() is None


def test_device_files_are_looked_at(machine: Callable[..., None]) -> None:
    machine(devices=1, files={"/dev/nvidia-caps/nvidia-cap1": "", "/dev/null": ""})
    wanted = ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"]
    assert system.device_files() == dict.fromkeys(wanted, True)
    machine(driver=False, nvml=False)
    assert system.device_files() == {}
    assert finding("device files", device_files={}).status == "unknown"
    no_uvm = finding("device files", device_files={"/dev/nvidiactl": True, "/dev/nvidia0": True})
    assert (no_uvm.status, no_uvm.remedy) == ("warn", "as root: nvidia-modprobe -u -c=0")


def test_what_the_system_says_of_itself_is_read(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    machine(driver_version="550.54.14")
    assert system.kernel_module() == "550.54.14"
    assert (system.container(), system.wsl(), system.toolkit()) == ((), False, None)
    nvcc = "#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89"
    machine(
        container=True,
        driver=False,
        nvml=False,
        files={
            "/usr/local/cuda/bin/nvcc": nvcc,
            "/proc/1/cgroup": "0::/docker/1234\n",
            "/proc/version": "Linux version 5.15.0-microsoft-standard-WSL2\n",
        },
    )
    assert system.kernel_module() is None
    assert system.container() == (
        "/.dockerenv",
        "control group of process 1: docker",
        "a pid namespace of its own",
    )
    assert system.wsl()
    found = system.toolkit()
    assert found is not None
    assert found.version == (11, 8)


def test_text_and_html_show_the_same() -> None:
    result = Diagnosis(
        "torch can use 1 GPU here.",
        1,
        (
            Finding("driver", "ok", "version 1 <script>"),
            Finding("pynvml", "warn", "not installed", "%pip install nvidia-ml-py"),
            Finding("NVML", "bad", "gone"),
            Finding("device files", "unknown", "none"),
        ),
    )
    assert as_text(result) == (
        "torch can use 1 GPU here.\n"
        "ok    driver: version 1 <script>\n"
        "warn  pynvml: not installed\n"
        "      → %pip install nvidia-ml-py\n"
        "bad   NVML: gone\n"
        "?     device files: none"
    )
    html = as_html(result)
    assert "<script>" not in html
    for color in ("success", "warn", "error"):
        assert f"--jp-{color}-color1" in html
    assert result.to_dict()["findings"][1]["remedy"] == "%pip install nvidia-ml-py"
