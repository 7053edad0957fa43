"""Variables that come back: one kernel has all of them, is restarted once, and is asked.

A row: what a cell defines, the names to keep, an expression in the new process, and its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest

from tests.restart import FREEZE, restarted
from tests.support.kernels import Kernel, running_kernel
from tests.virtual_gpu import World


class Case(NamedTuple):
    cell: str
    names: str
    asked: str
    value: Any


#: Whether pandas copies what is shared before it writes to it.
COPIES = int(pandas.__version__.split(".")[0]) >= 3
PLAIN = {
    "functions": Case(
        "from math import sqrt\nscale = 3\ndef helper(x): return x * scale\n"
        "def f(x): return helper(sqrt(x)), len(get_ipython().user_ns) > 0\n"
        "class A:\n    def go(self): return f(4)\na = A(); add = lambda x: x + scale",
        "f a add",
        "(f(4), a.go(), add(1), f.__globals__ is globals(), scale)",
        ((6.0, True), (6.0, True), 4, True, 3),
    ),
    "sources, cached properties": Case(
        "import functools\ndef written(x): return x + 1\nclass Lazy:\n"
        "    @functools.cached_property\n    def made(self): return [1]\nlazy = Lazy()",
        "written lazy",
        "(__import__('inspect').getsource(written).count('x + 1'), lazy.made is lazy.made)",
        (1, True),
    ),
    "what every shell has": Case(
        "ip = get_ipython(); magic = ip.run_line_magic; ins = In; import builtins\n"
        "space, outs = [globals()], Out",
        "ip magic ins builtins space outs",
        "(ip is get_ipython(), magic.__self__ is ip, ins is In, builtins.len('ab'),"
        " __builtins__.__name__, space[0] is globals(), outs is Out,"
        " any(each is folder for each in outs.values()))",
        (True, True, True, 2, "builtins", True, True, True),
    ),
    "classes within others": Case(
        "class Cfg:\n    class Optim:\n        lr = 1\nwithin = Cfg.Optim()\n"
        "def made_here():\n    class Local: x = 2\n    return Local()\nlocal = made_here()",
        "Cfg within local",
        "(type(within) is Cfg.Optim, type(within).__qualname__, within.lr,"
        " type(local).__qualname__, local.x)",
        (True, "Cfg.Optim", 1, "made_here.<locals>.Local", 2),
    ),
    "enums": Case(
        "import enum\nclass Planet(enum.Enum):\n    EARTH = 6, 12; MARS = 1, 6; HOME = EARTH\n"
        "    def __init__(self, mass, size): self.mass, self.size = mass, size\n"
        "class Way(enum.Flag): UP = 1; DOWN = 2; BOTH = 3\nhere = Planet.MARS\n"
        "class Named(enum.Enum):\n    def _generate_next_value_(name, *_): return name.lower()",
        "Planet Way Named here",
        "(here is Planet.MARS, here.mass, Planet.EARTH.size, Planet['HOME'] is Planet.EARTH,"
        " Way(3).name, Named._generate_next_value_('ADAM', 1, 0, []))",
        (True, 1, 12, True, "BOTH", "adam"),
    ),
    "variables that objects share": Case(
        "class Borg:\n    state = {}\n    def __init__(self): self.__dict__ = Borg.state\n"
        "class Bunch(dict):\n    def __init__(self, **of):\n"
        "        super().__init__(of); self.__dict__ = self\n"
        "one = Borg(); two = Borg(); one.x = 1; bunch = Bunch(a=1)",
        "Borg one two bunch",
        "(setattr(one, 'x', 5), two.x, Borg().x, setattr(bunch, 'b', 2), bunch['b'], bunch.a)",
        (None, 5, 5, None, 2, 1),
    ),
    "not a number": Case(
        "names = {np.nan: 'missing'}; pair = [np.nan, np.nan]",
        "names pair",
        "(names[np.nan], pair.count(np.nan))",
        ("missing", 2),
    ),
    "objects that are one when they come back": Case(
        "class Unit:\n    def __init__(self, name): self.name = name\n"
        "    def __reduce__(self): return unit, (self.name,)\n"
        "unit = functools.lru_cache(Unit); first, second = Unit('kg'), Unit('kg')",
        "unit first second",
        "(second.name, first is second)",
        ("kg", True),
    ),
    "attributes of a cached function": Case(
        "@functools.lru_cache(maxsize=4)\ndef square(x): return x * x\nsquare.unit = ['m']",
        "square",
        "(square(3), square.unit, square.cache_info().maxsize, square.cache_info().misses)",
        (9, ["m"], 4, 1),
    ),
    "names with underscores": Case(
        "__secret = {'w': 1}; __version__ = '3'; _999 = 'answer'; _private = 1",
        "__secret __version__ _999 _private",
        "(__secret, __version__, _999, _private)",
        ({"w": 1}, "3", "answer", 1),
    ),
    "a module of the notebook's folder": Case(
        "import os, sys, tempfile\nfolder = tempfile.mkdtemp(); os.chdir(folder)\n"
        "_ = open('mine_kept.py', 'w').write('class M: x = 1')\n"
        "_ = open('torch.py', 'w').write('1 / 0')\nimport mine_kept; o = mine_kept.M()",
        "o folder",
        "(o.x, __import__('os').getcwd() == folder, type(o).__module__)",
        (1, True, "mine_kept"),
    ),
}
TENSORS = {
    "a model": Case(
        "import torch, torch.nn as nn\nWIDTH = 8\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.a = nn.Linear(WIDTH, WIDTH)\n"
        "        self.b = nn.Linear(WIDTH, WIDTH); self.b.weight = self.a.weight\n"
        "        self.register_buffer('seen', torch.zeros(3))\n"
        "    def forward(self, x): return self.b(self.a(x)).view(-1, WIDTH)\n"
        "m = Net().cuda(1); opt = torch.optim.AdamW(m.parameters())\n"
        "sched = torch.optim.lr_scheduler.StepLR(opt, 2)\n"
        "m(torch.ones(2, WIDTH, device='cuda:1')).sum().backward(); opt.step()\n"
        "before = opt.state[m.a.weight]['exp_avg'].tolist()",
        "m opt sched before",
        "(m.a.weight is m.b.weight, opt.param_groups[0]['params'][0] is m.a.weight,"
        " opt.state[m.a.weight]['exp_avg'].tolist() == before, m.a.weight.grad.shape[0],"
        " str(m.a.weight.grad.device), str(m.seen.device), sched.optimizer is opt, WIDTH)",
        (True, True, True, 8, "cuda:0", "cuda:0", True, 8),
    ),
    "views": Case(
        "base = torch.arange(10.).cuda(1); v = base[2:5]; w = base.to(torch.float64)\n"
        "with torch.cuda.device(1): lent = torch.from_dlpack(base)",
        "base v w lent",
        "(str(v.device), str(lent.device), v.tolist(), base.tolist() == [*map(float, range(10))],"
        " str(w.dtype), v.untyped_storage().data_ptr() == base.untyped_storage().data_ptr())",
        ("cuda:0", "cuda:0", [2.0, 3.0, 4.0], True, "torch.float64", True),
    ),
    "arrays that share memory": Case(
        "import numpy as np\nwhole = np.arange(10.); halved = whole[2:][::2]; same = whole\n"
        "class Signal(np.ndarray): pass\nsignal = whole.view(Signal); signal.rate = 8\n"
        "memory = np.ones(4); sharing = torch.from_numpy(memory[1:]); its_view = sharing[1:]\n"
        "shown = torch.zeros(3); of_torch = shown.numpy()[1:]\n"
        "words = np.array(['a', 1, None], dtype=object); word = words[1:]\n"
        "by_column = np.asfortranarray(np.zeros((2, 3))); column = by_column[:, 1]\n"
        "days = np.array(['2024-01-01', '2024-01-02'], dtype='M8[D]'); day = days[1:]",
        "whole halved same signal Signal memory sharing its_view shown of_torch words word"
        " by_column column days day",
        "(same is whole, halved.base is whole, whole.flags.owndata, whole.__setitem__(4, 0),"
        " halved.tolist(), signal[4:6].tolist(), signal.rate, memory.__setitem__(2, 5),"
        " its_view.tolist(), shown.fill_(3) is None, of_torch.tolist(), words.__setitem__(1, 7),"
        " word.tolist(), by_column.fill(2), column.tolist(), days.__setitem__(1, days[0]),"
        " str(day[0]))",
        (
            *(True, True, True, None, [2.0, 0.0, 6.0, 8.0], [0.0, 5.0], 8, None, [5.0, 1.0]),
            *(False, [3.0, 3.0], None, [7, None], None, [2.0, 2.0], None, "2024-01-01"),
        ),
    ),
    "what pandas copies before it writes to it": Case(
        "import pandas as pd; whole_numbers = pd.array([1, None], dtype='Int64')\n"
        "frame = pd.DataFrame({'a': [1., 2.], 'c': ['x', 'y'], 'n': whole_numbers})\n"
        "parts = [frame[name] for name in frame]; again = [frame[name] for name in frame]",
        "frame parts again",
        "([part.__setitem__(0, part[1]) for part in parts], [*map(str, frame.iloc[0])],"
        " [str(part[0]) for part in again])",
        ([None] * 3, *2 * [["1.0", "x", "1"] if COPIES else ["2.0", "y", "<NA>"]]),
    ),
    "kinds of tensors on a GPU": Case(
        "sp = torch.eye(3).to_sparse().cuda(1); none = torch.empty(0, device='cuda:1')\n"
        "class T(torch.Tensor): pass\nt = torch.ones(3).cuda(1).as_subclass(T)",
        "sp t T none",
        "(sp.cpu().to_dense().sum().item(), type(t) is T, none.numel(), str(none.device))",
        (3.0, True, 0, "cuda:0"),
    ),
    "without a graph": Case(
        "leaf = torch.ones(2, requires_grad=True)\n"
        "hidden = leaf * 2; hidden.retain_grad(); loss = (hidden * 3).sum(); loss.backward()\n"
        "losses = [loss]; sums = {'all': losses}\n"
        "hook = leaf.register_hook(lambda grad: grad * 10)\n"
        "leaf.register_post_accumulate_grad_hook(lambda tensor: seen.append(1)); seen = []",
        "leaf hidden loss losses sums hook seen",
        "(leaf.requires_grad, leaf.grad.tolist(), hidden.requires_grad, hidden.grad.tolist(),"
        " losses[0] is loss, loss.requires_grad, (leaf * 1).sum().backward(), leaf.grad.tolist(),"
        " seen, hook.remove(), (leaf * 1).sum().backward(), leaf.grad.tolist())",
        (
            *(True, [6.0, 6.0], False, [3.0, 3.0], True, False),
            *(None, [16.0, 16.0], [1, 1], None, None, [17.0, 17.0]),
        ),
    ),
    "hooks and own attributes": Case(
        "net = nn.Linear(2, 1); steps = []; sgd = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "decay = torch.optim.lr_scheduler.LambdaLR(sgd, lambda epoch: 0.5**epoch)\n"
        "sgd.note = 'mine'; _ = sgd.register_step_post_hook(lambda *_: steps.append('post'))\n"
        "_ = net.register_forward_hook(lambda *_: steps.append('kept'))",
        "net steps sgd decay",
        "(sgd.note, net.register_forward_hook(lambda *_: steps.append('new')) and None,"
        " net(torch.ones(2)).sum().backward(), sgd.step(), decay.step(), decay.get_last_lr(),"
        " steps)",
        ("mine", None, None, None, None, [0.05], ["kept", "new", "post"]),
    ),
    "parameters": Case(
        "class Mine(nn.Parameter): pass\nmine = Mine(torch.ones(2)); mine.no_decay = True\n"
        "fixed = nn.Parameter(torch.ones(2), requires_grad=False)",
        "Mine mine fixed",
        "(type(mine) is Mine, mine.requires_grad, mine.no_decay, mine._is_view(),"
        " fixed.detach_() is fixed)",
        (True, True, True, False, True),
    ),
    "what looks at its data": Case(
        "class Checked:\n    def __init__(self): self.w = torch.full((300,), 0.1)\n"
        "    def __setstate__(self, state):\n        self.__dict__.update(state)\n"
        "        assert self.w.sum() > 0\n        with open('/etc/hostname') as f: f.read()\n"
        "checked = Checked()",
        "checked",
        "round(checked.w.sum().item())",
        30,
    ),
    "GPUs that are hidden now, and not": Case(
        "x = torch.ones(3, device='cuda:1'); y = torch.ones(3, device='cuda:0'); both = [x, y]\n"
        "place, other = torch.device('cuda', 1), torch.device(0)\n"
        "any_ = torch.device('cuda')",
        "both x y place other any_",
        "(str(x.device), str(y.device), both[0] is x, str(place), str(other), str(any_))",
        ("cuda:0", "cpu", True, "cuda:0", "cpu", "cuda"),
    ),
}
#: What cannot be kept, and why.
BAD = {
    "gen": ("gen = (i for i in range(3))", "cannot pickle 'generator' object"),
    "lock": (
        "import threading; lock = threading.Lock(); lock.acquire(); guarded = [lock]",
        "a lock that is held",
    ),
    "file": ("file = open('/dev/null')", "an open file"),
    "folder": (
        "import tempfile; folder = tempfile.TemporaryDirectory()",
        "it is cleaned up when this process ends",
    ),
    "bad": ("class Bad:\n    def __reduce__(self): return eval, ('1/0',)\nbad = Bad()", "division"),
    "dies": (
        "class Dies:\n    def __reduce__(self): return eval, ('__import__(\"os\").abort()',)\n"
        "dies = Dies()",
        "a process that loads it ends with status -6",
    ),
    "exits": (
        "class Exits:\n    loaded = False\n    def __setstate__(self, state): self.loaded = True\n"
        "    def __reduce_ex__(self, protocol):\n        if self.loaded: raise SystemExit\n"
        "        return super().__reduce_ex__(protocol)\nexits = Exits(); exits.x = 1",
        "a process that compares it ends with status 1",
    ),
    "coded": (
        "class Coded(Exception):\n"
        "    def __init__(self, code, why): super().__init__(f'{code}: {why}')\n"
        "coded = Coded(3, 'why')",
        "missing 1 required positional argument",
    ),
    "shared": (
        "from multiprocessing import shared_memory\n"
        "shared = shared_memory.SharedMemory(create=True, size=8)",
        "shared memory or a connection of multiprocessing",
    ),
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor\nclass Trainer: pass\n"
        "pool = Trainer(); pool.executor = ThreadPoolExecutor()",
        "ThreadPoolExecutor of concurrent: ",
    ),
}
RANDOM = (
    "import random, numpy as np\nrandom.seed(1); np.random.seed(2); torch.manual_seed(2**40)\n"
    "drawn = torch.rand(2, device='cuda:1')\nforks = random.getstate(), np.random.get_state()[1]"
    ".tolist(), torch.get_rng_state(), torch.cuda.get_rng_state(1)"
)
AS_RANDOM = (
    "(random.getstate() == forks[0], np.random.get_state()[1].tolist() == forks[1],"
    " torch.equal(torch.get_rng_state(), forks[2]),"
    " torch.equal(torch.cuda.get_rng_state(0), forks[3]))"
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kernel, str]]:
    """The kernel after the restart, and the report."""
    with running_kernel(tmp_path_factory.mktemp("kernel")) as k:
        cases = [*TENSORS.values(), *PLAIN.values()]
        for cell in (*(case.cell for case in cases), RANDOM):
            k.run(cell)
        names = " ".join([*(case.names for case in cases), "forks"])
        for name in names.split():  # as notebooks do: IPython has all of them in `Out`
            k.run(name)
        shown = restarted(k, f"%gpu 1 --restart --keep {names}")
        k.run("import random, numpy as np, torch")
        yield k, shown


@pytest.mark.parametrize("name", [*PLAIN, *TENSORS])
def test_what_comes_back(kept: tuple[Kernel, str], name: str) -> None:
    case = {**PLAIN, **TENSORS}[name]
    assert kept[0].value(case.asked) == case.value


def test_what_cannot_be_kept_is_named_before_anything_is_lost(
    kernel: Callable[..., Kernel],
) -> None:
    """And with --force it alone is lost. A trial has no effect on what lives."""
    k = kernel()
    for cell, _ in BAD.values():
        k.run(cell)
    k.run("def uses(): return gen\ndef uses_it(): return uses")
    k.run(f"{FREEZE}\nfine = [1]")
    line = f"%gpu 1 --restart --keep fine uses uses_it {' '.join(BAD)}"
    refused = k.run(line, raising=False).shown
    assert refused.startswith("UsageError: cannot keep ")
    assert refused.count("\n") == 1
    assert k.value("shared_memory.SharedMemory(shared.name).size") == 8
    k.run("before_all = k_before = 1")
    shown = restarted(k, f"{line} --force")
    for name, (_, reason) in BAD.items():
        assert re.search(rf"\b{name}(, \w+)* \(", refused)
        assert reason in refused
        assert re.search(rf"Not kept: [\w, ]*\b{name}\b[\w, ]* \(", shown)
    assert k.value("(fine, 'k_before' in globals(), uses_it() is uses)") == ([1], False, True)
    assert k.value(f"[name for name in {[*BAD]} if name in globals()]") == []


@pytest.mark.parametrize("how", ["raise SystemExit(3)", "__import__('os')._exit(3)"])
def test_an_import_that_ends_the_process_loses_nothing(
    kernel: Callable[..., Kernel], tmp_path: Path, how: str
) -> None:
    k = kernel()
    (tmp_path / "once_alone.py").write_text(
        f"import os\nif 'was_here' in os.environ: {how}\nclass Mark: pass\nMARK = Mark()\n"
    )
    k.run(f"import sys; sys.path.append({str(tmp_path)!r}); import os, once_alone")
    k.run("mark, fine = once_alone.MARK, [1]; del once_alone; os.environ['was_here'] = '1'")
    refused = k.run("%gpu restart --keep mark fine", raising=False).shown
    assert refused.startswith("UsageError: ")
    assert "once_alone.MARK" in refused or "cannot keep mark (" in refused
    assert k.value("(fine, sys.modules['once_alone'].MARK is mark)") == ([1], True)


def test_what_loads_once_alone_is_lost(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """Its trial has loaded it; those behind it are named."""
    k = kernel()
    k.run(f"import os; lock = {str(tmp_path / 'lock')!r}; first = [1]")
    k.run(
        "class Server:\n    def __setstate__(self, state):\n"
        "        self.__dict__.update(state)\n        was_there = os.path.exists(lock)\n"
        "        open(lock, 'w').close()\n"
        "        if was_there: raise RuntimeError('address already in use')\n"
        "server = Server(); server.own = first; last = [first]"
    )
    shown = restarted(k, "%gpu restart")
    assert "Lost: 2 variables (server, last)." in shown
    assert "Not kept: server (RuntimeError: address already in use)." in shown
    assert "Not kept: last (it was to be loaded after server)." in shown
    assert k.value("first") == [1]


CONF = """
import threading
class C: lr = 1
cfg, UNSET, table, names = C(), object(), {"a": 1}, ["x"]
class Service:
    def __init__(self): self.lock = threading.local()
