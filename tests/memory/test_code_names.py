"""Which cells certainly use no GPU memory."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.memory.code_names import uses_no_gpu_memory


class Thing:
    """An object of the user's."""


NAMES: dict[str, Any] = {
    "n": 3,
    "names": {"a": [1, "b", (2.0, None)]},
    "mixed": [1, [Thing()]],
    "thing": Thing(),
    "math": math,
    "random": random,
    "sqrt": math.sqrt,
    "part": functools.partial(print, 1),
    "get_ipython": lambda: None,
}
exec(
    "def plain(a):\n    return inner(a) + n\ndef inner(a):\n    return [b for b in range(a)]", NAMES
)
exec("def uses():\n    return thing.x\ndef deep():\n    return [uses() for _ in range(3)]", NAMES)
exec("def default(a=thing):\n    return a\ndef closing(a):\n    return lambda: a\n", NAMES)
exec("closed = closing(thing)", NAMES)

NONE = r"""
n + 1
x = [i ** 2 for i in range(n)]
print(names['a'], len(names), sqrt(2))
import os; os.getcwd()
plain(4)
def f(a): return a + n
class C: pass
del n
for i in range(3): print(f'{i}')
unknown + 1
def f(): return thing
def f(a=thing, *, b=thing): return a
async def f(): await thing
f = lambda: thing
alias = thing
class C:\n  @property\n  def a(self): return thing\n  @a.setter\n  def a(self, v): thing.x = v
class C:\n  x: int = 3\n  def a(self) -> None: thing()
import gc
import gc, pdb as debugger
type(thing)
print(type(thing), type(thing).__name__)
print(f'{type(mixed)} {len(mixed)}', len(mixed), id(thing))
isinstance(n, int) or isinstance(thing, int)
thing is None or thing is mixed
del thing
uses
print(uses, math)
from functools import cache\n@cache\ndef f(): return thing
get_ipython().run_line_magic('pinfo', 'uses')
get_ipython().run_line_magic('pinfo2', 'math.sqrt')
get_ipython().run_line_magic('pinfo', '%time')
get_ipython().run_cell_magic('writefile', 'a.py', 'print(thing)')
get_ipython().run_cell_magic('bash', '', 'echo $thing')
get_ipython().run_line_magic('history', '')
get_ipython().system('echo {n + 1} $n $HOME {print $1} {')
get_ipython().system('ls')
get_ipython().run_line_magic('gpumem', 'vars')
get_ipython().run_line_magic('gpumem', '')
get_ipython().run_line_magic('gpu', '-p')
get_ipython().run_line_magic('gpu', 'reset --restart --keep all')
get_ipython().run_line_magic('unload_ext', 'gpumagic')
r = get_ipython().run_line_magic('gpumem', 'unpark --wait')
this is no Python
""".strip().splitlines()

MAY = r"""
thing
mixed
print(thing)
thing.x
uses()
deep()
default()
closed()
part()
eval('n')
globals()
import a_module_of_the_users
n.__class__
get_ipython().run_line_magic('gpumem', 'thing + 1')
get_ipython().run_cell_magic('time', '', 'thing')
get_ipython()
lambda: thing
def f(): return thing\nf()
def inner(a): return thing\nplain(3)
def f(a=thing): return a\nf()
f = lambda: thing\nf()
alias = thing\nalias.x
alias = print\nalias(thing)
alias = type\nalias(thing)()
alias = uses\nalias()
def f(): return g()\ndef g(): return thing\nprint(f())
class C:\n  def a(self): return thing\nC().a()
class C:\n  x = thing.x
class C:\n  x: thing.x = 3
class C(thing): pass
class C(metaclass=thing): pass
@thing\ndef f(): return 3
@list\n@thing.x\ndef f(): return 3
def f(a=thing.x): return a
def f(a: thing.x): return a
def f(a) -> thing[3]: return a
def f():\n  import torch\nf()
if n:\n  def f(): return thing\n  f()
type(thing)()
type(thing).x
[type(thing)]
x = type(thing)\nx()
type = thing\nprint(type(n))
def f(print): print(thing)\nf(n)
len(thing)
print(thing, type(thing))
f'{thing}'
f'{uses:>{thing}}'
isinstance(thing, thing)
isinstance(thing.x, int)
thing.x is None
thing == None
from gc import get_objects\nget_objects()
import gc as g\ng.get_objects()
get_ipython().run_line_magic('pinfo', 'thing')
get_ipython().run_line_magic('pinfo', 'thing.x')
get_ipython().run_line_magic('whos', '')
get_ipython().run_line_magic('env', '{thing}')
get_ipython().run_line_magic('env', '$thing')
get_ipython().run_line_magic('gpumem', 'vars {thing.x}')
get_ipython().system('echo {n} {n:{thing}}')
get_ipython().run_cell_magic('writefile', '{thing}', '')
get_ipython().run_cell_magic('script', '$thing.x', '')
alias = thing\nget_ipython().system('echo $alias')
import gc; gc.get_objects()
""".strip().splitlines()


