"""The world of a running scenario: read it, and change it under the feet of the processes in it."""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .build import cache_root, libraries
from .layout import CONSTANTS, State
from .profiles import profile
from .remap import remap
from .scenario import (
    ExternalProcess,
    Scenario,
    fill_external,
    fill_profile,
    fill_rule,
    set_fields,
)

STATE = "VIRTUAL_GPU_STATE"
_OWNER = "VIRTUAL_GPU_OWNER"
_HIDE = "VIRTUAL_GPU_HIDE"
#: Where gpumagic looks for the machine's /dev, /proc and so on (gpumagic/system/system_files.py).
ROOT = "GPUMAGIC_ROOT"
_known: dict[str, World] = {}


class World:
    """A scenario's shared file, open. `World.current()` is the one that this process runs in."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._state = State.from_buffer(self._map)
        self._begin = bytes(self._map[: State.processes.offset])
        self._costs_changed = False
        _known[str(self.path)] = self

    @classmethod
    def current(cls, environ: Mapping[str, str] | None = None) -> World:
        """The world of this process, or of those that have this environment.

        Raises:
            LookupError: it is not that of the virtual GPU.
        """
        path = (os.environ if environ is None else environ).get(STATE)
        if not path:
            raise LookupError("this process does not run on a virtual GPU")
        return _known.get(path) or cls(path)

    def fault(self, call: str, code: int, times: int | None = None) -> None:
        """Makes the next `times` (None: all) of `call` ("nvml*": all of a prefix) return `code`."""
        self._add_rule(call, code, times=times)

    def end_context(self, code: int, pid: int | None = None) -> None:
        """From now on all that a process asks of its CUDA context fails with `code`.

        Until it ends, or another program replaces it. `pid`: this process by default.
        """
        pid = os.getpid() if pid is None else pid
        (entry,) = (each for each in self._state.processes if each.pid == pid)
        entry.dead = code
        self._state.any_dead = 1

    def slow(self, call: str, seconds: float) -> None:
        """Adds `seconds` to every call of `call`."""
        self._add_rule(call, None, seconds=seconds)

    def clear_faults(self) -> None:
        """Ends every fault and slowness; dead contexts live again."""
        self._state.n_rules = self._state.any_dead = 0
        for process in self._state.processes:
            process.dead = 0
        for rule in self._state.rules:
            rule.active = 0

    def set_launch_cost(self, seconds: float) -> None:
        """Every launch keeps the host at work for `seconds` at least."""
        self._state.launch_cost_ns = round(seconds * 1e9)

    def set_profile(self, name: str) -> None:
        """What calls and first uses take from now on: one of `profiles.PROFILES`."""
        fill_profile(self._state, profile(name))
        self._costs_changed = True
        self._put_costs()

    def hold_clocks(self) -> None:
        """Clocks are at their full, and stay there: work takes what it says."""
        self._state.profile.clock_ramp = 0

    def _put_costs(self) -> None:
        costs = {cost.name: cost.ns for cost in self._state.costs}
        for call in self._state.calls:
            call.cost_ns = costs.get(call.name, 0)

    def lose(self, index: int) -> None:
        """GPU `index` falls off the bus: NVML answers 15, CUDA 999."""
        self._gpu(index).lost = 1

    def set_gpu(self, index: int, **fields: Any) -> None:
        """Changes fields of `GPU`: `set_gpu(0, utilization=93, unsupported={"power"})`."""
        set_fields(self._gpu(index), **fields)

    def add_process(
        self, device_index: int, pid: int, memory_bytes: int, name: str = "python"
    ) -> None:
        """Somebody else starts a process on a GPU."""
        process = ExternalProcess(device_index, pid, memory_bytes, name)
        for slot in self._state.external:
            if not slot.active:
                fill_external(slot, process)
                return
        raise ValueError(f"at most {CONSTANTS['MAX_EXTERNAL']} external processes")

    def calls(self, name: str) -> int:
        """How often `name` ("nvml*": all of a prefix) was called since the last reset."""
        prefix = name[:-1] if name.endswith("*") else None
        return sum(
            count
            for call, count in self.all_calls().items()
            if call == name or (prefix is not None and call.startswith(prefix))
        )

    def all_calls(self) -> Counter[str]:
        """Every call made since the last reset."""
        return Counter({call.name.decode(): call.count for call in self._state.calls if call.count})

    def unimplemented_calls(self) -> Counter[str]:
        """Calls, since the scenario began, that only a generated stub answered."""
        return Counter(
            {call.name.decode(): call.total for call in self._state.calls if call.unimplemented}
        )

    def used(self, index: int, pid: int | None = None) -> int:
        """Bytes that our processes (or one of them) use on GPU `index`, contexts included."""
        return sum(
            sum(process.used[index])
            for process in self._state.processes
            if process.pid and (pid is None or process.pid == pid)
        )

    def reset(self) -> None:
        """All is again what the scenario said; the call counters are 0."""
        lock = State.lock.offset
        self._map[:lock] = self._begin[:lock]
        after = lock + State.lock.size
        self._map[after : len(self._begin)] = self._begin[after:]
        for call in self._state.calls:
            if call.count:
                call.count = 0
        if self._costs_changed:
            self._costs_changed = False
            self._put_costs()

    def _gpu(self, index: int) -> Any:
        if not 0 <= index < self._state.n_gpus:
            raise IndexError(f"GPU {index} of {self._state.n_gpus}")
        return self._state.gpus[index]

    def _add_rule(self, call: str, code: int | None, **how: Any) -> None:
        for rule in self._state.rules:
            if not rule.active:
                fill_rule(rule, call, code, **how)
                self._state.n_rules += 1
                return
        raise ValueError(f"at most {CONSTANTS['MAX_RULES']} faults")


def environment(scenario: Scenario, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that is to run in `scenario`.

    The shared file is removed when this process ends. One that puts itself there, by exec, calls
    `adopt` after.
    """
    built = libraries()
    result = dict(os.environ if base is None else base)
    folder = tempfile.mkdtemp(prefix=f"virtual-gpu-{os.getpid()}-")
    _remove_at_exit(folder)
    path = str(Path(folder) / "state")
    scenario.write(Path(path))
    World(path)
    result[ROOT] = str(Path(folder) / "root")
    scenario.write_files(Path(folder) / "root")
    nvml = f"nvml-{scenario.nvml}" if isinstance(scenario.nvml, str) else "nvml"
    found = [built / "driver"] * scenario.driver + [built / nvml] * bool(scenario.nvml)
    _put_first(result, "LD_LIBRARY_PATH", found)
    missing = ["libcuda.so.1"] * (not scenario.driver)
    missing += ["libnvidia-ml.so.1"] * (not scenario.nvml)
    hidden = [soname for soname in missing if _machine_has(soname, result)]
    _put_first(result, "LD_AUDIT", [built / "audit" / "libhide.so"] if hidden else [])
    result.pop(_HIDE, None)
    if hidden:
        result[_HIDE] = ":".join(hidden)
    _put_first(result, "LD_PRELOAD", sorted((built / "preload").iterdir()))
    result[STATE] = path
    result[_OWNER] = str(os.getpid())
    return result


