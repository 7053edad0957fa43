"""The files of kept variables: tried in a child, read one by one, left behind."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from gpumagic.errors import RestartError
from gpumagic.restart import variables as keep
from tests.keep.runner import new_namespace


def kept(cell: str, **options: Any) -> tuple[keep.Plan, list[IO[bytes]]]:
    """The variables of a cell in files, with what was planned."""
    namespace = new_namespace()
    exec(cell, namespace)
    variables = {name: value for name, value in namespace.items() if not name.startswith("__")}
    chosen = keep.plan(namespace, variables, variables, **options)
    return chosen, keep.write(chosen, create)


def create(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def restored(files: list[IO[bytes]]) -> tuple[dict[str, Any], keep.Restored]:
    """What comes back of it, in a new namespace."""
    namespace = new_namespace()
    outcome = keep.restore(
        namespace, files, existing={}, location="cpu", device_now=lambda _: "cpu"
    )
    return namespace, outcome


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module of the user's; what is restored has its place on the path too."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    file = tmp_path / "users_module_of_keep.py"
    file.write_text("class M:\n    a = 1\n")
    importlib.invalidate_caches()
    yield file
    sys.modules.pop("users_module_of_keep", None)


CELL = """
from users_module_of_keep import M
m = M(); shared = [1]; also = shared; both = [m, shared]
"""


def test_one_that_does_not_load_takes_no_other_with_it(module: Path, tmp_path: Path) -> None:
    _, files = kept(CELL)
    sys.modules.pop("users_module_of_keep")
    source = module.read_text()
    module.write_text("raise ImportError('broken since')")
    importlib.invalidate_caches()
    namespace, outcome = restored(files)
    assert outcome.names == ["shared", "also"]
    assert outcome.failures == {"m": "broken since", "both": "broken since"}
    assert outcome.not_imported == {"M": "broken since"}
    assert outcome.separate_because == "broken since"
    assert namespace["shared"] == namespace["also"] == [1]
    folder = keep.preserve(files)
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in Path(folder).iterdir())
    with pytest.raises(ImportError, match="broken since"):
        keep.load(folder, "m")
    with pytest.raises(KeyError, match="nothing"):
        keep.load(folder, "nothing")
    assert keep.load(folder).keys() == {"shared", "also"}
    module.write_text(source)
    os.utime(module, (1, 1))  # another time than the cached bytecode's
    importlib.invalidate_caches()
    assert keep.load(folder, "m")["m"].a == 1
    keep.close(files)
    shutil.rmtree(folder)


DATA = """
import threading
REGISTRY = {}
settings = {"lr": 1}
HANDLE = open("/dev/null")
NUMBER = 5
class Net: pass
def register(name): REGISTRY[name] = len(REGISTRY)
"""
USES = """
from users_module_of_keep import REGISTRY, settings as cfg, HANDLE, NUMBER, register, Net
register("one"); cfg["lr"] = 2
class Trainer:
    def __init__(self): self.cfg = cfg
trainer = Trainer()
"""


def test_what_belongs_to_a_module_too_is_still_the_same(module: Path) -> None:
    """`from mymod import REGISTRY`: what is kept is the module's afterwards too."""
    module.write_text(DATA)
    chosen, files = kept(USES, sources=[USES])
    sys.modules.pop("users_module_of_keep").HANDLE.close()
    namespace, outcome = restored(files)
    assert (chosen.failures, outcome.failures, outcome.separate_because) == ({}, {}, None)
    fresh = sys.modules["users_module_of_keep"]
    assert namespace["REGISTRY"] is fresh.REGISTRY
    assert namespace["cfg"] is namespace["trainer"].cfg is fresh.settings == {"lr": 2}
    namespace["register"]("two")
    assert namespace["REGISTRY"] == {"one": 0, "two": 1}
    # What cannot be kept is the module's.
    assert namespace["HANDLE"] is fresh.HANDLE
    assert outcome.imported == ["register", "Net", "HANDLE"]
    assert outcome.names == ["REGISTRY", "cfg", "NUMBER", "Trainer", "trainer"]
    fresh.HANDLE.close()
    keep.close(files)


def test_what_is_not_asked_for_is_imported_again(module: Path) -> None:
    module.write_text(DATA)
    namespace = new_namespace()
    exec(USES, namespace)
    variables = {name: value for name, value in namespace.items() if not name.startswith("__")}
    chosen = keep.plan(namespace, [], variables, sources=[USES])
    files = keep.write(chosen, create)
    sys.modules.pop("users_module_of_keep").HANDLE.close()
    namespace, outcome = restored(files)
    assert (namespace["REGISTRY"], namespace["cfg"], outcome.names) == ({}, {"lr": 1}, [])
    namespace["HANDLE"].close()
    keep.close(files)


