"""The devices that timed code waited for."""

from __future__ import annotations

import sys
import warnings
from typing import Any
from unittest import mock

import pytest

import gpumagic
from gpumagic.timing.waits import WaitSigns

NAMES = ("__bool__", "cpu", "item", "to")


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's compiler may have been imported by another test."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)


def wrapped(torch: Any) -> dict[str, Any]:
    found = {name: vars(torch.Tensor).get(name) for name in NAMES}
    synchronize = [vars(each)["synchronize"] for each in (torch.cuda.Stream, torch.cuda.Event)]
    return {**found, "synchronize": (*synchronize, torch._C._cuda_synchronize)}


@pytest.mark.usefixtures("without_compiler")
def test_overlapping_scopes_leave_torch_as_it_was(gpu_work: Any) -> None:
    """The one that begins first may end first: threads and tasks do that."""
    torch, first, second = gpu_work.torch, WaitSigns(), WaitSigns()
    before = wrapped(torch)
    first.start({})
    second.start({})
    gpu_work.sleep(0.01)
    first.stop()
    torch.cuda.synchronize()
    second.stop()
    assert wrapped(torch) == before
    assert (first.devices, second.devices) == (set(), {0})
    second.stop()  # again, and without a start
    WaitSigns().stop()
    assert wrapped(torch) == before


def test_an_inner_scope_shows_the_work_of_the_outer_one(gpu_work: Any) -> None:
    with gpumagic.cudatime() as outer:
        gpu_work.sleep(0.02)
        with gpumagic.cudatime():
            pass
    assert outer.gpu.median >= 0.98 * 0.02


def test_the_callers_exception_is_untouched(gpu_work: Any, virtual_gpu: Any) -> None:
    torch, signs = gpu_work.torch, WaitSigns()
    signs.start({})
    try:
        with pytest.raises(TypeError) as raised:
            torch.ones(1, device="cuda").item(1, 2, 3, 4, 5)
    finally:
        signs.stop()
    frames = [entry.path.name for entry in raised.traceback]
    assert frames == ["test_waits.py"]


@pytest.mark.usefixtures("without_compiler")
def test_torch_is_left_alone_while_the_compiler_is_imported(gpu_work: Any) -> None:
    """Its tables of torch's functions are made of torch's own; it comes while code is timed."""
    torch, signs = gpu_work.torch, WaitSigns()
    before, finders = wrapped(torch), [*sys.meta_path]
    signs.start({})
    assert wrapped(torch) != before
    (finder,) = (each for each in sys.meta_path if each not in finders)
    finder.find_spec("torch._dynamo")
    assert wrapped(torch) == before
    assert finder in sys.meta_path, "importlib is iterating over it"
    signs.stop()
    assert wrapped(torch) == before
    assert finders == sys.meta_path


@pytest.mark.parametrize("loaded", [False, True], ids=["", "with the compiler"])
def test_a_wait_is_a_sign_of_work(
    loaded: bool, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where torch's compiler is loaded, as by torch.optim, and restored while it compiles."""
    torch = gpu_work.torch
    if loaded:
        from torch._dynamo.callback import callback_handler as handler

        registered = [*handler.start_callbacks]
    else:
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    before = wrapped(torch)
    for _ in range(2):
        with gpumagic.cudatime() as found:
            gpu_work.sleep(0.02)
            torch.cuda.synchronize()
        assert found.gpu.median >= 0.98 * 0.02
        with gpumagic.cudatime() as found:
            torch.cuda.synchronize()
        assert found.gpu is None
    assert wrapped(torch) == before
    if loaded:
        assert handler.start_callbacks == registered


def test_the_codes_own_modes_and_mocks_see_nothing_of_ours(gpu_work: Any) -> None:
    torch, signs = gpu_work.torch, WaitSigns()
    seen: list[list[str]] = []
    x = torch.ones(2, device="cuda")

    class Calls(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        """Writes down what is called."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[-1].append(function.__name__)
            return function(*args, **(kwargs or {}))

    for starts in (False, True):
        if starts:
            signs.start({})
        try:
            seen.append([])
            with Calls():
                x.cpu(), x[0].item(), bool(x[0]), x.to("cpu"), x.tolist(), x.copy_(torch.ones(2))
            with mock.patch.object(torch.Tensor, "item", autospec=True) as patched:
                patched.return_value = 3
                assert torch.ones(1).item() == 3
        finally:
            signs.stop()
    assert seen[0] == seen[1]
    assert "item" not in vars(torch.Tensor)


def test_warnings_of_waits_name_the_callers_line(gpu_work: Any) -> None:
    torch, signs = gpu_work.torch, WaitSigns()
    x = torch.ones(2, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("warn")
    try:
        signs.start({})
        with pytest.warns(UserWarning, match="synchronizing") as caught:
            x.cpu()
    finally:
        signs.stop()
        torch.cuda.set_sync_debug_mode("default")
    assert [each.filename for each in caught] == [__file__]