service = Service()
square = lambda x: x * cfg.lr
def used(): return cfg.lr, table, names
"""


def test_what_a_module_holds_is_the_modules(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """It comes back as the object of the fresh module, with what it contained."""
    k = kernel()
    (tmp_path / "conf.py").write_text(CONF)
    k.run(f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); import conf")
    k.run("from conf import *; cfg.lr = 7; table['b'] = 2; names.clear()")
    k.run("class Mine: pass\nconf.mine = mine = Mine(); mine.n = 1; conf.later = later = conf.C()")
    shown = k.run("%gpu restart").text
    assert "As in a new process: conf.service (" in shown
    assert k.value("used()") == (7, {"a": 1, "b": 2}, [])
    k.run("import conf; cfg.lr = 8; table['c'] = 3")
    assert k.value("(used()[0], 'c' in conf.table, UNSET is conf.UNSET, square(2), mine.n)") == (
        *(8, True, True, 16, 1),
    )
    assert k.value("(later.lr, hasattr(conf, 'later'))") == (1, False)


def test_what_is_not_there_any_more_is_named_before_it_is_lost(
    kernel: Callable[..., Kernel],
) -> None:
    k = kernel()
    k.run(
        "class Forgets:\n    def __setstate__(self, state):\n"
        "        self.n = state['n']\nforgets = Forgets(); forgets.n, forgets.best = 3, 0.125"
    )
    k.run("import pathlib; links = pathlib.Path('/proc/self/fd')")
    refused = k.run("%gpu restart", raising=False).shown
    files = "[e.name for e in links.iterdir() if '(deleted)' in str(e.resolve()) and e.name > '2']"
    assert k.value(files) == []
    assert refused.startswith("UsageError: forgets would come back without 'best', 0.125."), refused
    assert k.value("forgets.best") == 0.125
    shown = k.run("%gpu restart --force").text
    assert "Changed: forgets (without " in shown
    assert k.value("forgets.n") == 3


def test_what_stands_in_for_stdout_is_data(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("import io, sys; own = sys.stdout; buf = io.StringIO(); sys.stdout = buf; print('hid')")
    refused = k.run("%gpu restart --keep own buf", raising=False).shown
    assert "cannot keep own (an open file)" in refused
    k.run("sys.stdout = own; err = sys.stderr; del own; sys.stdout = buf")
    k.run("import logging; logger = logging.getLogger('mine'); logger.setLevel(10)")
    shown = k.run("%gpu restart").text
    assert "Not carried over; set again: sys.stdout, logging." in shown
    assert k.value("(buf.getvalue(), sys.stdout is buf, err is sys.stderr)") == (
        "hid\n",
        False,
        True,
    )


def test_only_what_is_on_a_gpu_starts_cuda(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """What is imported anew is not called kept; what must be set again is named."""
    k = kernel()
    (tmp_path / "mine_state.py").write_text("n = 1\ndef get(): return n")
    k.run(f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, '')")
    k.run("import torch, mine_state; from mine_state import get; mine_state.n = 2")
    k.run("from torch.utils.data import Dataset; x = torch.ones(3, device='cuda:0')")
    k.run("net = torch.nn.Linear(2, 2).cuda(); adam = torch.optim.Adam(net.parameters())")
    k.run("class Trainer: pass\nt = Trainer(); t.parts = {'opt': []}")
    k.run("t.parts['opt'].append(torch.optim.SGD(net.parameters(), lr=0.1))")
    k.run(step := "net(torch.ones(1, 2).cuda()).sum().backward(); adam.step()")
    k.run("torch.set_num_threads(3); torch.set_default_device('cuda:0')")
    k.run("g = torch.Generator(device='cuda:0'); s, e = torch.cuda.Stream(), torch.cuda.Event()")
    refused = k.run("%gpu 1 --restart --keep g s e", raising=False).shown
    assert "s, e (a stream or event of a GPU)" in refused
    k.run("del s, e")
    refused = k.run("%gpu 1 --restart --keep g", raising=False).shown
    assert "(Generator of torch: a random generator of a GPU that is hidden)" in refused
    shown = restarted(k, "%gpu 1 --restart --keep x,net,adam,t")
    assert "Kept: x, net, adam, t." in shown
    assert "Imported anew: os, sys, torch, mine_state, get, Dataset." in shown
    assert (
        "Module state was reset in mine_state, except for objects that your variables use." in shown
    )
    assert "Not carried over; set again: torch.set_default_device." in shown
    assert "CUDA is started" not in shown
    assert "Cell numbers and In go on; Out is empty." in shown
    assert k.value("(get(), str(x.device), torch.get_num_threads())") == (1, "cpu", 3)
    assert k.value("__import__('ctypes').CDLL('libcuda.so.1').cuCtxGetDevice(None)") == 3
    calls = [
        f"{each}.load_state_dict({each}.state_dict())" for each in ("adam", "t.parts['opt'][0]")
    ]
    assert f"Back: .cuda(), {', '.join(calls)}." in shown
    k.run(f"net.cuda(); adam.load_state_dict(adam.state_dict()); {step}")
    averages = "[adam.state[each]['exp_avg'].device.type for each in net.parameters()]"
    assert k.value(averages) == ["cuda", "cuda"]


def test_random_states_go_on(kept: tuple[Kernel, str]) -> None:
    k, shown = kept
    assert k.value(AS_RANDOM) == (True, True, True, True)
    assert "Moved: cuda:0 → cpu, cuda:1 → cuda:0." in shown
    assert "Without their graph: hidden, loss, losses, sums." in shown
    started = k.value(
        "__import__('gpumagic.cuda.this_process', fromlist=['x']).STATE.init_location()"
    )
    assert "restarted this process and brought variables back" in started


def test_seeds_and_random_states_of_gpus_wait_for_cuda(kernel: Callable[..., Kernel]) -> None:
    """Over a further restart, too; a GPU that was not seen has torch's seed; a later seed wins."""
    k = kernel(env={"CUDA_VISIBLE_DEVICES": "1,2"})
    k.run("import torch; torch.manual_seed(13); torch.cuda.manual_seed_all(14)")
    k.run("torch.cuda.manual_seed(15)")
    assert "CUDA is not started" in restarted(k, "%gpu restart")
    k.run("def seeds(): return [each.initial_seed() for each in torch.cuda.default_generators]")
    k.run("_ = torch.rand(9, device='cuda'); then = torch.cuda.get_rng_state()")
    assert k.value("[torch.initial_seed(), *seeds()]") == [13, 15, 14]
    restarted(k, "%gpu off --restart")
    restarted(k, "%gpu restart")
    k.run("%gpu 0,1")
    asked = "(torch.cuda.init(), seeds(), torch.equal(then, torch.cuda.get_rng_state(1)))"
    assert k.value(asked) == (None, [13, 15], True)
    restarted(k, "%gpu off --restart")
    k.run("%gpu 0,1\ntorch.manual_seed(6); torch.cuda.init()")
    assert k.value("seeds()") == [6, 6]


