"""A kernelspec with a choice of GPUs: its files, and the GPUs that its kernel sees."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from gpumagic import devices
from gpumagic.cli import main
from gpumagic.errors import SpecError
from gpumagic.kernelspec import variables


def test_a_kernel_of_it_has_no_gpu(
    child_environment: Callable[..., dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["kernel", "install", "--gpu", "off", "--name", "Python (no GPU)"]
    assert main([*words, "--prefix", str(tmp_path)]) == 0
    folder = tmp_path / "share" / "jupyter" / "kernels"
    assert capsys.readouterr().out == (
        f"Installed kernelspec python-no-gpu ('Python (no GPU)') in {folder / 'python-no-gpu'}\n"
        "Its kernels start with CUDA_VISIBLE_DEVICES=-1\n"
    )
    specs = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
    spec = specs.get_kernel_spec("python-no-gpu")
    assert spec.display_name == "Python (no GPU)"
    assert spec.env == {"CUDA_VISIBLE_DEVICES": "-1"}
    manager = KernelManager(kernel_name="python-no-gpu", kernel_spec_manager=specs)
    manager.start_kernel(env=child_environment(), cwd=str(tmp_path))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=300)
        source = (
            "%load_ext gpumagic\nimport json, os, torch\n"
            "seen = [torch.cuda.is_available(), torch.cuda.device_count()]\n"
            "reset = %gpu reset -o -q\n"
            "seen += [reset.status, len(reset.devices), os.environ['CUDA_VISIBLE_DEVICES']]"
        )
        reply = client.execute_interactive(
            source, user_expressions={"seen": "json.dumps(seen)"}, timeout=300, output_hook=str
        )
        content = reply["content"]
        assert content["status"] == "ok", content
        text = content["user_expressions"]["seen"]["data"]["text/plain"]
        assert json.loads(text.strip("'")) == [False, 0, "unchanged", 0, "-1"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_the_order_of_numbers_is_written_too() -> None:
    numbers = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert variables("2,0") == variables(f"{devices(processes=False)[2].uuid},0") == numbers


@pytest.mark.parametrize("spec", ["on", "reset"])
def test_what_every_kernel_does_needs_no_kernelspec(spec: str) -> None:
    with pytest.raises(SpecError, match="needs no kernelspec"):
        variables(spec)


@pytest.mark.parametrize("spec", ["auto", "auto 2"])
def test_auto_is_not_chosen_once_for_all_kernels(spec: str) -> None:
    with pytest.raises(SpecError, match="name GPUs here, or write %gpu auto in the notebook"):
        variables(spec)


def test_where_it_goes_and_what_it_is_called(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    words = ["kernel", "install", "--user", "--gpu", "0"]
    assert main([*words, "--name", "one", "--display-name", "One GPU"]) == 0
    written = json.loads((tmp_path / "user" / "kernels" / "one" / "kernel.json").read_text())
    assert written["display_name"] == "One GPU"
    assert written["env"] == variables("0")
    assert main(words) == 0
    assert (tmp_path / "user" / "kernels" / "python-3-gpu-0" / "kernel.json").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    words = ["kernel", "install", "--gpu", "off", "--prefix", str(tmp_path / "file")]
    assert main(words) == 1
    assert "the kernelspec cannot be written" in capsys.readouterr().err
    assert main(["kernel", "install", "--gpu", "nonsense"]) == 1
    assert "is not a choice of GPUs" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "..", "../..", "...", "-", "/", "./.", "~", "é"])
def test_a_name_that_is_no_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Installing replaces a folder, which is never that of all kernelspecs or one above it."""
    kernels = tmp_path / "share" / "jupyter" / "kernels"
    (kernels / "other").mkdir(parents=True)
    words = ["kernel", "install", "--gpu", "off", "--prefix", str(tmp_path), "--name", name]
    assert main(words) == 1
    assert "has no character that a kernelspec's name can have" in capsys.readouterr().err
    assert [each.name for each in kernels.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../other", "other-2"),
        ("/etc/x", "etc-x"),
        ("a/../../b", "a-..-..-b"),
        (".hidden", "hidden"),
        ("x" * 300, "x" * 100),
    ],
)
def test_a_name_is_one_component(tmp_path: Path, name: str, folder: str) -> None:
    kernels = tmp_path / "share" / "jupyter" / "kernels"
    words = ["kernel", "install", "--gpu", "off", "--prefix", str(tmp_path)]
    assert main([*words, "--name", name.replace("other", "other-2")]) == 0
    assert [each.name for each in kernels.iterdir()] == [folder]
