"""What can be kept, found out before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.cuda.process_state import STATE
from gpumagic.restart import variables as keep
from tests.restart.variables.files import create, restored


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


@pytest.mark.own_process
def test_with_a_dead_context_cuda_is_asked_nothing(
    virtual_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    on_gpu, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    event.record()
    module, host = torch.nn.Linear(2, 2).cuda(), torch.nn.Linear(2, 2)

    class Tagged(torch.Tensor):  # type: ignore[misc]
        pass

    namespace = {
        "view": on_gpu[1:],
        "parameter": module.weight,
        "module": module,
        "within": {"deep": [on_gpu]},
        "storage": on_gpu.untyped_storage(),
        "typed": torch.storage.TypedStorage(
            wrap_storage=on_gpu.untyped_storage(), dtype=torch.float32, _internal=True
        ),
        "sparse": torch.sparse_coo_tensor(
            [[0]], [1.0], (2,), device="cuda", check_invariants=False
        ),
        "subclass": on_gpu.as_subclass(Tagged),
        "generator": torch.Generator("cuda"),
        "event": event,
        "place": torch.device("cuda", 0),
        "host": host,
        "pinned": torch.ones(2).pin_memory(),
        "mixed": (1, "x"),
    }
    monkeypatch.setattr(STATE, "dead_context", "a kernel failed")
    virtual_gpu.reset()
    virtual_gpu.end_context(710)
    chosen = keep.plan(namespace, namespace, namespace)
    files = keep.write(chosen, create)
    asked = {name for name in virtual_gpu.all_calls() if name.startswith("cuda")}
    assert asked <= {"cudaGetDeviceCount", "cudaGetDevice"}  # what needs no context
    assert chosen.lost_with_context == [*namespace][:10]
    assert chosen.failures == {}
    found, outcome = restored(files)
    keep.close(files)
    assert outcome.names == ["place", "host", "pinned", "mixed"]
    assert torch.equal(found["host"].weight, host.weight)
    assert found["pinned"].tolist() == [1, 1]


def test_another_librarys_error_on_a_dead_context(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        def __reduce__(self) -> Any:
            raise RuntimeError("cudaErrorAssert: device-side assert triggered")

    found = keep.plan({"a": OnGpu()}, ["a"], {})
    assert list(found.failures) == ["a"]
    monkeypatch.setattr(STATE, "dead_context", "a kernel failed")
    found = keep.plan({"a": OnGpu()}, ["a"], {})
    assert (found.failures, found.lost_with_context) == ({}, ["a"])
