"""Calls that wait for the GPU are named, and timed; others are left alone."""

from __future__ import annotations

import functools
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from gpumagic.timing import synchronizations
from gpumagic.timing.synchronizations import SynchronizationWatch
from gpumagic.timing.waiting_calls import ASSIGNMENT, INDEX, MASK, PAGEABLE


@pytest.fixture
def watch(gpu_work: Any) -> SynchronizationWatch:
    # What no kernel of the virtual GPU writes, as the number of values in a mask, reads as 0 in new
    # memory, and as anything where an earlier test has copied to.
    gpu_work.torch.cuda.empty_cache()
    return SynchronizationWatch()


def watching(test: Callable[..., None]) -> Callable[..., None]:
    """Watch while the test runs; not from its fixture on, after which pytest resets warnings."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        fixtures["watch"].start()
        try:
            test(**fixtures)
        finally:
            fixtures["watch"].stop()

    return run


WAITING: dict[str, Callable[[Any, Any], Any]] = {
    ".item()": lambda t, x: x[0].item(),
    ".tolist()": lambda t, x: x.tolist(),
    "bool(tensor)": lambda t, x: bool(x[0]),
    "int(tensor)": lambda t, x: int(x[0]),
    "float(tensor)": lambda t, x: float(x[0]),
    "tensor as an index": lambda t, x: [1, 2][x.view(t.int32)[0]],
    ".is_nonzero()": lambda t, x: x[0].is_nonzero(),
    ".cpu()": lambda t, x: x.cpu(),
    '.to("cpu")': lambda t, x: x.to("cpu"),
    ".numpy()": lambda t, x: x.numpy(force=True),
    "UntypedStorage.cpu()": lambda t, x: x.untyped_storage().cpu(),
    ".nonzero()": lambda t, x: x.nonzero(),
    ".masked_select()": lambda t, x: x.masked_select(x > 0),
    "blocking copy by .to()": lambda t, x: t.ones(4).to("cuda"),
    "blocking copy by .cuda()": lambda t, x: t.ones(4).cuda(),
    "blocking copy by .copy_()": lambda t, x: x.copy_(t.ones(4)),
    "blocking copy by an assignment": lambda t, x: x.__setitem__(slice(0, 2), t.ones(2)),
    "torch.cuda.synchronize()": lambda t, x: t.cuda.synchronize(),
    "torch.accelerator.synchronize()": lambda t, x: t.accelerator.synchronize(),
    "Stream.synchronize()": lambda t, x: t.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("call", WAITING)
@watching
def test_calls_are_named(call: str, watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    x = torch.zeros(4).to("cuda")  # no kernel of the virtual GPU writes zeros
    torch.cuda.synchronize()
    watch.log.clear()
    gpu_work.sleep(0.02)
    WAITING[call](torch, x)
    (found,) = watch.log
    assert found[0] == call
    assert found[1] == pytest.approx(0.02, rel=0.02)


@watching
def test_an_assignment_to_the_cpu_waits(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    x, host = torch.zeros(4, device="cuda"), torch.zeros(4)
    for target, index, value in ((host, slice(None), x), (host, 0, x[0])):
        watch.log.clear()
        gpu_work.sleep(0.02)
        target[index] = value
        ((call, seconds),) = watch.log
        assert call == "blocking copy by an assignment"
        assert seconds == pytest.approx(0.02, rel=0.02)
    for target, index, value in ((x, 0, host[0]), (x, slice(0, 2), host[:2])):
        watch.log.clear()
        target[index] = value
        assert [call for call, _ in watch.log] == ["blocking copy by an assignment"]


def test_an_interrupted_wait_is_counted(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python interrupts when the wait is over; until then the host has waited."""
    torch = gpu_work.torch
    item = torch.Tensor.item

    def interrupted(tensor: Any) -> None:
        item(tensor)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.Tensor, "item", interrupted)
    x = torch.zeros(4, device="cuda")
    watch = SynchronizationWatch()
    watch.start()
    try:
        gpu_work.sleep(0.02)
        with pytest.raises(KeyboardInterrupt):
            x[0].item()
        with pytest.raises(TypeError):
            x[0].item("wrong")
    finally:
        watch.stop()
    ((call, seconds),) = watch.log
    assert call == ".item()"
    assert seconds == pytest.approx(0.02, rel=0.02)


