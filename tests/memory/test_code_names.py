"""Which cells certainly use no GPU memory."""

from __future__ import annotations

import functools
import math
import random
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

NONE = """
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
get_ipython().system('ls')
get_ipython().run_line_magic('gpumem', 'vars')
get_ipython().run_line_magic('gpumem', '')
get_ipython().run_line_magic('gpu', '-p')
get_ipython().run_line_magic('gpu', 'reset --restart --keep all')
get_ipython().run_line_magic('unload_ext', 'gpumagic')
r = get_ipython().run_line_magic('gpumem', 'unpark --wait')
this is no Python
""".strip().splitlines()

MAY = """
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
import torch
import a_module_of_the_users
n.__class__
get_ipython().run_line_magic('gpumem', 'thing + 1')
get_ipython().run_cell_magic('time', '', 'thing')
get_ipython()
def f(): return thing
lambda: thing
import gc; gc.get_objects()
""".strip().splitlines()


@pytest.mark.parametrize("source", NONE)
def test_code_that_uses_no_gpu_memory(source: str) -> None:
    assert uses_no_gpu_memory(source, NAMES, verbs=("vars", "unpark"))


@pytest.mark.parametrize("source", MAY)
def test_code_that_may_use_gpu_memory(source: str) -> None:
    assert not uses_no_gpu_memory(source, NAMES, verbs=("vars", "unpark"))


def test_a_function_of_pythons_own_that_calls_the_users() -> None:
    """What is passed is named, too."""
    assert uses_no_gpu_memory("list(map(plain, [1, 2]))", NAMES, verbs=())
    assert not uses_no_gpu_memory("list(map(uses, [1, 2]))", NAMES, verbs=())
    assert not uses_no_gpu_memory("sorted([1, 2], key=deep)", NAMES, verbs=())
