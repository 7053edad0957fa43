"""What wraps torch's functions is out of the way of torch's compiler, of any version."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpumagic.timing import compiler_hooks, waits_by_time
from gpumagic.timing.compiler_hooks import CompilerHooks
from gpumagic.timing.wrapped_functions import WrappedFunctions


class Handler:
    """torch's list of callbacks, which gives them arguments from torch 2.7 on."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.start_callbacks: list[Any] = []
        self.end_callbacks: list[Any] = []
        self.register_start_callback = self.start_callbacks.append
        self.register_end_callback = self.end_callbacks.append
        self.remove_start_callback = self.start_callbacks.remove
        self.remove_end_callback = self.end_callbacks.remove

    def begin(self) -> None:
        for each in self.start_callbacks:
            each(*self.arguments)

    def end(self) -> None:
        for each in self.end_callbacks:
            each(*self.arguments)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("torch._dynamo")]:
        monkeypatch.delitem(sys.modules, name)


def load(monkeypatch: pytest.MonkeyPatch, handler: Any, skipped: list[Any] | None) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    callback: Any = SimpleNamespace(callback_handler=handler)
    frames: Any = (
        SimpleNamespace() if skipped is None else SimpleNamespace(skip_code=skipped.append)
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", callback)
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", frames)


def hooks(calls: list[str]) -> CompilerHooks:
    modules = [waits_by_time, compiler_hooks]
    return CompilerHooks(lambda: calls.append("unwrap"), lambda: calls.append("wrap"), modules)


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("arguments", [(), ("trigger",)], ids=["2.6", "2.15"])
def test_from_the_import_to_the_end(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    finders = [*sys.meta_path]
    one, handler, skipped = hooks(calls), Handler(*arguments), []  # type: ignore[var-annotated]
    one.start()
    assert one.is_attached()
    assert calls == ["unwrap", "wrap"]
    one.find_spec("torch.nn")
    assert len(calls) == 2
    one.find_spec("torch._dynamo")
    assert calls[2:] == ["unwrap"]
    assert not one.is_attached()
    load(monkeypatch, handler, skipped)
    assert not one.is_attached()
    assert one.attach()
    assert one.is_attached()
    assert calls[2:] == ["unwrap", "unwrap", "wrap"]
    calls.clear()
    # With methods and nested functions, and nothing that the modules have imported.
    codes = {each.co_qualname if sys.version_info >= (3, 11) else each.co_name for each in skipped}
    assert any(name.endswith("add") for name in codes)
    assert any(name.endswith("<genexpr>") for name in codes)
    files = {code.co_filename for code in skipped}
    assert files == {waits_by_time.__file__, compiler_hooks.__file__}
    # Compilations may be nested: of a backward pass, say.
    handler.begin(), handler.begin(), handler.end()  # type: ignore[func-returns-value]
    assert calls == ["unwrap", "unwrap"]
    handler.end()
    assert calls == ["unwrap", "unwrap", "wrap"]
    handler.start_callbacks.clear()  # torch._dynamo.reset()
    handler.end_callbacks.clear()
    assert not one.is_attached()
    assert one.attach()
    assert len(handler.end_callbacks) == 1
    one.find_spec("torch._dynamo")  # imported once more
    assert not one.is_attached()
    assert one.attach()
    assert len(handler.start_callbacks) == len(handler.end_callbacks) == 1
    one.stop()
    assert handler.start_callbacks == handler.end_callbacks == []
    assert sys.meta_path == finders


@pytest.mark.usefixtures("without_compiler")
def test_an_error_of_ours_does_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fails = True

    def wrap() -> None:
        calls.append("wrap")
        if fails:
            raise TypeError("immutable")

    handler = Handler()
    load(monkeypatch, handler, [])
    one = CompilerHooks(lambda: calls.append("unwrap"), wrap, [])
    finders = [*sys.meta_path]
    with pytest.raises(TypeError):
        one.start()
    assert sys.meta_path == finders
    assert handler.start_callbacks == []
    fails = False
    one.start()
    fails = True
    calls.clear()
    handler.begin()
    handler.end()
    one.stop()
    assert calls == ["unwrap", "wrap", "unwrap", "unwrap"]


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(("handler", "skipped"), [(None, []), (Handler(), None)])
def test_another_version_of_torch(
    handler: Any, skipped: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may be wrapped while its compiler is loaded."""
    load(monkeypatch, handler, skipped)
    calls: list[str] = []
    one = hooks(calls)
    one.start()
    assert not one.is_attached()
    assert not one.attach()
    assert not one.is_attached()
    one.stop()
    assert "wrap" not in calls


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("ends_first", [0, 1])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_is_wrapped_twice(
    is_loaded: bool, ends_first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes or ends first, the compiler sees the function itself, and it is left so."""

    class Tensor:
        def item(self) -> list[int]:
            return []

    def caller(number: int, wrapped: WrappedFunctions) -> CompilerHooks:
        def wrap() -> None:
            if not wrapped.are_any:
                function = Tensor.__dict__["item"]
                call = function.__get__
                wrapped.wrap(Tensor, "item", lambda self: [*call(self, Tensor)(), number])

        return CompilerHooks(wrapped.restore, wrap, [])

    own, handler = Tensor.__dict__["item"], Handler()
    if is_loaded:
        load(monkeypatch, handler, [])
    both = [caller(i, WrappedFunctions()) for i in (0, 1)]
    for each in both:
        each.start()
    assert Tensor().item() == [0, 1]
    if not is_loaded:
        both[1].find_spec("torch._dynamo"), both[0].find_spec("torch._dynamo")
        assert Tensor.__dict__["item"] is own
        load(monkeypatch, handler, [])
        assert both[1].attach()
        assert Tensor().item() == [1]
        assert both[0].attach()
        assert Tensor().item() == [0, 1]
    handler.begin(), handler.begin()  # type: ignore[func-returns-value]
    assert Tensor.__dict__["item"] is own
    handler.end()
    assert Tensor.__dict__["item"] is own
    handler.end()
    assert Tensor().item() == [0, 1]
    both[ends_first].stop()
    assert Tensor().item() == [1 - ends_first]
    both[1 - ends_first].stop()
    assert Tensor.__dict__["item"] is own
    assert handler.start_callbacks == handler.end_callbacks == []
