"""Variables that come back after a restart."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.restart import FREEZE
from tests.support.kernels import Kernel
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
x = torch.arange(6.0).cuda(0); view = x[2:4]
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


def test_everything_comes_back(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(MODEL)
    shown = k.run("%gpu 1 --restart --keep all").text
    assert "No variable was lost." in shown
    assert "Tensors moved: cuda:0 → cpu, cuda:1 → cuda:0." in shown  # by UUID
    assert "Devices moved: cuda:0 → cpu (settings), cuda:1 → cuda:0 (settings)." in shown
    assert "Imported again: math, np, torch, t, dataclass." in shown
    assert k.value("(str(place), __version__, __all__)") == ("cuda", "1.2", ["f"])
    assert k.value("(str(model.weight.device), str(x.device))") == ("cuda:0", "cpu")
    assert k.value("optimizer.param_groups[0]['params'][0] is model.weight")
    assert k.value("optimizer.state[model.weight]['exp_avg'].tolist() == before")
    assert k.value("(x.tolist(), view.tolist())") == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0])
    assert k.value("view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()")
    assert k.value("(array.tolist(), math.pi == np.pi, t is torch)")[1:] == (True, True)
    assert k.value("(one is same, isinstance(point, Point), repr(point))") == (
        True,
        True,
        "Point(a=5)",
    )
    # Functions live in the notebook: they see what is changed later.
    assert k.value("(f(2), point.scaled())") == (8, 15)
    k.run("factor = 10")
    assert k.value("(f(2), point.scaled())") == (22, 50)
    k.run("optimizer.step()")


def test_names_and_what_they_need(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{MODEL}\n'an output'")
    refused = k.run("%gpu off --restart --keep f x  # both", raising=False)
    assert refused.shown == (
        "UsageError: a comment does not belong on a magic's line: put it on the line above\n"
    )
    shown = k.run("%gpu off --restart --keep f x place").text
    assert re.search(r"Lost: \d+ variables \(model, optimizer, view, array, .* more\)\.", shown)
    assert "Out is empty." in shown
    assert "Kept: f, x, place, helper, factor." in shown
    assert "Tensors moved: cuda:0 → cpu." in shown
    assert "Devices moved: cuda → cpu (place)." in shown
    assert k.value("(f(1), str(x.device), 'model' in globals())") == (5, "cpu", False)


def test_force_loses_what_cannot_be_kept(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{FREEZE}\nhandle = open('/dev/null'); number = 1")
    refused = k.run("%gpu off --restart --keep all", raising=False)
    assert refused.shown.startswith("UsageError: cannot keep handle (an open file)")
    assert k.value("number") == 1
    shown = k.run("%gpu off --restart --keep all --force").text
    assert "Not kept: handle (" in shown
    assert k.value("(number, 'handle' in globals())") == (1, False)
    assert k.value("'torch' in __import__('sys').modules") is False


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


@pytest.mark.timeout(600)
def test_much_is_kept_with_progress(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    k = kernel(env={"TMPDIR": str(tmp_path)})
    k.run(f"{FREEZE}\nimport torch, numpy as np")
    k.run(f"big = torch.arange({MIB} * 2**17); array = np.ones({MIB} * 2**14)")
    shown = k.run("%gpu off --restart --keep big array", timeout=300).text
    if MIB >= 1024:  # less is written before there is anything to tell
        assert "keeping variables: " in shown
    assert k.value("(big[-1].item() + 1, int(array.sum()))") == (MIB * 2**17, MIB * 2**14)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_before_anything_is_lost(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(f"{FREEZE}\nimport shutil, numpy as np; array = np.ones(2**20)")
    k.run("old = shutil.disk_usage; shutil.disk_usage = lambda f: old(f)._replace(free=2**20)")
    refused = k.run("%gpu off --restart --keep array", raising=False)
    assert "has 0.0 GiB; set TMPDIR" in refused.shown
    assert k.value("int(array.sum())") == 2**20


def test_what_a_fresh_process_cannot_load_is_refused_by_name(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """Before anything is lost; and everything else is kept."""
    (tmp_path / "inserted_path_model.py").write_text("class M:\n    a = 1\n")
    k = kernel()
    k.run(f"{FREEZE}\nimport sys, types; sys.path.insert(0, {str(tmp_path)!r})")
    k.run("from inserted_path_model import M\nm = M(); important = {'a': 1}; _mine = 7")
    k.run("made = sys.modules['made'] = types.ModuleType('made')")
    k.run("exec('class Z: pass', vars(made)); z = made.Z(); ip = get_ipython()")
    refused = k.run("%gpu off --restart --keep all", raising=False)
    assert refused.shown.startswith("UsageError: cannot keep ")
    assert "z (No module named 'made')" in refused.shown
    assert "important" not in refused.shown
    assert k.value("important") == {"a": 1}
    shown = k.run("%gpu off --restart --keep all --force").text
    assert "Not kept: z (No module named 'made')." in shown
    assert "Lost: 2 variables (made, z)." in shown
    assert "Imported again: ctypes, sys, types, M." in shown
    assert k.value("(m.a, type(m) is M, important, _mine, ip is get_ipython())") == (
        *(1, True, {"a": 1}, 7, True),
    )


def test_outputs_go_on_and_the_times_are_said(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(
        f"{FREEZE}\nfrom gpumagic.magics.gpu import keep_variables\n"
        "keep_variables.PROGRESS_AFTER = 0"
    )
    # Methods of the shell, which a child that tries them does not have.
    k.run("magic = get_ipython().run_line_magic; import threading")
    k.run("ended = threading.Thread(target=print); ended.start(); ended.join()")
    first = k.run("def f(): return 1 / 0\n'first'").execution_count
    k.run("big = list(range(300_000))\ndel keep_variables")
    asked = k.run("%gpu off --restart --keep Out f big magic ended")
    assert "keeping variables: " in asked.text
    assert re.search(r"in [\d.]+ s \([\d.]+ s more to keep variables, [\d.]+ s to", asked.text)
    later = k.run("'later'").execution_count
    assert k.value(f"(Out[{first}], Out[{later}], _{first}, Out is _oh)") == (
        *("first", "later", "first", True),
    )
    assert k.value("(magic.__self__ is get_ipython(), ended.is_alive())") == (True, False)
    assert k.value("__import__('inspect').getsource(f)") == "def f(): return 1 / 0\n"
    assert f"In[{first}]" in k.run("f()", raising=False).shown


def test_a_full_gpu_and_a_hidden_one(kernel: Callable[..., Kernel]) -> None:
    """Another job takes the GPU's memory while the kernel restarts."""
    k = kernel()
    k.run("import torch; torch.cuda.init(); small = {'epoch': 7}")
    k.run("w = torch.zeros(100 << 18).cuda(); from tests.virtual_gpu import World")
    k.run("torch.cuda.manual_seed(3); state = torch.cuda.get_rng_state()")
    # Behind what the process gives back itself there is room for its context only.
    k.run("free = torch.cuda.mem_get_info()[0] + (50 << 20)")
    k.run("World.current().add_process(0, 4321, free); del World")
    shown = k.run("%gpu 0 --restart --keep w small state").text
    assert "Tensors moved: cuda:0 → cpu." in shown
    assert "On the CPU, since cuda:0 has too little free memory for it: 100 MiB." in shown
    assert k.value("(str(w.device), small)") == ("cpu", {"epoch": 7})
    assert k.value("torch.equal(torch.cuda.get_rng_state(), state)")


