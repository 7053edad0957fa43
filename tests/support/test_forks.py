"""A forked process is what a started one is, but for what is listed here."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks
from tests.support.device import ROOT
from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.support.kernels import Kernel
from tests.virtual_gpu import Scenario, environment

#: Everything that a program can see of its own start.
LOOK = """
import json as _j, os as _o, pathlib as _p, signal as _s, sys as _y, threading as _t
def _pairs(raw):
    return sorted(e.decode() for e in raw.split(b"\\0") if e)
def _open(kind):
    found = 0
    for fd in _o.listdir("/proc/self/fd"):
        try:
            found += _o.readlink("/proc/self/fd/" + fd).startswith(kind)
        except OSError:
            pass
    return found
with _o.popen("env") as _file:  # a file that is left open warns in __main__, now and then
    _child = _file.read()
_seen = {
    "environment": dict(_o.environ),
    "start": _pairs(_p.Path("/proc/self/environ").read_bytes()),
    "libc": sorted(line for line in _child.splitlines() if "=" in line),
    "cwd": _o.getcwd(),
    "argv": _y.argv[:2],  # but for the connection file
    "orig_argv": _y.orig_argv[:3],
    "path": _y.path,
    "flags": str(_y.flags),
    "streams": [(f.encoding, f.errors) for f in (_y.__stdin__, _y.__stdout__, _y.__stderr__)],
    "SIGINT": str(_s.getsignal(_s.SIGINT)),
    "signals": [str(_s.getsignal(n)) for n in (_s.SIGTERM, _s.SIGCHLD, _s.SIGPIPE, _s.SIGHUP)],
    "mask": [int(n) for n in _s.pthread_sigmask(_s.SIG_BLOCK, [])],
    "leader": _o.getsid(0) == _o.getpgid(0) == _o.getpid(),
    "threads": sorted(type(t).__name__ for t in _t.enumerate()),
    "tasks": len(_o.listdir("/proc/self/task")),
    "sockets": _open("socket:"),
    "main": (__name__, sorted(n for n in vars(_y.modules["__main__"]) if n[:2] == "__")),
    "torch": [n for n in ("torch", "numpy", "pynvml", "rich", "gpumagic") if n in _y.modules],
    "parent": str(_o.getppid()) == _o.environ.get("JPY_PARENT_PID"),
}
"""


def _differences(kernel: Callable[..., Kernel], env: dict[str, str | None]) -> dict[str, Any]:
    seen = []
    for fresh in (False, True):
        k = kernel(Scenario(devices=3), env, load=False, fresh=fresh)
        assert isinstance(k.manager.provisioner.process, forks.ForkedProcess) != fresh
        k.run(LOOK)
        seen.append(json.loads(k.run("print(_j.dumps(_seen))").stdout))
        assert seen[-1]["parent"]
    return {n: (seen[0][n], seen[1][n]) for n in seen[0] if seen[0][n] != seen[1][n]}


def test_a_fork_and_a_fresh_kernel_agree(kernel: Callable[..., Kernel]) -> None:
    """Slow for the one fresh kernel that it needs."""
    found = _differences(kernel, {"CUDA_VISIBLE_DEVICES": "2", "A_VARIABLE": "a b=c", "TZ": "UTC"})
    # Each has a scenario and a parent; debugpy sets the last one when it is imported.
    own = (
        "VIRTUAL_GPU_",
        "GPUMAGIC_ROOT=",
        "JPY_PARENT_PID=",
        "PWD=",
        "OLDPWD=",
        "_=",
        "PYDEVD_USE_FRAME_EVAL=",
    )
    for name in ("start", "libc"):
        forked, fresh = found.pop(name, ([], []))
        both = set(forked) ^ set(fresh)
        assert not [entry for entry in both if not entry.startswith(own)], name
    forked, fresh = found.pop("environment")
    assert {k for k in forked if forked[k] != fresh.get(k)} <= {
        "VIRTUAL_GPU_STATE",
        "GPUMAGIC_ROOT",
        "JPY_PARENT_PID",
    }
    by_debugpy = {"PYDEVD_USE_FRAME_EVAL"}
    assert forked.keys() - by_debugpy == fresh.keys() - by_debugpy
    assert found == {}


def test_torch_appears_at_its_import(kernel: Callable[..., Kernel]) -> None:
    k = kernel(load=False)
    k.run("import sys\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules")
    found = "__import__('importlib.util').util.find_spec({!r})"
    for name in ("torch", "numpy"):
        place = importlib.util.find_spec(name)
        assert place is not None
        for attribute in ("origin", "submodule_search_locations"):
            assert k.value(f"{found.format(name)}.{attribute}") == getattr(place, attribute)
    assert k.value("'torch' not in sys.modules and 'numpy' not in sys.modules")
    k.run("import numpy")
    assert k.value("numpy is sys.modules['numpy'] and 'torch' not in sys.modules")
    k.run("import torch.cuda")
    assert k.value("sys.modules['torch'] is torch and torch.cuda.__spec__.name") == "torch.cuda"
    assert k.value("torch.ones(2).numpy().__class__ is numpy.ndarray")
    assert k.value("torch.zeros(3, device='cuda').device.type") == "cuda"
    assert k.value("type(sys.modules['torch'].__spec__.loader).__name__") == "SourceFileLoader"


#: Each loads other modules of gpumagic.
_CELLS = ("%load_ext gpumagic", "%gpu", "import torch", "%gpu 1 -q", "%%cudatime\n1", "%gpumem")
#: By module of gpumagic: what of it is a plain value, or made of such, of those that are loaded.
_STATE = """
import sys as _y
from gpumagic.cuda.process_state import STATE as _state
def _plain(value):
    if type(value) in (tuple, list, dict, set, frozenset):
        return all(map(_plain, [*value, *(value.values() if type(value) is dict else ())]))
    address = type(value) is int and value > 1 << 32
    return type(value) in (str, int, float, bool, type(None)) and not address
