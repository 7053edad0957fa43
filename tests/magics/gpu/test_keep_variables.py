"""Variables that come back after a restart.

A restart takes a second of CPU time, and three where torch is imported again, by a child first: so
a class has one kernel, whose answers are noted before and after each restart.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.restart import FREEZE, report
from tests.support.kernels import Kernel, shared
from tests.support.parking import needs_parking
from tests.virtual_gpu import World

#: ``GPUMAGIC_TEST_KEEP_MIB=2048`` for the full size.
MIB = int(os.environ.get("GPUMAGIC_TEST_KEEP_MIB", "128"))

MODEL = """
import math, numpy as np, torch, torch as t
from dataclasses import dataclass
model = torch.nn.Linear(3, 2).cuda(1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 3, device='cuda:1')).sum().backward(); optimizer.step()
x = torch.arange(6.0).cuda(0); view = x[2:4]; row = torch.ones(2, device='cuda:1')
array = np.arange(10)
factor = 3
def helper(a): return a * factor
def f(a):
    def inner(n): return 0 if n == 0 else inner(n - 1) + 1
    return helper(a) + inner(2)
@dataclass
class Point:
    a: int
    def scaled(self): return helper(self.a)
point = Point(5)
one = [1]; same = one
place = torch.device('cuda'); settings = {'on': torch.device('cuda', 1), 'also': torch.device(0)}
__version__, __all__ = '1.2', ['f']
before = optimizer.state[model.weight]['exp_avg'].tolist()
"""


@pytest.fixture(scope="class")
def class_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that all tests of a class ask."""
    with shared(tmp_path_factory.mktemp("kernel")) as kernel:
        yield kernel


#: What a session has told torch, NumPy, pandas, matplotlib, Python and IPython.
TOLD = """
import torch, numpy as np, pandas as pd, matplotlib, warnings, logging
torch.set_default_dtype(torch.float64); torch.set_default_device('cuda:1')
torch.use_deterministic_algorithms(True, warn_only=True); torch.set_float32_matmul_precision('high')
torch.backends.cudnn.benchmark = True; torch.set_printoptions(precision=2); torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True); torch.set_grad_enabled(False)
np.set_printoptions(precision=3); np.seterr(divide='ignore')
pd.set_option('display.max_rows', 7); matplotlib.rcParams['figure.figsize'] = (2, 3)
warnings.filterwarnings('ignore', message='mine'); warnings.simplefilter('error', FutureWarning)
logging.basicConfig(level=logging.DEBUG); logging.getLogger('mine').setLevel(logging.ERROR)
get_ipython().ast_node_interactivity = 'all'; get_ipython().Completer.use_jedi = False
torch.backends.cuda.enable_flash_sdp(False); torch.hub.set_dir('hub')
torch.backends.mkldnn.enabled = False; torch.multiprocessing.set_sharing_strategy('file_system')
import socket, decimal, sys, gc
socket.setdefaulttimeout(40); decimal.getcontext().prec = 7; sys.setrecursionlimit(2345)
gc.disable(); gc.set_threshold(600, 7, 8); sys.setswitchinterval(0.004)
sys.set_int_max_str_digits(5000)
logging.addLevelName(15, 'TRACE'); logging.disable(5)
quiet = logging.getLogger('mine.quiet'); quiet.propagate, quiet.disabled = False, True
logging.getLogger('mine').addHandler(logging.FileHandler('mine.log')); del quiet
digits = 1
def shorter(number): return f'<{number:.{digits}f}>'
pd.options.display.float_format = shorter; np.set_printoptions(formatter={'float': shorter})
import builtins, signal; builtins.of_mine = 1
def on_alarm(*_): pass
signal.signal(signal.SIGALRM, on_alarm); warnings.showwarning = lambda *_, **__: None
cpu, gpu = torch.arange(3.0, device='cpu'), torch.nn.Linear(2, 2)
from IPython.core.magic import register_line_magic
@register_line_magic
def hello(line): return 'hello'
del hello, register_line_magic
def after_cell(*_): pass
get_ipython().events.register('post_run_cell', after_cell)
"""
ASKED = """
def told():
    return [str(torch.get_default_dtype()), str(torch.get_default_device()),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark, repr(torch.tensor(0.123, device='cpu')),
        torch.get_num_threads(), torch.is_anomaly_enabled(), torch.is_grad_enabled(),
        repr(np.array(0.12345)), np.geterr()['divide'], pd.get_option('display.max_rows'),
        list(matplotlib.rcParams['figure.figsize']), warnings.filters[0][:1],
        warnings.filters[0][2:], warnings.filters[1][1].pattern,
        logging.root.level, logging.getLogger('mine').level,
        get_ipython().ast_node_interactivity, get_ipython().call_pdb,
        get_ipython().automagic, get_ipython().Completer.use_jedi,
        get_ipython().InteractiveTB.mode, repr(3.14159),
        get_ipython().display_formatter.formatters['text/plain'](3.14159),
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
        torch.hub.get_dir(), torch.backends.mkldnn.enabled,
        torch.multiprocessing.get_sharing_strategy(), socket.getdefaulttimeout(),
        decimal.Decimal(1) / 3, sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(),
        sys.getswitchinterval(), sys.get_int_max_str_digits(),
        logging.getLevelName(15), logging.root.manager.disable,
        logging.getLogger('mine.quiet').propagate, logging.getLogger('mine.quiet').disabled,
        repr(pd.Series([0.25]))]
"""