def none(source: str, names: dict[str, Any] = NAMES) -> bool:
    source = source.replace("\\n", "\n")
    return uses_no_gpu_memory(source, names, verbs=("vars", "unpark"))


@pytest.mark.parametrize("source", NONE)
def test_code_that_uses_no_gpu_memory(source: str) -> None:
    assert none(source)


@pytest.mark.parametrize("source", MAY)
def test_code_that_may_use_gpu_memory(source: str) -> None:
    assert not none(source)


def test_a_function_of_pythons_own_that_calls_the_users() -> None:
    """What is passed is named, too."""
    assert uses_no_gpu_memory("list(map(plain, [1, 2]))", NAMES, verbs=())
    assert not uses_no_gpu_memory("list(map(uses, [1, 2]))", NAMES, verbs=())
    assert not uses_no_gpu_memory("sorted([1, 2], key=deep)", NAMES, verbs=())


class Described:
    def __repr__(self) -> str:
        raise AssertionError("the user's code was run")


TORCH = """
x.shape
x.shape[0] * x.ndim, x.size(0), x.numel() * x.element_size(), x.device.type == 'cuda'
print(x.shape, x.dtype, f'{x.nbytes} of {x.device}', w.requires_grad)
len(x), len(frame), frame.shape, frame.empty
x.dtype == torch.float32 and torch.__version__
isinstance(x, torch.Tensor)
y = x
host.shape
host + 1; host.mean().item(); print(host[:3], host.sum())
array.mean()
model
print(model)
type(model)
get_ipython().run_line_magic('pinfo', 'model')
get_ipython().run_line_magic('pinfo', 'nn.Module')
class Net(nn.Module):\\n  def forward(self, a: torch.Tensor) -> torch.Tensor | None: return x + a
import torch.nn as layers\\nclass Net(layers.Module): pass
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset\\nclass Data(Dataset):\\n  def __len__(self): return len(x)
@torch.no_grad()\\ndef evaluate(): return model(x)
""".strip().splitlines()

MAY_TORCH = """
x
x.sum()
x[0]
x.data_ptr()
x.T.shape
x.size(x)
print(x)
print(x.shape, x)
y = x\\ny.sum()
sub.shape
len(sub)
x.shape = 3
host.cuda()
host.to('cuda')
led
led.shape, led + 1
torch.zeros(3)
torch.cuda.synchronize()
model(3)
model.weight
y = model\\ny(3)
own
get_ipython().run_line_magic('pinfo', 'x')
get_ipython().run_line_magic('pinfo', 'own')
class Net(nn.Module):\\n  def forward(self): return x\\nNet()
class Net(nn.Module):\\n  y = x + 1
class Net(Described): pass\\nNet(x)
import torch\\ntorch.ones(3)
import torch as t\\nt.ones(3)
from torch import ones\\nones(3)
@torch.compile\\ndef f(): return x
@torch.no_grad()\\ndef evaluate(): return model(x)\\nevaluate()
objects
""".strip().splitlines()


@pytest.fixture
def with_torch(torch: Any) -> Iterator[dict[str, Any]]:
    """Tensors on the device and on the host, modules, and what is not torch's own."""
    import numpy
    import pandas

    class Tensor(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("the user's code was run")

    class Model(torch.nn.Module):  # type: ignore[misc]
        def extra_repr(self) -> str:
            raise AssertionError("the user's code was run")

    x = torch.ones(3, 4).to("cuda")
    host = torch.ones(3)
    led = (x.requires_grad_().sum().cpu() * 2).sum()  # its graph leads to the device
    column = numpy.array(["b", None], dtype=object)
    column[1] = x  # NumPy asks a tensor in a list for its values
    names = {
        **{"x": x, "w": torch.nn.Parameter(x.detach()), "host": host, "led": led},
        **{"sub": torch.ones(3).as_subclass(Tensor), "array": numpy.ones(3)},
        **{"frame": pandas.DataFrame({"a": column}), "objects": numpy.array([Described()])},
        "model": torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).cuda(),
        "own": torch.nn.Sequential(Model()),
        **{"torch": torch, "nn": torch.nn, "Described": Described, "get_ipython": lambda: None},
    }
    del x, led, column
    yield names
    names.clear()


def test_what_a_parked_tensor_tells_of_itself(with_torch: dict[str, Any]) -> None:
    """And the definition of what would use it; in one process for all cases."""
    assert [each for each in TORCH if not none(each, with_torch)] == []
    assert [each for each in MAY_TORCH if none(each, with_torch)] == []
    with_torch["print"] = with_torch["type"] = Described()
    for each in ("print(n)", "type(x)", "print(model)", "[type(x).__name__]"):
        assert not none(each, with_torch)