#: What a cell sets, what it is asked as, and its value.
SETTINGS = [
    ("torch.set_default_dtype(torch.float64)", "str(torch.rand(1).dtype)", "torch.float64"),
    ("torch.set_default_device('cuda:1')", "str(torch.rand(1).device)", "cuda:0"),
    ("torch.autograd.set_grad_enabled(False)", "torch.is_grad_enabled()", False),
    ("torch.use_deterministic_algorithms(True)", "torch.get_deterministic_debug_mode()", 2),
    ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark", True),
    (
        "torch.set_float32_matmul_precision('high')",
        "(torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32)",
        ("high", True),
    ),
    (
        "torch.set_printoptions(precision=2)",
        "str(torch.as_tensor([1 / 3], device='cpu'))[:13]",
        "tensor([0.33]",
    ),
    ("import sys; sys.argv = ['train.py']", "__import__('sys').argv", ["train.py"]),
    ("sys.setrecursionlimit(2345)", "__import__('sys').getrecursionlimit()", 2345),
    ("import decimal; decimal.getcontext().prec = 9", "decimal.getcontext().prec", 9),
    ("np.set_printoptions(precision=2)", "str(np.array([1 / 3]))", "[0.33]"),
    ("_ = np.seterr(divide='raise')", "np.geterr()['divide']", "raise"),
    ("pd.set_option('display.precision', 2)", "pd.get_option('display.precision')", 2),
    ("plt.rcParams['figure.figsize'] = 3, 3", "plt.rcParams['figure.figsize']", [3.0, 3.0]),
    (
        "import warnings; warnings.filterwarnings('error', 'mind .*', UserWarning)",
        "[(how, text.pattern) for how, text, *_ in warnings.filters[:1]]",
        [("error", "mind .*")],
    ),
]