#: An extension that is imported anew, and draws a number as it is.
DRAWING = """
import random
random.random()
def load_ipython_extension(shell): pass
"""
GRAPH = {
    "names": "(str(place), __version__, __all__)",
    "devices": "(str(model.weight.device), str(x.device), str(row.device))",
    "parameters": "optimizer.param_groups[0]['params'][0] is model.weight",
    "state": "optimizer.state[model.weight]['exp_avg'].tolist() == before",
    "views": "(x.tolist(), view.tolist())",
    "one storage": "view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()",
    "imports": "(array.tolist(), math.pi == np.pi, t is torch)",
    "objects": "(one is same, isinstance(point, Point), repr(point))",
}
EXTENSION = "get_ipython().magics_manager.registry['GpuMagic'].extension"
SETTINGS = {
    "reloads": "get_ipython().magics_manager.registry['AutoreloadMagics']._reloader.check_all",
    "watches": f"({EXTENSION}.cell_timing.above, {EXTENSION}.cell_memory.watching)",
    "configured": f"{EXTENSION}.magics.min_free",
    "on the CPU": "(cpu.tolist(), str(cpu.device), str(gpu.weight.device))",
    "of tensors": "(gpu.weight.requires_grad, cpu.dtype is torch.float64)",
}


@pytest.fixture(scope="class")
def a_session(class_kernel: Kernel) -> SimpleNamespace:
    k, noted = class_kernel, SimpleNamespace()
    k.run(f"%%writefile drawing_extension.py{DRAWING}")
    k.run("%load_ext drawing_extension\n%load_ext autoreload\n%autoreload 2")
    k.run("%cudatime on --above 7s\n%gpumem on")
    k.run("%config GpuMagic.min_free = '55GiB'\n%automagic off\n%xmode Verbose\n%precision 2")
    k.run(MODEL)
    k.run(f"{TOLD}\n{ASKED}\nimport torch; torch.cuda.init()\nimport random; random.seed(3)")
    k.run("%cudatime -q --name first begun = 1")
    noted.before = k.value("[repr(each) for each in told()]")
    k.run("fork = random.Random(); fork.setstate(random.getstate())")

    noted.all = k.run("%gpu 1 --restart --keep all").text
    noted.after = k.value("[repr(each) for each in told()]")
    noted.as_random = k.value("random.random() == fork.random()")
    noted.graph = {name: k.value(asked) for name, asked in GRAPH.items()}
    noted.settings = {name: k.value(asked) for name, asked in SETTINGS.items()}
    noted.compared = k.run("%cudatime --compare", raising=False).shown
    noted.functions = [k.value("(f(2), point.scaled())")]
    k.run("factor = 10")
    noted.functions.append(k.value("(f(2), point.scaled())"))
    noted.step = k.run("optimizer.step()").status

    k.run("'an output'")
    noted.comment = k.run("%gpu off --restart --keep f told  # both", raising=False).shown
    # What cannot be loaded again.
    k.run("__import__('os').remove('drawing_extension.py')")
    noted.few = k.run("%gpu off --restart --keep told f row place").text
    noted.default_device = k.value("str(torch.get_default_device())")
    noted.rest = k.value("(f(1), str(row.device), str(place), 'model' in globals())")
    return noted