@watching
def test_masks(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    x = torch.zeros(4, device="cuda")
    mask = torch.zeros(4, dtype=torch.bool, device="cuda")
    for use in (
        lambda: x[mask],
        lambda: x[mask, ...],
        # The virtual GPU counts none in the mask.
        lambda: x.__setitem__(mask, torch.zeros(0, device="cuda")),
    ):
        watch.log.clear()
        use()
        assert [call for call, _ in watch.log] == [MASK]
    watch.log.clear()
    x[mask] = 0.0
    assert watch.log == []


@watching
def test_an_index_on_the_cpu_is_copied(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    x, value = torch.zeros(4, device="cuda"), torch.zeros(0, device="cuda")
    mask, places = torch.zeros(4, dtype=torch.bool), torch.tensor([0, 1])
    one = torch.tensor(1)
    for use in (
        lambda: x[mask],
        lambda: x[places],
        lambda: x[[0, 1]],
        lambda: x.__setitem__(mask, value),
        lambda: x.__setitem__(places, 1.0),
    ):
        watch.log.clear()
        use()
        assert [call for call, _ in watch.log] == [INDEX]
    watch.log.clear()
    x[one]
    assert watch.log == []


def test_building_a_list_is_no_wait(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = gpu_work.torch
    build, devices = torch.Tensor.tolist, []

    def build_slowly(tensor: Any) -> Any:
        devices.append(tensor.device.type)
        time.sleep(0.05)
        return build(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", build_slowly)
    watch = SynchronizationWatch()
    watch.start()
    try:
        x = torch.zeros(4, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        watch.log.clear()
        gpu_work.sleep(0.02)
        values = x.tolist()
        one = x[0].tolist()
    finally:
        watch.stop()
    assert (len(values), type(one), devices) == (4, float, ["cpu", "cpu"])
    (call, seconds), _ = watch.log
    assert (call, seconds) == (".tolist()", pytest.approx(0.02, rel=0.02))


@watching
def test_events(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    event = torch.cuda.Event()
    gpu_work.sleep(0.02)
    event.record()
    event.synchronize()
    ((call, seconds),) = watch.log
    assert (call, seconds) == ("Event.synchronize()", pytest.approx(0.02, rel=0.02))


def test_small_copies_from_pageable_memory_wait_if_they_take_long(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of more than 64 KB, and to the host, always."""
    torch = gpu_work.torch
    duration, now = [0.0], [0.0]

    def clock() -> float:
        now[0] += duration[0]
        return now[0]

    monkeypatch.setattr(synchronizations, "perf_counter", clock)
    watch = SynchronizationWatch()
    watch.start()
    try:
        for size in (16 << 10, (16 << 10) + 1):
            x, pageable = torch.zeros(size, device="cuda"), torch.ones(size)
            uses: tuple[Callable[[], Any], ...] = (
                lambda x=x, pageable=pageable: pageable.copy_(x, True),
                lambda pageable=pageable: pageable.to("cuda", non_blocking=True),
                lambda pageable=pageable: pageable.cuda(non_blocking=True),
                lambda x=x, pageable=pageable: x.copy_(pageable, non_blocking=True),
            )
            for i, use in enumerate(uses):
                for duration[0] in (49e-6, 51e-6):
                    watch.log.clear()
                    use()
                    waits = i == 0 or size > 16 << 10 or duration[0] > 50e-6
                    assert [call for call, _ in watch.log] == [PAGEABLE] * waits
    finally:
        watch.stop()


@watching
def test_calls_that_do_not_wait(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    x, on_cpu, pinned = torch.zeros(4, device="cuda"), torch.ones(4), torch.ones(4).pin_memory()
    watch.log.clear()
    assert on_cpu[0].item() == 1
    assert bool(on_cpu[0])
    assert on_cpu[on_cpu > 0].shape == (4,)
    x[0], x[1:3], x[x.long()]
    x[0] = 1.0
    x.to("cuda"), x.to(torch.float64), on_cpu.to("cpu"), on_cpu.cpu()
    x.cpu if False else x.to("cpu", non_blocking=True)
    pinned.to("cuda", non_blocking=True)
    x.copy_(pinned, non_blocking=True)
    x.copy_(x + 1)
    assert watch.log == []


@watching
def test_only_the_cells_thread_waits(watch: SynchronizationWatch, gpu_work: Any) -> None:
    x = gpu_work.torch.zeros(4, device="cuda")
    watch.log.clear()
    thread = threading.Thread(target=x.cpu)
    thread.start()
    thread.join()
    assert watch.log == []
    x.cpu()
    assert len(watch.log) == 1


@watching
def test_a_subclass_runs_none_of_its_code(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    seen: list[Any] = []

    class Mine(torch.Tensor):  # type: ignore[misc,name-defined]
        @classmethod
        def __torch_function__(cls, function: Any, *rest: Any, **named: Any) -> Any:
            seen.append(function)
            return super().__torch_function__(function, *rest, **named)

    x = torch.zeros(1, device="cuda").as_subclass(Mine)
    watch.stop()
    seen.clear()
    x.item()
    without = [*seen]
    watch.start()
    seen.clear()
    x.item()
    assert seen == without == [torch._C.TensorBase.item]


MODES = """\
with Seeing():
    x.sum().item(), x.cpu(), x.tolist(), x[mask], x[0], x.to("cpu"), host.cuda(), bool(x[0])
    host.cuda(non_blocking=True), x.copy_(host), x.__setitem__(mask, x[:0])
    repr(x), str(x[0]), repr(mine)
    mine.item(), x[mine_mask], x.copy_(mine), mine.copy_(host), mine.tolist()
with Dispatching():
    x.tolist(), x.cpu(), x[0].item(), repr(x)
"""


def as_text(tensor: Any, *, tensor_contents: Any = None) -> str:
    """Return a text without values: the virtual GPU does not compute what torch's own asks for."""
    return "tensor"


def test_the_text_of_a_tensor_waits_for_what_was_queued_before(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for what its values take to be formatted."""
    torch = gpu_work.torch
    now = time.perf_counter

    def slowly(tensor: Any, *, tensor_contents: Any = None) -> str:
        end = now() + 0.02
        while now() < end:
            pass
        return tensor_contents or "text"

    monkeypatch.setattr(torch.Tensor, "__repr__", slowly)
    x, empty = torch.zeros(4, device="cuda"), torch.zeros(0, device="cuda")
    torch.cuda.synchronize()
    watch = SynchronizationWatch()
    watch.start()
    try:
        gpu_work.sleep(0.02)
        assert f"{x}" == "text"
        ((call, seconds),) = watch.log
        assert (call, seconds) == ("tensor as text", pytest.approx(0.02, rel=0.02))
        watch.log.clear()
        assert [repr(empty), repr(torch.zeros(4))] == ["text"] * 2
        assert watch.log == []
        assert x.__repr__(tensor_contents="mine") == "mine"
    finally:
        watch.stop()


def test_modes_of_the_cell_see_the_same_calls(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = gpu_work.torch
    monkeypatch.setattr(torch.Tensor, "__repr__", as_text)
    torch.cuda.empty_cache()  # see `watch`
    seen: list[str] = []

    def see(function: Any) -> None:
        seen.append(torch.overrides.resolve_name(function) or str(function))

    class Seeing(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            see(func)
            return func(*args, **(kwargs or {}))

    class Dispatching(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Mine(torch.Tensor):  # type: ignore[misc,name-defined]
        @classmethod
        def __torch_function__(cls, function: Any, *rest: Any, **named: Any) -> Any:
            see(function)
            return super().__torch_function__(function, *rest, **named)

    # Zeros alone: memory that is used again must not look like the size of a result.
    x, host = torch.zeros(1, device="cuda"), torch.zeros(1)
    mask = torch.zeros(1, dtype=torch.bool, device="cuda")
    names = {"x": x, "host": host, "mask": mask, "Seeing": Seeing, "Dispatching": Dispatching}
    names |= {"mine": x.as_subclass(Mine), "mine_mask": mask.as_subclass(Mine)}
    exec(MODES, names)
    without = [*seen]
    seen.clear()
    watch = SynchronizationWatch()
    watch.start()
    try:
        exec(MODES, names)
    finally:
        watch.stop()
    assert seen == without
    assert len(without) > 20
    assert len(watch.log) >= 10


DEBUG = """\
x.sum().item()
for i in range(3):
    x.cpu(), x.tolist()
    x.sum().item()
x[x > 0]
host.cuda()
repr(x)
"""


def test_torchs_warnings_name_the_lines_of_the_cell(
    gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, as Python shows them; with an error in place of them, its traceback is torch's."""
    torch = gpu_work.torch
    torch.cuda.empty_cache()  # see `watch`
    shown: list[tuple[str, int]] = []

    def show(message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
        shown.append((filename, line))

    code = compile(DEBUG, "<cell>", "exec")
    monkeypatch.setattr(torch.Tensor, "__repr__", as_text)
    frames: list[list[str]] = []

    def run(watch: SynchronizationWatch | None) -> list[tuple[str, int]]:
        shown.clear()
        x = torch.zeros(4, device="cuda")
        names = {"x": x, "host": torch.ones(4), "__name__": "cell"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the mode itself
            torch.cuda.set_sync_debug_mode("warn")
            if watch is not None:
                watch.start()
            try:
                warnings.simplefilter("default")
                monkeypatch.setattr(warnings, "showwarning", show)
                exec(code, names)
                torch.cuda.set_sync_debug_mode("error")
                try:  # not by pytest, whose record would keep the memory
                    x.cpu()
                except RuntimeError as error:
                    steps = traceback.walk_tb(error.__traceback__)
                    frames.append([frame.f_code.co_name for frame, _ in steps])
            finally:
                torch.cuda.set_sync_debug_mode("default")
                if watch is not None:
                    watch.stop()
        return [*shown]

    expected, watch = run(None), SynchronizationWatch()
    of_cell = {line for name, line in expected if name == "<cell>"}
    assert {1, 3, 4, 5, 6} >= of_cell >= {1, 3, 4}
    assert run(watch) == expected
    assert frames[0] == frames[1] == ["run"]
    assert len(watch.log) >= 11


@watching
def test_an_exception_shows_no_frame_of_ours(
    watch: SynchronizationWatch, gpu_work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gpu_work.torch.zeros(2, device="cuda")
    with pytest.raises(RuntimeError) as raised:
        x.item()
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert len(frames) == 1

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(watch, "_is_watched", interrupted)
        with pytest.raises(KeyboardInterrupt) as before:
            x[0].item()  # before torch's function is called
    assert len([*traceback.walk_tb(before.value.__traceback__)]) == 3
    watch.hide(before.value)
    left = [frame.f_code for frame, _ in traceback.walk_tb(before.value.__traceback__)]
    assert left == [frames[0].f_code, interrupted.__code__]
    watch.log.clear()
    x[0].item()  # and it goes on counting
    assert len(watch.log) == 1


@watching
def test_what_the_user_wraps_meanwhile_stays(watch: SynchronizationWatch, gpu_work: Any) -> None:
    torch = gpu_work.torch
    ours = vars(torch.Tensor)["item"]
    torch.Tensor.item = theirs = lambda tensor: ours.__get__(tensor)()
    try:
        watch.stop()
        assert torch.Tensor.item is theirs
        watch.log.clear()
        assert isinstance(torch.zeros(1, device="cuda").item(), float)
        assert watch.log == []
    finally:
        del torch.Tensor.item
    assert "item" not in vars(torch.Tensor)


def test_torchs_functions_are_restored(gpu_work: Any) -> None:
    torch = gpu_work.torch
    owners = (
        *(torch.Tensor, torch._C, torch.cuda.Event, torch.cuda.Stream, torch.UntypedStorage),
        *_modules(torch),
    )
    before, finders = [{**vars(owner)} for owner in owners], [*sys.meta_path]
    watch = SynchronizationWatch()
    watch.start()
    assert [{**vars(owner)} for owner in owners] != before
    # The compiler's tables of torch's functions are made of torch's own.
    (finder,) = (each for each in sys.meta_path if each not in finders)
    finder.find_spec("torch._dynamo")
    assert [{**vars(owner)} for owner in owners] == before
    watch.update()
    assert "item" in vars(torch.Tensor)
    watch.stop()
    assert [{**vars(owner)} for owner in owners] == before
    assert [*sys.meta_path] == finders


def _modules(torch: Any) -> tuple[Any, ...]:
    return torch, torch.cuda, torch.linalg, torch.nn.functional


def test_functions_of_modules_stay_torchs_own(gpu_work: Any) -> None:
    """The cell's variables may refer to them, and tables of torch's do."""
    torch = gpu_work.torch
    before = [{**vars(module)} for module in _modules(torch)]
    watch = SynchronizationWatch()
    watch.start()
    try:
        assert [{**vars(module)} for module in _modules(torch)] == before
        assert "item" in vars(torch.Tensor)
    finally:
        watch.stop()


@watching
def test_functions_whose_results_size_is_on_the_gpu(
    watch: SynchronizationWatch, gpu_work: Any
) -> None:
    torch = gpu_work.torch
    x = torch.zeros(4).to("cuda")
    places = torch.zeros(4, dtype=torch.long).to("cuda")  # kernels would compute nothing
    for call, use in (
        (".bincount()", places.bincount),
        (".unique_consecutive()", x.unique_consecutive),
        (".to_sparse()", x.to_sparse),
        ("blocking copy by .new_tensor()", lambda: x.new_tensor([0.0])),
        (".type() on the CPU", lambda: x.type(torch.FloatTensor)),
        ("tensor as an index", lambda: x[places[0]]),
        ("tensor as an index", lambda: x.__setitem__(places[0], 1.0)),
        ("tensor as an index", lambda: x[places[0] :]),
        ("tensor as an index", lambda: x[..., : places[0]]),
        ("tensor as an index", lambda: x.__setitem__(slice(places[0], None), 1.0)),
        (ASSIGNMENT, lambda: x.__setitem__(0, torch.tensor(0.0))),
        (ASSIGNMENT, lambda: torch.zeros(4).__setitem__(slice(None), x)),
    ):
        watch.log.clear()
        use()
        assert [found for found, _ in watch.log] == [call]
    watch.log.clear()
    x[places] = torch.tensor(1.0, device="cuda")
    assert watch.log == []


def test_repeats_that_are_on_the_gpu(gpu_work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of torch check the repeats by a kernel, which the virtual GPU does not run."""
    torch = gpu_work.torch
    monkeypatch.setattr(torch.Tensor, "repeat_interleave", lambda tensor, *_, **named: tensor)
    x = torch.zeros(4, device="cuda")
    watch = SynchronizationWatch()
    watch.start()
    try:
        x.repeat_interleave(x.long(), output_size=4)
        x.repeat_interleave(2)
        assert watch.log == []
        x.repeat_interleave(x.long())
        x.repeat_interleave(repeats=x.long())
    finally:
        watch.stop()
    assert [call for call, _ in watch.log] == [".repeat_interleave()"] * 2


STRICT = """\
with warnings.catch_warnings():
    warnings.simplefilter("error")
    x.sum().item(), x[x > 0], torch.nonzero(x), x.unique_consecutive()
warnings.filters.insert(0, ("error", None, Warning, None, 0))
x.sum().item(), torch.unique_consecutive(x)
with warnings.catch_warnings(record=True) as shown:
    warnings.simplefilter("always")
    x.sum().item(), torch.unique_consecutive(x)
mode, filters = torch.cuda.get_sync_debug_mode(), [*warnings.filters]
"""


def test_the_cell_gets_no_warning(gpu_work: Any) -> None:
    """Whatever its filters of warnings are; these and torch's debug mode are as without us."""
    torch = gpu_work.torch
    torch.cuda.empty_cache()  # see `watch`
    x = torch.zeros(4, device="cuda")
    names = {"x": x, "torch": torch, "warnings": warnings}
    before = [*warnings.filters]
    watch = SynchronizationWatch()
    watch.start()
    try:
        exec(STRICT, names)
    finally:
        watch.stop()
        del warnings.filters[0]  # type: ignore[attr-defined]
    assert names["shown"] == []
    assert names["mode"] == 0
    assert names["filters"][1:] == before == [*warnings.filters]
    calls = [call for call, _ in watch.log]
    assert calls.count(".item()") == 3