def test_an_import_that_fails_is_said(module: Path) -> None:
    _, files = kept("import users_module_of_keep as u\nx = 1")
    sys.modules.pop("users_module_of_keep")
    module.unlink()
    importlib.invalidate_caches()
    namespace, outcome = restored(files)
    assert outcome.not_imported == {"u": "No module named 'users_module_of_keep'"}
    assert (namespace["x"], outcome.names, outcome.separate_because) == (1, ["x"], None)
    keep.close(files)


def tried(files: list[IO[bytes]], environment: dict[str, str] | None = None) -> dict[str, str]:
    trial = keep.Trial(files[0], os.environ if environment is None else environment)
    try:
        return trial.failures(lambda: None)
    finally:
        trial.close()
        keep.close(files)


def test_a_trial_names_what_does_not_load(module: Path) -> None:
    """Also what ends the process that loads it; and it does not find more than the notebook."""
    chosen, files = kept(
        CELL
        + """
import os
class Fails:
    def __reduce__(self): return (fail, ())
def fail(): raise RuntimeError('only there')
class Ends:
    def __setstate__(self, state): os._exit(3)
f = Fails(); good = 5; ends = Ends(); ends.a = 1
"""
    )
    assert "good" in chosen.trusted
    assert not {"m", "f"} & chosen.trusted
    module.unlink()
    failures = tried(files)
    assert failures.keys() == {"m", "both", "f", "ends"}
    assert failures["ends"] == "a fresh process that loads it ends with exit code 3"
    assert failures["f"] == "only there"


def test_a_trial_goes_on_behind_a_failure(module: Path) -> None:
    _, files = kept(
        CELL + "class Fails:\n    def __reduce__(self): return (int, ('x',))\nf = Fails(); x = 1"
    )
    module.unlink()
    failures = tried(files)
    assert failures.keys() == {"m", "both", "f"}
    assert failures["m"] == "No module named 'users_module_of_keep'"
    assert "invalid literal" in failures["f"]


def test_a_trial_in_a_process_that_cannot_load_gpumagic(monkeypatch: pytest.MonkeyPatch) -> None:
    _, files = kept("x = 1")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "python3" in entry
                                      and "site-packages" not in entry])  # fmt: skip
    failures = tried(files)
    assert failures == {
        "": "a fresh process cannot load gpumagic: ModuleNotFoundError: No module named 'gpumagic'"
    }


def test_what_is_shared_is_counted_once() -> None:
    numpy = pytest.importorskip("numpy")
    namespace: dict[str, Any] = {"a": numpy.zeros(1 << 20)}
    namespace |= {"b": namespace["a"][::2], "c": {"d": namespace["a"]}, "e": b"x" * (1 << 20)}
    namespace |= {"f": namespace["e"], "column": numpy.zeros((1 << 10, 1 << 10))[:, 0]}
    chosen = keep.plan(namespace, namespace, namespace)
    assert (8 << 20) + (1 << 20) <= chosen.size() < (8 << 20) + (1 << 20) + (1 << 16)


def test_the_plan_tells_how_much_it_has_pickled() -> None:
    told: list[int] = []
    chosen = keep.plan({"a": list(range(100_000))}, ["a"], {}, progress=told.append)
    assert len(told) > 2
    assert told[-1] == len(chosen.pickles["a"])


class Fails:
    """A file that fails at a write."""

    def __init__(self, file: IO[bytes], at: int, error: BaseException) -> None:
        self._file, self._left, self._error = file, at, error

    def write(self, data: Any) -> int:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_an_interrupt_while_tensors_are_written_is_one() -> None:
    """torch ends its archive all the same, and reports what it failed at then."""
    torch = pytest.importorskip("torch")
    namespace = new_namespace() | {"small": torch.ones(3), "large": torch.zeros(1 << 20)}
    chosen = keep.plan(namespace, ["small", "large"], namespace)
    for error, raised in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), RestartError),
    ):
        for at in range(12):
            made: list[Any] = []
            fails = partial(_second_fails, made, at, error)
            with pytest.raises(raised):
                keep.write(chosen, fails)
            assert all(file.closed for file in made)


def _second_fails(made: list[Any], at: int, error: BaseException, folder: str) -> Any:
    made.append(create(folder))
    return made[-1] if len(made) == 1 else Fails(made[-1], at, error)


def test_a_trial_of_quantized_models() -> None:
    """Their weights are packed as they are loaded, which needs the right shapes."""
    pytest.importorskip("torch")
    cell = """
import torch
def packed(weight):
    return torch.ops.quantized.linear_prepack(weight, None)
q = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
scales = torch.tensor([0.1, 0.2]), torch.tensor([0, 0])
c = torch.quantize_per_channel(torch.ones(2, 3), *scales, 0, torch.qint8)
class Quantized:
    def __init__(self, weight): self.packed = packed(weight)
    def __getstate__(self): return torch.ops.quantized.linear_unpack(self.packed)[0]
    def __setstate__(self, weight): self.packed = packed(weight)
by_tensor, by_channel = Quantized(q), Quantized(c)
"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, files = kept(cell)
    assert tried(files) == {}