print(sorted((n, a, str(sorted(v)) if type(v) in (set, frozenset) else repr(v))
    for n, m in [*_y.modules.items()] if n.partition(".")[0] == "gpumagic"
    for a, v in vars(m).items() if a != "__builtins__" and _plain(v)))
"""


def test_modules_of_gpumagic_come_as_in_a_fresh_kernel(kernel: Callable[..., Kernel]) -> None:
    """The same ones, one by one, with the same content. Slow for the fresh kernel."""
    forked, fresh = (kernel(Scenario(devices=3), load=False, fresh=each) for each in (False, True))
    loaded = "sorted(n for n in __import__('sys').modules if n.partition('.')[0] == 'gpumagic')"
    for cell in _CELLS:
        assert forked.run(cell).status == "ok"
        fresh.run(cell)
        assert forked.value(loaded) == fresh.value(loaded), cell
    assert forked.run(_STATE).stdout == fresh.run(_STATE).stdout
    for each in (forked, fresh):
        start = (
            "dict(e.split('=', 1) for e in open('/proc/self/environ').read().split(chr(0)) if e)"
        )
        assert each.value(f"_state.started_with == {start}")
    load = "__import__('gpumagic').__spec__.loader.__class__.__name__"
    assert forked.value(load) == "SourceFileLoader"


def test_what_is_found_is_what_python_finds(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """What lies in the working folder, which in a kernel comes before the installed packages."""
    names = ("torch", "numpy", "rich", "cloudpickle")
    for name in names:
        (tmp_path / f"{name}.py").write_text("MINE = True")
    k = kernel(load=False)
    assert k.value("__import__('importlib.util').util.find_spec('torch').name") == "torch"
    for name in names:
        assert k.value(f"__import__({name!r}).MINE")


def test_a_module_may_do_without_another(kernel: Callable[..., Kernel]) -> None:
    k = kernel(load=False)
    k.run("import sys; sys.modules['resource'] = None; import gpumagic.timing.run as run")
    assert k.value("run.resource is None and len(run.cpu_times()) == 2")


def test_the_package_may_be_imported_once_more(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("%gpu -q")
    code = """
import sys
for name in [n for n in sys.modules if n.partition(".")[0] == "gpumagic"]:
    del sys.modules[name]
import gpumagic
try:
    gpumagic.select("nonsense,,")
except gpumagic.GpuMagicError as error:
    print(type(error).__name__)
