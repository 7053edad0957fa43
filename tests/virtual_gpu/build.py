"""Compiles the libraries for the installed torch, once, into the user's cache directory."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import elf

SOURCES = Path(__file__).parent / "src"
_ENGINE = ("engine.c", "memory.c", "visibility.c", "driver.c", "state.c")
# Looked up by name at run time (cudaGetDriverEntryPoint), so in no table of undefined symbols.
_LOOKED_UP = re.compile(rb"\0(cu[A-Z][A-Za-z0-9_]+)(?=\0)")
_NVML_NAMES = re.compile(r'_nvmlGetFunctionPointer\("(nvml\w+)"')


class BuildError(RuntimeError):
    """The libraries cannot be built here: no torch, no CUDA build of it, or no C compiler."""


@dataclass(frozen=True)
class Libraries:
    """Where the libraries are: the preloaded ones, and the two that a process looks for."""

    directory: Path
    preload: tuple[Path, ...]

    @property
    def driver(self) -> Path:
        """Directory of libcuda.so.1."""
        return self.directory / "driver"

    @property
    def nvml(self) -> Path:
        """Directory of libnvidia-ml.so.1."""
        return self.directory / "nvml"

    @property
    def hide(self) -> Path:
        """The library for LD_AUDIT that hides NVIDIA's own."""
        return self.directory / "audit" / "libhide.so"


@dataclass(frozen=True)
class _Target:
    soname: str
    folder: str
    sources: tuple[str, ...]
    defines: tuple[str, ...]
    stub_error: int
    wanted: frozenset[str] = frozenset()
    version: str = ""


def cache_root() -> Path:
    """The directory that holds every build: the first of several that can be written to.

    The one for temporary files comes last: that of a run of the tests is removed with the run.
    LD_PRELOAD separates its entries by blanks and colons, so no path with one will do.
    """
    own = f"virtual-gpu-of-{os.getuid()}"
    candidates = [
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "virtual-gpu",
        *(Path(folder) / own for folder in ("/tmp", "/var/tmp", tempfile.gettempdir())),
    ]
    for root in candidates:
        if re.search(r"[\s:]", str(root)):
            continue
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(root, os.W_OK) and root.stat().st_uid == os.getuid():
            return root
    raise BuildError(f"none of these can be written to: {', '.join(map(str, candidates))}")


def libraries() -> Libraries:
    """The libraries for the installed torch, built where they are not there yet."""
    directory = cache_root() / _key()
    if not directory.is_dir():
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache_root()))
        try:
            work.chmod(0o755)
            _build(work)
            work.rename(directory)
        except OSError:
            if not directory.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Libraries(directory, tuple(sorted((directory / "preload").glob("*.so*"))))


def _torch_directory() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch is not installed")
    return Path(spec.submodule_search_locations[0])


def _key() -> str:
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.iterdir(), Path(__file__), Path(elf.__file__)]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    torch = _torch_directory()
    parts = [str(torch), importlib.metadata.version("torch"), platform.machine(), *compiler()]
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:20]


def compiler() -> list[str]:
    """The command of a C compiler: $CC, cc, gcc or clang, else the one in the wheel ziglang."""
    chosen = os.environ.get("CC")
    if chosen:
        return chosen.split()
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise BuildError("no C compiler: install gcc or clang, or `pip install ziglang`")