def adopt() -> bool:
    """Whether this process runs on a virtual GPU.

    One that put itself there, by exec, removes the shared file at its end.
    """
    path = os.environ.get(STATE)
    if not path:
        return False
    if os.environ.get(_OWNER) == str(os.getpid()):
        _remove_at_exit(str(Path(path).parent))
        del os.environ[_OWNER]
    World.current()
    return True


def separate() -> None:
    """Puts this process on a copy of the scenario that it inherited, before anything runs in it."""
    old = Path(os.environ[STATE])
    folder = tempfile.mkdtemp(prefix=f"virtual-gpu-{os.getpid()}-")
    _remove_at_exit(folder)
    new = Path(folder) / "state"
    shutil.copyfile(old, new)
    remap(old, new)
    os.environ[STATE] = str(new)
    root = Path(folder) / "root"
    shutil.copytree(os.environ[ROOT], root, symlinks=True)
    os.environ[ROOT] = str(root)
    World.current()


def unimplemented_calls() -> Counter[str]:
    """Calls that only a stub answered, over all scenarios that this process began or runs in."""
    total: Counter[str] = Counter()
    for world in _known.values():
        total += world.unimplemented_calls()
    return total


def _machine_has(soname: str, env: Mapping[str, str]) -> bool:
    folders = [*env.get("LD_LIBRARY_PATH", "").split(":"), "/usr/lib", "/usr/lib64", "/lib"]
    if any((Path(folder) / soname).exists() for folder in folders if folder):
        return True
    cache = Path("/etc/ld.so.cache")
    return cache.exists() and b"\0%b\0" % soname.encode() in cache.read_bytes()


def _put_first(env: dict[str, str], variable: str, paths: list[Path]) -> None:
    ours = str(cache_root())
    others = [
        path for path in env.get(variable, "").split(":") if path and not path.startswith(ours)
    ]
    env[variable] = ":".join([*map(str, paths), *others])
    if not env[variable]:
        del env[variable]


def _remove_at_exit(folder: str) -> None:
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