"""
    assert k.run(code).stdout == "SpecError\n"


def test_siblings_have_other_names_and_random_numbers(kernel: Callable[..., Kernel]) -> None:
    seen = []
    for k in [kernel(load=False) for _ in range(2)]:
        k.run("from gpumagic.cluster import cell_run, selection as engines")
        k.run("from gpumagic.selection import claim_folder as claims")
        k.run("numbers = claims._RANDOM.random(), engines._RANDOM.random()")
        seen.append(k.value("(cell_run._CLIENT, *numbers)"))
    assert not set(seen[0]) & set(seen[1])


@pytest.fixture
def process(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """``process(code, env=None, scenario=None)``: ``python -c``; it writes ``tmp_path / "out"``."""
    started: list[Any] = []

    def start(
        code: str,
        *words: str,
        env: dict[str, str | None] | None = None,
        scenario: Scenario | None = None,
    ) -> Any:
        with (tmp_path / "out").open("w") as out:
            started.append(
                forks.popen(
                    [sys.executable, "-c", code, *words],
                    env=child_environment(scenario, env),
                    cwd=tmp_path,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_the_end_of_a_fork(process: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = process("import sys; print(sys.argv, sys.orig_argv[3:], end=''); sys.exit(7)", "a")
    assert isinstance(done, forks.ForkedProcess)
    assert done.wait(300) == 7
    assert out.read_text() == "['-c', 'a'] ['a']"
    assert done.poll() == 7  # also when it is asked again

    failed = process("import atexit; atexit.register(print, 'late', flush=True); 1 / 0")
    assert failed.wait(300) == 1
    assert "ZeroDivisionError" in out.read_text()
    assert out.read_text().endswith("late\n")

    hanging = process(f"import time; print('in', flush=True); {UNTIL_INTERRUPTED}")
    assert hanging.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        hanging.wait(0.01)
    while out.read_text() != "in\n":
        assert hanging.poll() is None
    hanging.send_signal(signal.SIGINT)
    assert hanging.wait(300) == -signal.SIGINT
    assert "KeyboardInterrupt" in out.read_text()


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"])
def test_what_only_a_start_can_change_is_started(
    process: Callable[..., Any], tmp_path: Path, variable: str
) -> None:
    done = process(f"import os; print(os.environ[{variable!r}])", env={variable: "1"})
    assert isinstance(done, subprocess.Popen)
    assert done.wait(300) == 0
    assert (tmp_path / "out").read_text() == "1\n"


def test_a_fork_is_on_its_own_scenario(kernel: Callable[..., Kernel]) -> None:
    count = "__import__('torch').cuda.device_count()"
    three, one = (kernel(Scenario(devices=n), load=False) for n in (3, 1))
    assert (three.value(count), one.value(count)) == (3, 1)
    # Random numbers are not those of its siblings.
    number = "(__import__('random').random(), __import__('numpy').random.random())"
    assert not set(three.value(number)) & set(one.value(number))
    assert three.value("__import__('os').getppid()") != os.getpid()


#: Which of the driver, NVML and torch's view of both can be had, in that order.
_LIBRARIES = """
import ctypes, json, warnings, torch
def loads(name):
    try:
        return bool(ctypes.CDLL(name))
    except OSError as error:
        return str(error)
warnings.simplefilter("ignore")
try:
    seen = torch.zeros(1, device="cuda").device.type
except RuntimeError as error:
    seen = str(error)
libraries = [loads("libcuda.so.1"), loads("libnvidia-ml.so.1")]
print(json.dumps([*libraries, seen, torch.cuda._device_count_nvml()]))
"""


@pytest.mark.parametrize("nvml", [True, False])
@pytest.mark.parametrize("driver", [True, False])
def test_a_fork_has_the_libraries_of_its_scenario(
    process: Callable[..., Any], tmp_path: Path, driver: bool, nvml: bool
) -> None:
    """One without a driver cannot load it, though the other forks of the template can."""
    scenario = Scenario(devices=2, driver=driver, nvml=nvml)
    done = process(_LIBRARIES, scenario=scenario)
    # A machine's own driver cannot be hidden in a fork.
    assert isinstance(done, forks.ForkedProcess) or "VIRTUAL_GPU_HIDE" in environment(scenario)
    assert done.wait(300) == 0
    *found, seen, count = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    missing = ": cannot open shared object file: No such file or directory"
    assert found == [
        driver or f"libcuda.so.1{missing}",
        nvml or f"libnvidia-ml.so.1{missing}",
    ]
    assert seen.partition(" on your system")[0] == ("cuda" if driver else "Found no NVIDIA driver")
    assert count == (2 if nvml else -1)


#: Serves without having imported anything: what is forked here only waits.
_SERVER = """
import socket, sys, time
from tests.support import template
owner, listening = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
if template.serve(owner, listening, {"A": "1"}) is not None:
    time.sleep(600)
"""


def test_a_template_serves_several_processes() -> None:
    """The forks of one that is killed end; the template ends with its owner."""
    kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = socket.socketpair(*kind)
    with socket.socket(*kind) as listening, theirs:
        listening.bind(f"\0test-forks-{os.getpid()}")
        listening.listen(2)
        passed = [theirs.fileno(), listening.fileno()]
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, *map(str, passed)], cwd=ROOT, pass_fds=passed
        )
        workers = [socket.socket(*kind) for _ in range(2)]
        for worker in workers:
            worker.connect(listening.getsockname())
    templates = [forks.Template(channel, None) for channel in (ours, *workers)]
    assert {each.pid for each in templates} == {server.pid}
    own, first, second = (each.fork(["sleeping"], {}, "/", []) for each in templates)
    assert [each.poll() for each in (own, first, second)] == [None] * 3
    workers[0].close()  # as if it had been killed
    while Path(f"/proc/{first.pid}").exists():
        assert server.poll() is None
    templates[2].close()
    assert own.poll() is None
    assert Path(f"/proc/{second.pid}").exists(), "whoever has left it is to be found"
    for each in (own, second):
        os.kill(each.pid, signal.SIGKILL)
    assert own.wait(300) == -signal.SIGKILL
    templates[0].close()
    assert server.wait(300) == 0