def _build(directory: Path) -> None:
    torch = _torch_directory()
    nvidia = torch.parent / "nvidia"
    files = [*torch.glob("lib/*.so*"), *nvidia.glob("**/libcusolver*.so*")]
    wanted = [elf.read(path) for path in files if not path.is_symlink()]
    runtime = _needed(wanted, "libcudart.so.")
    if not runtime:
        raise BuildError(f"torch {importlib.metadata.version('torch')} is no CUDA build")
    major = int(runtime.removeprefix("libcudart.so.").split(".")[0])
    versions = (
        f"-DVG_CUDART_MAJOR={major}",
        f"-DVG_CUDART_VERSION={_runtime_version(torch, major)}",
    )
    looked_up = _LOOKED_UP.findall((torch / "lib" / "libc10_cuda.so").read_bytes())
    driver_names = {name.decode() for name in looked_up} | {
        symbol.name
        for library in wanted
        if "libcuda.so.1" in library.needed
        for symbol in library.imports
        if re.match(r"cu[A-Z]", symbol.name) and not symbol.name.startswith("cuFile")
    }
    targets = [
        _Target("libcuda.so.1", "driver", _ENGINE, versions, 801, frozenset(driver_names)),
        _Target("libnvidia-ml.so.1", "nvml", ("nvml.c", "state.c"), (), 3, _nvml_names()),
        _imported(wanted, runtime, ("runtime.c", "state.c"), versions, 801),
    ]
    for prefix, define in (("libcublas.so.", "-DVG_CUBLAS"), ("libcublasLt.so.", "-DVG_CUBLASLT")):
        soname = _needed(wanted, prefix)
        if soname:
            sources = ("cublas.c", "state.c")
            targets.append(_imported(wanted, soname, sources, (define, *versions), 15))
    profiler = _needed(wanted, "libcupti.so.")
    if profiler:
        targets.append(_imported(wanted, profiler, ("cupti.c", "state.c"), (), 35))
    targets.append(_Target("libclock.so", "preload", ("clock.c",), (), 0))
    targets.append(_Target("libhide.so", "audit", ("hide.c",), (), 0))
    for target in targets:
        _compile(target, directory)


def _runtime_version(torch: Path, major: int) -> int:
    match = re.search(r"cuda[^=\n]*= *['\"](\d+)\.(\d+)", (torch / "version.py").read_text())
    return int(match[1]) * 1000 + int(match[2]) * 10 if match else major * 1000


def _needed(wanted: Iterable[elf.Library], prefix: str) -> str:
    names = {name for library in wanted for name in library.needed if name.startswith(prefix)}
    return min(names, default="")


def _imported(
    wanted: Iterable[elf.Library],
    soname: str,
    sources: tuple[str, ...],
    defines: tuple[str, ...],
    stub_error: int,
) -> _Target:
    symbols = [s for library in wanted for s in library.imports if s.library == soname]
    version = min({symbol.version for symbol in symbols}, default=soname)
    names = frozenset(symbol.name for symbol in symbols)
    return _Target(soname, "preload", sources, defines, stub_error, names, version)


def _nvml_names() -> frozenset[str]:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or not spec.origin:
        return frozenset()
    return frozenset(_NVML_NAMES.findall(Path(spec.origin).read_text()))


def _compile(target: _Target, directory: Path) -> None:
    folder = directory / target.folder
    folder.mkdir(exist_ok=True)
    library = folder / target.soname
    command = [*compiler(), "-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden"]
    if "ziglang" in command:
        command += ["-fno-sanitize=all"]
    command += ["-Wall", "-Wextra", f"-Wl,-soname,{target.soname}", f"-I{SOURCES}", *target.defines]
    if target.version:
        script = directory / f"{target.soname}.map"
        script.write_text(f"{target.version} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    sources = [str(SOURCES / name) for name in target.sources]
    _run([*command, *sources, "-o", str(library), "-ldl", "-lpthread"])
    missing = sorted(target.wanted - elf.read(library).exports)
    if missing:
        stubs = directory / f"{target.soname}.stubs.c"
        stubs.write_text(_stubs(missing, target.stub_error))
        _run([*command, *sources, str(stubs), "-o", str(library), "-ldl", "-lpthread"])


def _stubs(names: Iterable[str], error: int) -> str:
    lines = [
        '#include "state.h"',
        f"#define STUB(name) VG_EXPORT int name(void); int name(void) "
        f"{{ static struct vg_call *slot; return vg_unimplemented(&slot, #name, {error}); }}",
    ]
    return "\n".join([*lines, *(f"STUB({name})" for name in names)]) + "\n"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
