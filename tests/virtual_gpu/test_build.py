"""The building of the libraries, and scenarios as text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from . import GPU, ExternalProcess, Mig, Scenario, build, elf


def test_an_elf_file_is_read() -> None:
    """Names, needs, exports, and imports with the version they are bound to."""
    built = build.libraries()
    runtime = next(path for path in built.preload if path.name.startswith("libcudart"))
    library = elf.read(runtime)
    assert library.soname == runtime.name
    assert "libc.so.6" in library.needed
    assert "cudaMalloc" in library.exports
    assert any(i.name == "dlopen" and i.version.startswith("GLIBC_") for i in library.imports)
    with pytest.raises(ValueError, match="not a 64-bit"):
        elf.read(Path(__file__))


def test_all_that_torch_wants_is_there() -> None:
    """Every symbol that torch binds to the runtime and to cuBLAS is defined, under its version."""
    built = build.libraries()
    offered = {path.name: elf.read(path).exports for path in built.preload}
    for path in build._torch_directory().glob("lib/*.so"):
        for symbol in elf.read(path).imports:
            if symbol.library in offered:
                assert symbol.name in offered[symbol.library], f"{path.name}: {symbol.name}"


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang")
def test_the_compiler_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the machine has no compiler, the one of the wheel ziglang builds the same."""
    monkeypatch.setenv("CC", f"{sys.executable} -m ziglang cc")
    defines = ("-DVG_CUDART_MAJOR=12", "-DVG_CUDART_VERSION=12040")
    sources = ("runtime.c", "state.c")
    wanted = frozenset({"cudaNobodyKnows"})
    soname = "libcudart.so.12"
    build._compile(build._Target(soname, "", sources, defines, 801, wanted, soname), tmp_path)
    library = elf.read(tmp_path / soname)
    assert library.soname == soname
    assert {"cudaMalloc", "cudaNobodyKnows", "cudaGetDeviceProperties_v2"} <= library.exports


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the way out."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(build.BuildError, match="pip install ziglang"):
        build.compiler()


def test_a_scenario_survives_as_text() -> None:
    """What the command line reads from a file is what was written."""
    scenario = Scenario(
        devices=[GPU(unsupported=frozenset({"fan"}), mig=(Mig(),)), GPU("other", 2**30, (7, 5))],
        faults={"cuInit": 100, "nvml*": (3, 2)},
        processes=[ExternalProcess(0, 1, 2)],
        cuda_order=[1, 0],
    )
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_a_scenario_must_make_sense() -> None:
    """Mistakes are named when the scenario is made or written."""
    with pytest.raises(ValueError, match="unsupported"):
        GPU(unsupported=frozenset({"colour"}))
    with pytest.raises(ValueError, match="cuda_order"):
        Scenario(devices=2, cuda_order=[0, 0]).write(Path("never"))
