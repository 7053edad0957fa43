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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from . import elf

SOURCES = Path(__file__).parent / "src"
_ENGINE = ("engine.c", "memory.c", "visibility.c", "driver.c", "pace.c", "state.c")
# Looked up by name at run time (cudaGetDriverEntryPoint), so in no table of undefined symbols.
_LOOKED_UP = re.compile(rb"\0(cu[A-Z][A-Za-z0-9_]+)(?=\0)")
_NVML_NAMES = re.compile(r'_nvmlGetFunctionPointer\("(nvml\w+)"')


#: The variants of NVML's library, by their folders: the bytes of a process in the third version of
#: the list (0: no such version), and the functions that are not there, after ``nvmlX``.
NVML = {
    "nvml": (24, "$"),
    "nvml-535.54": (32, r"\w*RunningProcessDetailList"),
    "nvml-535.98": (0, r"\w*RunningProcess(DetailList|es_v3)"),
}


class BuildError(RuntimeError):
    """The libraries cannot be built here: no torch, no CUDA build of it, or no C compiler."""


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


def libraries() -> Path:
    """The libraries for the installed torch, built where they are not there yet: their directory.

    Below it `preload/` has those that are preloaded, `driver/` and `nvml/` those that a process
    looks for, `audit/` the one that hides NVIDIA's own.
    """
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
    return directory


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


@cache
def wanted() -> frozenset[str]:
    """What torch, and what comes with it, leaves to NVIDIA's libraries to define, or looks up."""
    torch = _torch_directory()
    files = [*torch.glob("lib/*.so*"), *torch.parent.glob("nvidia/**/libcusolver*.so*")]
    undefined = (elf.undefined(path) for path in files if not path.is_symlink())
    looked_up = _LOOKED_UP.findall((torch / "lib" / "libc10_cuda.so").read_bytes())
    names = {name.decode() for name in looked_up}.union(*undefined)
    spec = importlib.util.find_spec("pynvml")
    if spec is not None and spec.origin:
        names.update(_NVML_NAMES.findall(Path(spec.origin).read_text()))
    return frozenset(names)


def _build(directory: Path) -> None:
    text = (_torch_directory() / "version.py").read_text()
    cuda = re.search(r"cuda[^=\n]*= *['\"](\d+)\.(\d+)", text)
    if cuda is None:
        raise BuildError(f"torch {importlib.metadata.version('torch')} is no CUDA build")
    major, minor = map(int, cuda.groups())
    defines = (f"-DVG_CUDART_MAJOR={major}", f"-DVG_CUDART_VERSION={major * 1000 + minor * 10}")
    preload, state = directory / "preload", "state.c"
    for folder, (size, missing) in NVML.items():
        names = sorted(name for name in wanted() if re.match(f"nvml[A-Z](?!{missing})", name))
        library = directory / folder / "libnvidia-ml.so.1"
        sources = ("nvml.c", "pace.c", state)
        compile_library(library, sources, (*defines, f"-DVG_PROCESS_BYTES={size}"), names, 3)
    for library, sources, pattern, error in (
        (directory / "driver" / "libcuda.so.1", _ENGINE, "cu(?!File)[A-Z]", 801),
        (preload / f"libcudart.so.{major}", ("runtime.c", state), "(__)?cuda[A-Z]", 801),
        (preload / f"libcublas.so.{major}", ("cublas.c", state), "cublas(?!Lt)", 15),
        (preload / f"libcublasLt.so.{major}", ("cublaslt.c", state), "cublasLt", 15),
        (preload / f"libcupti.so.{major}", ("cupti.c", state), "cupti", 35),
        (preload / "libclock.so", ("clock.c",), None, 0),
        (directory / "audit" / "libhide.so", ("hide.c",), None, 0),
    ):
        names = [] if pattern is None else sorted(filter(re.compile(pattern).match, wanted()))
        compile_library(library, sources, defines, names, error)


def compile_library(
    library: Path, sources: Sequence[str], defines: Sequence[str], wanted: list[str], error: int
) -> None:
    """Compiles `sources`; those of `wanted` that they do not define answer `error`.

    torch asks for a name that it is linked with by the version that its library has for it: that is
    the library's own name.
    """
    library.parent.mkdir(exist_ok=True)
    command = [*compiler(), "-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden"]
    if "ziglang" in command:
        command += ["-fno-sanitize=all"]
    command += ["-Wall", "-Wextra", f"-Wl,-soname,{library.name}", f"-I{SOURCES}", *defines]
    command += [str(SOURCES / name) for name in sources]
    if wanted:
        stubs = library.parents[1] / f"{library.name}.stubs.c"
        stubs.write_text(_stubs(wanted, error))
        command.append(str(stubs))
    if wanted and library.parent.name == "preload":
        script = library.parents[1] / f"{library.name}.map"
        script.write_text(f"{library.name} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    done = subprocess.run(
        [*command, "-o", str(library), "-ldl", "-lpthread"], capture_output=True, text=True
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


def _stubs(names: list[str], error: int) -> str:
    """A definition of each function, which gives way to one in another file."""
    lines = [
        '#include "state.h"',
        "#define STUB(name) VG_EXPORT __attribute__((weak)) int name(void) "
        f"{{ static struct vg_call *slot; return vg_unimplemented(&slot, #name, {error}); }}",
    ]
    return "\n".join([*lines, *(f"STUB({name})" for name in names)]) + "\n"
