"""Fixtures of all tests: a virtual GPU for the run, real shells, kernels and terminals."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import device, leaks

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tests.support.kernels import Kernel
    from tests.support.planted_modules import PlantedModules
    from tests.support.shells import Ran
    from tests.support.terminal import Terminal

pytest_plugins = [
    "tests.virtual_gpu.plugin",
    "tests.support.allocator",
    "tests.support.own_process",
    "tests.support.forks",
    "tests.support.other_user",
    "tests.support.gpu_work",
    "tests.support.drawing",
]

#: What takes long, the longest first: begun in this order, so that all workers end together.
_LONG = (
    *("tests/tools/", "tests/notebooks/", "tests/frontends/", "tests/restart/", "tests/cluster/"),
    "tests/test_",
)
#: Tests of a file that share no fixture and take long: each on any worker.
_SPREAD = ("tests/tools/", "tests/notebooks/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hardware",
        nargs="?",
        const="real",
        choices=("real", "dry-run"),
        help="run the tests marked 'hardware' on this machine's GPU, with nothing virtual; "
        "with =dry-run on the virtual GPU, to try the tests themselves",
    )
    parser.addoption(
        "--vendor",
        action="store_true",
        help="run tests/vendor on NVIDIA's own libraries, unpacked by `make test-vendor`",
    )
    parser.addoption(
        "--cuts",
        default="1",
        help="how often each notebook of tests/notebooks is restarted: a number, or all, which is "
        "before every cell",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Started in the background by a shell: kernels and notebooks need Ctrl-C all the same.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    device.under_the_virtual_gpu(config)
    if not hasattr(config, "workerinput"):
        _own_temporary_files(config)


def _own_temporary_files(config: pytest.Config) -> None:
    """Have this run's temporary files in a folder that goes with it; not what pytest keeps."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="gpumagic-tests-", ignore_cleanup_errors=True)
    Path(folder.name).chmod(0o711)  # some tests are run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        places = {item: [item.nodeid.startswith(each) for each in _LONG] for item in items}
        items.sort(key=places.__getitem__, reverse=True)
    if config.getoption("hardware"):
        return
    skip = pytest.mark.skip(reason="needs a real GPU: pytest tests/hardware --hardware")
    costly = os.environ.get("VGPU_PROFILE", "free") != "free"
    for item in items:
        if item.get_closest_marker("hardware"):
            item.add_marker(skip)
        if costly and item.get_closest_marker("free"):
            item.add_marker(pytest.mark.skip(reason="its bars are for calls that take no time"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A test waits half of its time for other processes; each worker takes more than 1 GB."""
    return min(3 * len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker has all tests of a file, which share its fixtures; but for those of `_SPREAD`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(_SPREAD) else super()._split_scope(nodeid)

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Without garbage collections: what is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the tests themselves, very many objects, out of each garbage collection.

    Torch's too, which some test of each worker imports. But for that at the end of Python:
    extension modules tell what is left then.
    """
    if hasattr(session.config, "workerinput"):
        importlib.import_module("torch")
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Profiles, histories and runtime files of these tests stay out of the user's home."""
    home = tmp_path_factory.mktemp("home")
    folders = {
        name: str(home / name.lower())
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in folders.items():
            Path(folder).mkdir()
            patch.setenv(name, folder)
        (home / "matplotlibrc").touch()
        patch.setenv("MATPLOTLIBRC", str(home / "matplotlibrc"))
        patch.setenv("TERM", "xterm-256color")  # that of who runs the tests may be a dumb one
        yield


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """No test leaves global state behind: see `tests.support.leaks`."""
    leaks.forget_peaks()
    with leaks.nothing_leaks():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Nor warning filters, which pytest puts back itself after each phase of a test."""
    with leaks.filters_stay():
        return (yield)


@pytest.fixture
def ip() -> Iterator[InteractiveShell]:
    """A real IPython shell in this process, with gpumagic loaded."""
    from tests.support.shells import shell

    with shell() as fresh:
        yield fresh


@pytest.fixture
def run_cell(ip: InteractiveShell) -> Callable[..., Ran]:
    """``run_cell(source, raising=True)`` in `ip`: what was displayed and printed, the value."""
    from functools import partial

    from tests.support.shells import run_cell

    return partial(run_cell, ip)


@pytest.fixture
def child_environment() -> Callable[..., dict[str, str]]:
    """``child_environment(scenario=None, env=None)``: `tests.support.kernels.child_environment`."""
    from tests.support import kernels

    return kernels.child_environment


@pytest.fixture
def run_python(child_environment: Callable[..., dict[str, str]]) -> Callable[..., str]:
    """``run_python(code, env=None, fresh=False)``: what another process prints that runs ``code``.

    A fork of the template, unless ``fresh``: where what a process has imported is the question.
    """
    from tests.support import forks

    def run(code: str, env: Mapping[str, str | None] | None = None, *, fresh: bool = False) -> str:
        environment = child_environment(env=env)
        return forks.output([sys.executable, "-c", code], env=environment, fresh=fresh).strip()

    return run


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlantedModules:
    """The working folder, full of modules that record their use and on every search path."""
    from tests.support.planted_modules import PlantedModules

    made = PlantedModules(tmp_path)
    monkeypatch.chdir(made.folder)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH"):
        # As `export PYTHONPATH=$PYTHONPATH:/some/where` makes it where there was none.
        monkeypatch.setenv(name, os.pathsep.join(["", ".", *filter(None, [os.environ.get(name)])]))
    monkeypatch.setenv("CUDA_HOME", ".")
    return made


@pytest.fixture
def kernel(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> Iterator[Callable[..., Kernel]]:
    """``kernel(scenario=None, env=None, load=True)``: a fresh ipykernel, shut down at the end."""
    from tests.support.kernels import running_kernel

    with ExitStack() as running:

        def start(
            scenario: Any = None, env: Mapping[str, str | None] | None = None, **options: bool
        ) -> Kernel:
            environment = child_environment(scenario, env)
            return running.enter_context(running_kernel(tmp_path, environment, **options))

        yield start


@pytest.fixture
def connection_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, empty, of the files by which clients connect to the cluster of a profile."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    folder = tmp_path / "profile_default" / "security"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """IPython in a terminal of its own, with gpumagic loaded."""
    from tests.support.kernels import child_environment
    from tests.support.terminal import Terminal

    fresh = Terminal(child_environment(), tmp_path)
    try:
        assert fresh.run("%load_ext gpumagic") == ""
        yield fresh
    finally:
        fresh.close()