class TestASession:
    """All of a session with a model and many settings, and then three of its variables."""

    def test_everything_comes_back(self, a_session: SimpleNamespace) -> None:
        assert "No variable was lost." in a_session.all
        assert "Tensors moved: cuda:0 → cpu, cuda:1 → cuda:0." in a_session.all  # by UUID
        assert (
            "Devices moved: cuda:0 → cpu (settings), cuda:1 → cuda:0 (settings)." in a_session.all
        )
        assert "Imported again: math, np, torch, t, dataclass, " in a_session.all
        assert a_session.graph == {
            "names": ("cuda", "1.2", ["f"]),
            "devices": ("cuda:0", "cpu", "cuda:0"),
            "parameters": True,
            "state": True,
            "views": ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0]),
            "one storage": True,
            "imports": ([*range(10)], True, True),
            "objects": (True, True, "Point(a=5)"),
        }

    def test_functions_see_what_is_changed_later(self, a_session: SimpleNamespace) -> None:
        """They live in the notebook, and an optimizer goes on."""
        assert a_session.functions == [(8, 15), (22, 50)]
        assert a_session.step == "ok"

    def test_settings_of_the_session_are_restored(self, a_session: SimpleNamespace) -> None:
        assert a_session.after == [each.replace("cuda:1", "cuda:0") for each in a_session.before]
        assert (
            "Not registered again: %hello, the hook after_cell, warnings.showwarning, the handler "
            "of SIGALRM, builtins.of_mine."
        ) in a_session.all
        assert (
            "Not as it was: the root logger's StreamHandler, the logger mine's FileHandler."
        ) in a_session.all
        # What draws the report imports libraries that draw random numbers.
        assert a_session.as_random
        assert a_session.settings == {
            "reloads": True,
            "watches": (7.0, True),
            "configured": "55GiB",
            "on the CPU": ([0.0, 1.0, 2.0], "cpu", "cuda:0"),
            "of tensors": (True, True),
        }
        assert "there is only first;" in a_session.compared

    def test_names_and_what_they_need(self, a_session: SimpleNamespace) -> None:
        assert a_session.comment == (
            "UsageError: a comment does not belong on a magic's line: put it on the line above\n"
        )
        assert re.search(r"Lost: \d+ variables \(.* more\)\.", a_session.few)
        assert "Out is empty." in a_session.few
        assert "Kept: told, f, row, place, helper, factor." in a_session.few
        assert "Tensors moved: cuda:0 → cpu." in a_session.few
        assert "Devices moved: cuda → cpu (place)." in a_session.few
        assert a_session.rest == (12, "cpu", "cpu", False)

    def test_settings_that_cannot_be_restored(self, a_session: SimpleNamespace) -> None:
        assert "Not as it was: torch's default device (cuda:0 is hidden)" in a_session.few
        # Without digits.
        assert "numpy's formatter, pandas's option display.float_format." in a_session.few
        assert "Not loaded again: drawing_extension (ModuleNotFoundError" in a_session.few
        assert a_session.default_device == "cpu"