def test_settings_and_files(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """What would change the figures of later cells goes on; what does not is said.

    What is written to memory that is a file's reaches the file, or the restart is refused.
    """
    k, mapped, shared = kernel(), tmp_path / "mapped", tmp_path / "shared"
    k.run("import logging, torch, numpy as np, pandas as pd, matplotlib.pyplot as plt")
    k.run(f"mapped = np.memmap({str(mapped)!r}, 'f4', 'w+', shape=(2, 500)); mapped[:] = 1")
    k.run(f"shared = torch.from_file({str(shared)!r}, shared=True, size=10); part = mapped[1]")
    k.run("torch.ones(1, device='cuda'); mapped")
    refused = k.run("%gpu 1 --restart --keep mapped shared part", raising=False).shown
    for name, file in (("shared", shared), ("part", mapped)):
        assert f"{name} (memory of the file {file})" in refused
    for cell, _, _ in SETTINGS:
        k.run(cell)
    k.run("logging.basicConfig(level=logging.INFO)")
    shown = restarted(k, "%gpu 1 --restart --keep mapped")
    assert "Not carried over; set again: logging." in shown
    assert "Lost: 2 variables (shared, part)." in shown
    k.run("mapped[:] = 7; mapped.flush()")
    assert set(mapped.read_bytes()[-4:]) == {0, 0xE0, 0x40}
    for cell, asked, value in SETTINGS:
        assert k.value(asked) == value, cell


def test_training_goes_on(kept: tuple[Kernel, str]) -> None:
    """And a traceback has the line of the cell that defined the function."""
    k = kept[0]
    k.run("m(torch.ones(2, WIDTH, device='cuda')).sum().backward(); opt.step(); sched.step()")
    k.run("scale = 10")
    assert k.value("f(4)[0]") == 20.0
    shown = re.sub(r"\x1b\[[\d;]*m", "", k.run("f('no')", raising=False).shown)
    assert "return helper(sqrt(x))" in shown


def test_three_restarts(kernel: Callable[..., Kernel]) -> None:
    """What is kept is kept again, from all that the notebook has; debuggers replace os.execve."""
    k = kernel()
    k.run("x = [0]\nclass C:\n    def get(self): return x\ndef f(): return C().get()")
    for number in range(1, 4):
        k.run(f"{FREEZE}\nimport os\ndef wrapped(*_): 1 / 0\nos.execve = os.execv = wrapped")
        shown = k.run(f"%gpu {number} --restart").text
        assert "No variable was lost." in shown
        assert k.value("(x.append(len(x)), x, f() is x)") == (None, [*range(number + 1)], True)
    words = k.value("__import__('sys').orig_argv")
    assert sum("extra_extensions" in word for word in words) == 1
    assert k.value("len(__import__('sys').path) == len({*__import__('sys').path})")


END = "from tests.virtual_gpu import World; World.current().end_context(710); del World"


def test_what_is_on_the_host_survives_a_dead_context(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run(
        "import torch; from torch import nn\nmodel = nn.Linear(2, 2).cuda()\n"
        "optimizer = torch.optim.Adam(model.parameters()); inputs = [torch.ones(2).cuda(1)]\n"
        "stream = torch.cuda.Stream(); loss, history = torch.ones(2), [0.5]; del torch\n"
        "def train(): return model(inputs[0])\nclass Run:\n    def go(self): return train()"
    )
    k.run("import torch; " + END)
    failed = k.run("torch.cuda.synchronize()", raising=False)
    assert "%gpu restart, with the variables on the host" in failed.text
    shown = restarted(k, "%gpu restart")
    assert "Lost: 4 variables (model, optimizer, inputs, stream)." in shown
    why = "(on the GPU, which cannot be read any more)"
    assert f"Not kept: model, optimizer, inputs {why}." in shown
    assert k.value("(Run().go.__name__, train.__name__)") == ("go", "train")
    assert k.value("(loss.tolist(), history, nn.Linear(1, 1).cuda().weight.numel())") == (
        *([1.0, 1.0], [0.5], 1),
    )


def test_a_context_that_dies_without_a_word(kernel: Callable[..., Kernel]) -> None:
    """No cell has failed since: the restart finds out, and goes on with the others."""
    k = kernel()
    k.run("import torch; x = torch.ones(2, device='cuda'); a, b = 1, 2")
    k.run(END)
    shown = k.run("%gpu reset --restart --keep x a").text
    assert "Kept: a." in shown
    assert "Lost: 2 variables (x, b)." in shown
    assert k.value("(a, __import__('torch').ones(1, device='cuda').numel())") == (1, 1)


def test_a_full_gpu(
    kernel: Callable[..., Kernel], child_environment: Callable[..., dict[str, str]]
) -> None:
    """Another job takes the memory while the kernel restarts: nothing is lost."""
    environment = child_environment()
    k, world = kernel(env=environment), World.current(environment)
    k.run("import torch; w = torch.full((100 << 18,), 7.0).cuda(); small = torch.ones(2).cuda()")
    free = k.value("torch.cuda.mem_get_info()[0]")
    world.add_process(0, 43214321, free + (50 << 20))
    shown = k.run("%gpu 0 --restart --keep w small").text
    assert "On the CPU, since cuda:0 has too little free memory for it: 100 MiB." in shown
    assert k.value("(str(w.device), w.sum().item() / (100 << 18), str(small.device))") == (
        *("cpu", 7.0, "cuda:0"),
    )


def test_a_full_disk_is_said_before_anything_is_lost(kernel: Callable[..., Kernel]) -> None:
    """Also with --force; and no child has been ended for a restart that is refused."""
    k = kernel()
    k.run(f"{FREEZE}\nimport shutil, subprocess, numpy as np; array = np.ones(2**20)")
    k.run("child = subprocess.Popen(['sleep', '600'])")
    k.run("old = shutil.disk_usage; shutil.disk_usage = lambda f: old(f)._replace(free=2**20)")
    refused = k.run("%gpu off --restart --force --keep array", raising=False).shown
    assert "they need 0.0 GiB, and it has 0.0 GiB; TMPDIR names another folder" in refused
    assert k.value("(int(array.sum()), child.poll())") == (2**20, None)
    k.run("child.kill()")


def test_what_memory_cannot_hold_is_refused_with_both_figures(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """A control group's limit, of either version; what stays on a GPU needs none."""
    k = kernel()
    k.run("import torch; x = torch.empty(2**29, dtype=torch.uint8, device='cuda:0')")
    for path, limit, used in (
        ("sys/fs/cgroup/job", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        root = tmp_path / limit
        group = root / path
        group.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/job\n1:memory:/job\n")
        (group / limit).write_text(f"{2**30}\n")
        (group / used).write_text(f"{2**29 + 2**28}\n")
        k.run(
            "import gpumagic.system.system_files as files\n"
            f"files.os.environ[files.ROOT] = {str(root)!r}"
        )
        refused = k.run("%gpu off --restart", raising=False).shown
        assert "need 0.5 GiB of memory, and 0.2 GiB are free: nothing was lost" in refused
    assert k.value("x.numel()") == 2**29
    assert "restarted" in k.run("%gpu 0 --restart").text
    k.run("del files.os.environ[files.ROOT]")
    assert "restarted" in k.run("%gpu off --restart").text
    assert k.value("x.numel()") == 2**29