def test_the_random_state_of_a_hidden_gpu_is_not_kept(kernel: Callable[..., Kernel]) -> None:
    """That of a GPU without a context is."""
    k = kernel()
    k.run("%gpu 1,2 -q")
    k.run("import torch; torch.cuda.init(); torch.cuda.manual_seed_all(5)")
    k.run("state = torch.cuda.get_rng_state(1)")
    k.run("pinned = torch.ones(2).pin_memory(); pinned_too = pinned[1:]; plain = torch.ones(2)")
    shown = k.run("%gpu 2 --restart --keep state pinned pinned_too plain").text
    assert "Not kept: CUDA's random state of cuda:0 (hidden now)." in shown
    assert "Kept without pinned memory: pinned, pinned_too." in shown
    assert k.value("torch.equal(torch.cuda.get_rng_state(0), state)")


def test_a_seed_for_gpus_that_are_not_in_use_yet(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("%gpu 3 -q")
    k.run("import torch; torch.manual_seed(8); torch.cuda.manual_seed(7); small = {'epoch': 7}")
    k.run(FREEZE)
    shown = k.run("%gpu 2 --restart --keep small").text
    assert "random state" not in shown
    assert k.value("(torch.cuda.is_initialized(), torch.cuda.initial_seed())") == (False, 7)
    k.run("torch.cuda.init(); generator = torch.Generator('cuda')")
    refused = k.run("%gpu off --restart --keep generator small", raising=False)
    assert "cannot keep generator (a random generator of a GPU that is hidden)" in refused.shown
    assert k.value("small") == {"epoch": 7}
    shown = k.run("%gpu 1 --restart --keep generator small").text
    assert "Kept: generator, small." in shown
    assert "Not kept: CUDA's random state of cuda:0 (hidden now)." in shown
    assert k.value("generator.device.type") == "cuda"


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


def test_settings_of_the_session_are_restored(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    k = kernel()
    # An extension that is imported anew, and draws a number as it is.
    (tmp_path / "drawing_extension.py").write_text(
        "import random\nrandom.random()\ndef load_ipython_extension(shell): pass\n"
    )
    k.run("%load_ext drawing_extension\n%load_ext autoreload\n%autoreload 2")
    k.run("%cudatime on --above 7s\n%gpumem on")
    k.run("%config GpuMagic.max_util = '55'\n%automagic off\n%xmode Verbose\n%precision 2")
    k.run(f"{TOLD}\n{ASKED}\nimport torch; torch.cuda.init()\nimport random; random.seed(3)")
    k.run("%cudatime -q --name first x = 1")
    before = k.value("[repr(each) for each in told()]")
    k.run("fork = random.Random(); fork.setstate(random.getstate())")
    shown = k.run("%gpu 1 --restart --keep all").text
    after = k.value("[repr(each) for each in told()]")
    moved = [each.replace("cuda:1", "cuda:0") for each in before]
    assert after == moved
    assert (
        "Not registered again: %hello, the hook after_cell, warnings.showwarning, the handler of "
        "SIGALRM, builtins.of_mine."
    ) in shown
    assert "Not as it was: the root logger's StreamHandler, the logger mine's FileHandler." in shown
    # What draws the report imports libraries that draw random numbers.
    assert k.value("random.random() == fork.random()")
    ip = "get_ipython()"
    extension = f"{ip}.magics_manager.registry['GpuMagic'].extension"
    assert k.value(f"{ip}.magics_manager.registry['AutoreloadMagics']._reloader.check_all")
    assert k.value(f"({extension}.cell_timing.above, {extension}.cell_memory.watching)") == (
        *(7.0, True),
    )
    assert k.value(f"{extension}.magics.max_util") == "55"
    assert k.value("(cpu.tolist(), str(cpu.device), str(gpu.weight.device))") == (
        *([0.0, 1.0, 2.0], "cpu", "cuda:0"),
    )
    assert k.value("(gpu.weight.requires_grad, cpu.dtype is torch.float64)") == (True, True)
    assert "there is only first;" in k.run("%cudatime --compare", raising=False).shown
    # What cannot be loaded again, and a default device that is hidden.
    (tmp_path / "drawing_extension.py").unlink()
    shown = k.run("%gpu off --restart --keep told").text
    assert "Not as it was: torch's default device (cuda:0 is hidden)" in shown
    assert "numpy's formatter, pandas's option display.float_format." in shown  # without digits
    assert "Not loaded again: drawing_extension (ModuleNotFoundError" in shown
    assert k.value("str(torch.get_default_device())") == "cpu"


PARKED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
big, host = torch.zeros(64 * 2**20).cuda(), torch.ones(3)
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
    world.add_process(0, 4242, free - 2**20)
    failed = k.run("%gpumem unpark", raising=False)
    assert "everything stays parked" in failed.shown
    assert "%gpu auto 2 --restart --keep all takes everything to 2 free GPUs" in failed.shown
    failed = k.run("%gpu off --restart --keep sparse host", raising=False)
    assert len(failed.shown.strip().splitlines()) == 1
    assert "parked memory cannot come back: cuda:0 needs 256 MiB" in failed.shown
    assert "Parked in host memory" in k.run("%gpumem").text
    k.run("del sparse")
    shown = k.run("%gpu 0,1 --restart --keep all").text
    assert "On the CPU, since cuda:0 has too little free memory for it: 256 MiB." in shown
    assert k.value("(big.numel(), str(x.device), str(big.device))") == (64 * 2**20, "cuda:1", "cpu")
    assert k.value("x.tolist() == [*range(1000)] and y.t().tolist()[1][:2] == [100, 101]")
    assert k.value("y.data_ptr() == x.data_ptr() and model.weight.tolist() == weight")
    assert k.value("optimizer.param_groups[0]['params'][0] is model.weight")
    assert "Parked" not in k.run("%gpumem").text
    # To other GPUs, as far as there are visible ones without tensors.
    k.run("%gpumem park -q")
    shown = k.run("%gpu 3,2 --restart --keep all").text
    assert "Tensors moved: cuda:1 → cuda:0 (another GPU)." in shown
    k.run("w = torch.ones(2, device='cuda:1')")
    shown = k.run("%gpu 2 --restart --keep x w").text
    assert "Tensors moved: cuda:0 → cpu, cuda:1 → cuda:0." in shown
    assert k.value("(str(w.device), str(x.device), x.sum().item())") == ("cuda:0", "cpu", 499500)


@needs_parking
def test_what_is_parked_is_kept_and_the_gpu_hidden(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("import torch; x = torch.arange(1000.).cuda(); y = x[3:9]; z = torch.ones(2)")
    k.run("%gpumem park -q")
    shown = k.run("%gpu off --restart --keep x y z").text
    assert "Tensors moved: cuda:0 → cpu." in shown
    assert k.value("(y.tolist(), z.tolist(), str(x.device))") == (
        *([3, 4, 5, 6, 7, 8], [1, 1], "cpu"),
    )
