"""Pickles of variables: what is left out of them, what is noted, what is refused."""

from __future__ import annotations

import io
import pickle
import threading
from types import FunctionType
from typing import Any

import pytest

from gpumagic.restart.variables import constructors
from gpumagic.restart.variables.pickler import VariablePickler, VariableUnpickler
from gpumagic.restart.variables.tables import Tables


def _pickled(value: Any, **options: Any) -> tuple[bytes, Tables, VariablePickler]:
    tables, out = Tables(), io.BytesIO()
    pickler = VariablePickler(
        out,
        tables,
        options.get("namespace", {}),
        options.get("existing", {}),
        *options.get("of", []),
    )
    pickler.dump(value)
    return out.getvalue(), tables, pickler


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_long_byte_strings_are_left_out(kind: Any) -> None:
    long = kind(1 << 20)
    data, tables, _ = _pickled([long, long, kind(5)])
    assert len(data) < 1000
    ((memory, name),) = tables.raw
    assert (memory.nbytes, name) == (1 << 20, kind.__name__)
    found = VariableUnpickler(io.BytesIO(data), lambda key: key).load()
    assert found == [("raw", 0), ("raw", 0), kind(5)]


def test_arrays_and_tensors_are_left_out_once_each() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    array, tensor = np.zeros(3), torch.zeros(3)
    data, tables, _ = _pickled([array, tensor, array, tensor, np.array([{}], dtype=object)])
    assert [id(each) for each in tables.arrays] == [id(array)]
    assert [id(each) for each in tables.tensors] == [id(tensor)]
    found = VariableUnpickler(io.BytesIO(data), lambda key: key).load()
    assert found[:4] == [("array", 0), ("tensor", 0)] * 2
    assert found[4][0] == {}


def test_what_the_new_process_has_is_referred_to() -> None:
    namespace: dict[str, Any] = {"x": 1}
    shell = threading.Lock()  # could not be pickled while it is held
    data, _, pickler = _pickled(
        [namespace, shell], namespace=namespace, existing={id(shell): "0"}, of=[{id(shell)}]
    )
    found = VariableUnpickler(io.BytesIO(data), lambda key: key).load()
    assert found == [("namespace",), ("existing", "0")]
    assert pickler.notes.shared == {id(shell)}


def _defined(source: str) -> tuple[dict[str, Any], Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace, namespace["f"]


def test_a_function_of_the_notebook_has_its_namespace_again() -> None:
    namespace, f = _defined("factor = 3\ndef f(a, *, b=2): return a * factor * b\nf.note = 'mine'")
    data, _, pickler = _pickled(f, namespace=namespace)
    assert pickler.notes.used == {"factor"}
    assert pickler.notes.files == {"<cell>"}
    constructors.namespace = {"factor": 5}
    again: FunctionType = VariableUnpickler(io.BytesIO(data), lambda key: None).load()
    assert again.__globals__ is constructors.namespace
    assert (again(2), again(2, b=1), again.__dict__) == (20, 10, {"note": "mine"})


def test_functions_that_share_a_cell_share_it_again() -> None:
    source = "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up, lambda: n\nf = make()"  # noqa: E501
    namespace, functions = _defined(source)
    data, _, _ = _pickled(functions, namespace=namespace)
    up, read = VariableUnpickler(io.BytesIO(data), lambda key: None).load()
    assert (up(), up(), read()) == (1, 2, 2)


@pytest.mark.parametrize(
    ("source", "omitted"),
    [
        ("import functools\n@functools.cache\ndef f(): return 1\nf()", {"its cached results"}),
        ("try: 1 / 0\nexcept ZeroDivisionError as error: f = error", {"its traceback"}),
        ("f = 1", set()),
    ],
)
def test_what_is_omitted_is_noted(source: str, omitted: set[str]) -> None:
    namespace, f = _defined(source)
    assert _pickled(f, namespace=namespace)[2].notes.omitted == omitted


@pytest.mark.parametrize(
    ("source", "trusted"),
    [
        ("import collections\nf = collections.OrderedDict(a=[1, 'b'])", True),
        ("class C: pass\nf = C()", False),
    ],
)
def test_what_certainly_loads_elsewhere(source: str, trusted: bool) -> None:
    namespace, f = _defined(source)
    assert _pickled(f, namespace=namespace)[2].notes.trusted is trusted


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("f = open('/dev/null')", "an open file"),
        ("import threading\nf = threading.Lock(); f.acquire()", "a lock that is held"),
        ("f = memoryview(b'abc')[1:]", "a memoryview of a part of an object"),
        ("import threading\nf = threading.current_thread()", "a running thread"),
        ("import tempfile\nf = tempfile.TemporaryDirectory()", "cleaned up when the process ends"),
    ],
)
def test_what_is_refused(source: str, said: str) -> None:
    namespace, f = _defined(source)
    try:
        with pytest.raises(pickle.PicklingError, match=said):
            _pickled(f, namespace=namespace)
    finally:
        for end in ("close", "cleanup"):
            getattr(f, end, lambda: None)()