@pytest.fixture(scope="class")
def without_torch(
    class_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("inserted")
    (folder / "inserted_path_model.py").write_text("class M:\n    a = 1\n")
    k, noted = class_kernel, SimpleNamespace()
    k.run(f"{FREEZE}\nimport sys, types; sys.path.insert(0, {str(folder)!r})")
    k.run("from inserted_path_model import M\nm = M(); important = {'a': 1}; _mine = 7")
    k.run("made = sys.modules['made'] = types.ModuleType('made')")
    k.run("exec('class Z: pass', vars(made)); z = made.Z(); ip = get_ipython()")
    # Methods of the shell, which a child that tries them does not have.
    k.run("magic = get_ipython().run_line_magic; import threading")
    k.run("ended = threading.Thread(target=print); ended.start(); ended.join()")
    noted.first = k.run("def f(): return 1 / 0\n'first'").execution_count
    # However long it takes, nothing of the progress is shown; in the end all of it is.
    progress = "from gpumagic.magics.gpu import keep_variables as k; k.PROGRESS_AFTER = {}; del k"
    k.run(progress.format(1e9))
    noted.not_loaded = k.run("%gpu off --restart --keep all", raising=False).shown
    noted.unchanged = k.value("important")
    k.run("handle = open('/dev/null'); big = list(range(300_000))")
    noted.not_pickled = k.run("%gpu off --restart --keep all", raising=False).shown
    k.run(progress.format(0))

    noted.said = k.run("%gpu off --restart --keep all Out --force").text
    noted.later = k.run("'later'").execution_count
    noted.values = k.value("(m.a, type(m) is M, important, _mine, ip is get_ipython())")
    noted.names = k.value("[n for n in ('handle', 'made', 'z', 'big', 'f') if n in globals()]")
    noted.torch = k.value("'torch' in sys.modules")
    first, later = noted.first, noted.later
    noted.outputs = k.value(f"(Out[{first}], Out[{later}], _{first}, Out is _oh)")
    noted.objects = k.value("(magic.__self__ is get_ipython(), ended.is_alive(), len(big))")
    noted.source = k.value("__import__('inspect').getsource(f)")
    noted.raised = k.run("f()", raising=False).shown
    return noted


class TestWithoutTorch:
    """What a fresh process cannot load, and what of IPython's own can be kept."""

    def test_what_a_fresh_process_cannot_load_is_refused_by_name(
        self, without_torch: SimpleNamespace
    ) -> None:
        """Before anything is lost; and everything else is kept."""
        assert without_torch.not_loaded.startswith("UsageError: cannot keep ")
        assert "z (No module named 'made')" in without_torch.not_loaded
        assert "important" not in without_torch.not_loaded
        assert without_torch.unchanged == {"a": 1}
        assert "Imported again: ctypes, sys, types, M, threading." in without_torch.said
        assert without_torch.values == (1, True, {"a": 1}, 7, True)

    def test_force_loses_what_cannot_be_kept(self, without_torch: SimpleNamespace) -> None:
        assert without_torch.not_pickled.startswith("UsageError: cannot keep handle (an open file)")
        assert "Not kept: handle (an open file)" in without_torch.said
        assert "z (No module named 'made')." in without_torch.said
        assert "Lost: 3 variables (made, z, handle)." in without_torch.said
        assert without_torch.names == ["big", "f"]
        assert without_torch.torch is False

    def test_outputs_go_on_and_the_times_are_said(self, without_torch: SimpleNamespace) -> None:
        assert "keeping variables: " in without_torch.said
        times = r"in [\d.]+ s \([\d.]+ s more to keep variables, [\d.]+ s to"
        assert re.search(times, without_torch.said)
        assert without_torch.outputs == ("first", "later", "first", True)
        assert without_torch.objects == (True, False, 300_000)
        assert without_torch.source == "def f(): return 1 / 0\n"
        assert f"In[{without_torch.first}]" in without_torch.raised


@pytest.fixture(scope="class")
def much(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    noted = SimpleNamespace(folder=tmp_path_factory.mktemp("temporary"))
    folder, env = tmp_path_factory.mktemp("kernel"), {"TMPDIR": str(noted.folder)}
    with shared(folder, env=env) as k:
        k.run("import torch, numpy as np; torch.cuda.init(); small = {'epoch': 7}")
        k.run(f"big = torch.arange({MIB} * 2**17); array = np.ones({MIB} * 2**14)")
        k.run("w = torch.zeros(100 << 18).cuda(); from tests.virtual_gpu import World")
        k.run("torch.cuda.manual_seed(3); state = torch.cuda.get_rng_state()")
        # Behind what the process gives back itself there is room for its context only.
        k.run("free = torch.cuda.mem_get_info()[0] + (50 << 20)")
        k.run("World.current().add_process(0, 43214321, free); del World")
        asked = "%gpu 0 --restart --keep w small state big array"
        noted.shown = k.run(asked, timeout=300).text
        noted.much = k.value("(big[-1].item() + 1, int(array.sum()))")
        noted.values = k.value("(str(w.device), small)")
        noted.state = k.value("torch.equal(torch.cuda.get_rng_state(), state)")
        yield noted


class TestMuch:
    """Large tensors and a GPU that another job has filled meanwhile."""

    def test_much_is_kept_with_progress(self, much: SimpleNamespace) -> None:
        if MIB >= 1024:  # less is written before there is anything to tell
            assert "keeping variables: " in much.shown
        assert much.much == (MIB * 2**17, MIB * 2**14)
        assert list(much.folder.iterdir()) == []

    def test_a_full_gpu_and_a_hidden_one(self, much: SimpleNamespace) -> None:
        """Another job takes the GPU's memory while the kernel restarts."""
        assert "Tensors moved: cuda:0 → cpu." in much.shown
        too_little = "On the CPU, since cuda:0 has too little free memory for it: 100 MiB."
        assert too_little in report(much.shown)
        assert much.values == ("cpu", {"epoch": 7})
        assert much.state


@pytest.fixture(scope="class")
def random_states(class_kernel: Kernel) -> SimpleNamespace:
    k, noted = class_kernel, SimpleNamespace()
    k.run("%gpu 3 -q")
    k.run("import torch; torch.manual_seed(8); torch.cuda.manual_seed(7)")
    k.run(f"small = {{'epoch': 7}}\n{FREEZE}")
    noted.unused = k.run("%gpu 2,1 --restart --keep small").text
    noted.seeds = k.value("(torch.cuda.is_initialized(), torch.cuda.initial_seed())")

    k.run("torch.cuda.init(); torch.cuda.manual_seed_all(5); generator = torch.Generator('cuda')")
    k.run("state = torch.cuda.get_rng_state(1)")
    k.run("pinned = torch.ones(2).pin_memory(); pinned_too = pinned[1:]; plain = torch.ones(2)")
    k.run("x, w = torch.arange(3.0).to('cuda:0'), torch.ones(2).to('cuda:1')")
    asked = "%gpu off --restart --keep generator small"
    noted.refused = k.run(asked, raising=False).shown
    noted.unchanged = k.value("small")
    asked = "%gpu 1 --restart --keep generator small state pinned pinned_too plain x w"
    noted.hidden = k.run(asked).text
    noted.state = k.value("torch.equal(torch.cuda.get_rng_state(0), state)")
    noted.generator = k.value("(generator.device.type, small)")
    noted.tensors = k.value("(str(w.device), str(x.device), x.tolist())")
    return noted


class TestRandomStates:
    """Seeds for GPUs that are not in use yet; then states of two GPUs, one of which is hidden."""

    def test_a_seed_for_gpus_that_are_not_in_use_yet(self, random_states: SimpleNamespace) -> None:
        assert "random state" not in random_states.unused
        assert random_states.seeds == (False, 7)

    def test_a_generator_of_a_hidden_gpu(self, random_states: SimpleNamespace) -> None:
        """It goes to another GPU; where there is none, it is refused."""
        hidden = "cannot keep generator (a random generator of a GPU that is hidden)"
        assert hidden in random_states.refused
        assert random_states.unchanged == {"epoch": 7}
        assert "Kept: generator, small, " in random_states.hidden
        assert random_states.generator == ("cuda", {"epoch": 7})

    def test_the_random_state_of_a_hidden_gpu_is_not_kept(
        self, random_states: SimpleNamespace
    ) -> None:
        """That of a GPU without a context is."""
        assert "Not kept: CUDA's random state of cuda:0 (hidden now)." in random_states.hidden
        assert "Kept without pinned memory: pinned, pinned_too." in random_states.hidden
        assert random_states.state

    def test_tensors_follow_their_gpus(self, random_states: SimpleNamespace) -> None:
        """By UUID, also under a choice in another order."""
        assert "Tensors moved: cuda:0 → cpu, cuda:1 → cuda:0." in random_states.hidden
        assert random_states.tensors == ("cuda:0", "cpu", [0, 1, 2])


def test_trying_changes_nothing(kernel: Callable[..., Kernel]) -> None:
    """A refused restart leaves classes and functions as they were."""
    k = kernel()
    k.run(MODEL + "\nmethod, repr_ = Point.scaled, Point.__repr__; g = (i for i in [])")
    assert k.run("%gpu off --restart --keep all", raising=False).status == "error"
    assert k.value("(Point.scaled is method, Point.__repr__ is repr_, point.scaled())") == (
        True,
        True,
        15,
    )


COMPILED = """
import torch
def f(x):
    if x.sum() > 0: return x + 1
    return x - 1
torch.compile(f, backend='eager')(torch.ones(1)).item()
"""


def test_what_torchs_compiler_binds_is_no_variable_and_a_lost_file_is_named(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    k = kernel()
    file = tmp_path / "file_that_goes.py"
    file.write_text("def away(): return 5\n")
    k.run(f"{FREEZE}\nimport sys; sys.path.insert(0, {str(tmp_path)!r}); n = 1")
    assert k.run(COMPILED).value == "2.0"
    assert k.value("[n for n in globals() if n.startswith('__compiled_fn')] != []")
    k.run("from file_that_goes import away\ndef user(): return away()")
    file.unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    refused = k.run("%gpu off --restart --keep all", raising=False).shown
    assert refused.startswith("UsageError: cannot keep away (No module named 'file_that_goes')")
    k.run("del away, user")
    said = report(k.run("%gpu off --restart --keep all").text)
    assert "Kept: n, f." in said
    assert "Lost" not in said
    assert "__" not in said
    assert k.run(COMPILED.replace("def f(x)", "def g(x)")).value == "2.0"
    assert k.value("torch.compile(f, backend='eager')(torch.ones(1)).item()") == 2.0


def test_a_full_disk_is_reported_before_anything_is_lost(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{FREEZE}\nimport shutil, numpy as np; array = np.ones(2**20)")
    k.run("old = shutil.disk_usage; shutil.disk_usage = lambda f: old(f)._replace(free=2**20)")
    refused = k.run("%gpu off --restart --keep array", raising=False)
    assert "has 0.0 GiB; set TMPDIR" in refused.shown
    assert k.value("int(array.sum())") == 2**20


PARKED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
big, host = torch.zeros(4 * 2**20).cuda(), torch.ones(3)
x = torch.arange(1000.).to("cuda:1")
y = x.view(10, 100).t()
sparse = torch.eye(4).to_sparse().cuda()
weight = model.weight.tolist()
free = torch.cuda.mem_get_info(0)[0] + torch.cuda.memory_reserved(0)
"""


@needs_parking
def test_what_is_parked_is_kept_without_room_on_the_device(
    kernel: Callable[..., Kernel], child_environment: Callable[..., dict[str, str]]
) -> None:
    """The bytes go from the host's copies to the file; what cannot is refused, and all is safe."""
    environment = child_environment()
    k, world = kernel(env=environment), World.current(environment)
    k.run(PARKED)
    free = k.value("free")
    k.run("%gpumem park -q")
    world.add_process(0, 42424242, free - 2**20)
    failed = k.run("%gpumem unpark", raising=False)
    assert "everything stays parked" in failed.shown
    assert "%gpu auto 2 --restart --keep all takes it to other GPUs" in failed.shown
    failed = k.run("%gpu off --restart --keep sparse host", raising=False)
    assert len(failed.shown.strip().splitlines()) == 1
    assert "parked memory cannot come back: cuda:0 needs 16.0 MiB" in failed.shown
    assert "Parked in host memory" in k.run("%gpumem").text
    k.run("del sparse")
    shown = k.run("%gpu 0,1 --restart --keep all").text
    assert "On the CPU, since cuda:0 has too little free memory for it: 16.0 MiB." in shown
    assert k.value("(big.numel(), str(x.device), str(big.device))") == (4 * 2**20, "cuda:1", "cpu")
    assert k.value("x.tolist() == [*range(1000)] and y.t().tolist()[1][:2] == [100, 101]")
    assert k.value("y.data_ptr() == x.data_ptr() and model.weight.tolist() == weight")
    assert k.value("optimizer.param_groups[0]['params'][0] is model.weight")
    assert "Parked" not in k.run("%gpumem").text
    # To other GPUs, as far as there are visible ones without tensors.
    k.run("%gpumem park -q")
    shown = k.run("%gpu 3,2 --restart --keep x y host").text
    assert "Tensors moved: cuda:1 → cuda:0 (another GPU)." in shown
    # And to the CPU, where every GPU is hidden.
    k.run("%gpumem park -q")
    shown = k.run("%gpu off --restart --keep x y host").text
    assert "Tensors moved: cuda:0 → cpu." in shown
    assert k.value("(y.t().tolist()[1][:2], host.tolist(), str(x.device), x.sum().item())") == (
        *([100, 101], [1, 1, 1], "cpu", 499500),
    )
