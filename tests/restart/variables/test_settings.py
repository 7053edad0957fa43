"""Process-wide settings of Python and of libraries: captured, changed, restored."""

from __future__ import annotations

import copy
import decimal
import gc
import logging
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.restart.variables import library_settings, python_settings


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    """Restore what the tests change, by the code that they test."""
    captured = python_settings.capture()
    with decimal.localcontext():
        yield
    python_settings.restore(captured)


@pytest.mark.parametrize(
    ("get", "change"),
    [
        (sys.getrecursionlimit, lambda: sys.setrecursionlimit(5000)),
        (gc.isenabled, gc.disable),
        (gc.get_threshold, lambda: gc.set_threshold(9, 8, 7)),
        (socket.getdefaulttimeout, lambda: socket.setdefaulttimeout(3.0)),
        (lambda: decimal.getcontext().prec, lambda: setattr(decimal.getcontext(), "prec", 7)),
        (lambda: logging.root.manager.disable, lambda: logging.disable(logging.INFO)),
        (lambda: logging.getLogger("of.mine").level, logging.getLogger("of.mine").setLevel),
    ],
)
def test_settings_of_python(get: Callable[[], Any], change: Callable[..., Any]) -> None:
    before = get()
    change(5) if change == logging.getLogger("of.mine").setLevel else change()
    changed, captured = copy.copy(get()), python_settings.capture()
    assert changed != before
    fresh = python_settings.capture()
    python_settings.restore(fresh)  # nothing changes
    assert get() == changed
    sys.setrecursionlimit(6000)
    gc.enable()
    gc.set_threshold(700, 10, 10)
    socket.setdefaulttimeout(None)
    decimal.setcontext(decimal.Context())
    logging.disable(logging.NOTSET)
    logging.getLogger("of.mine").setLevel(logging.NOTSET)
    python_settings.restore(captured)
    assert get() == changed


def test_a_logger_without_its_handlers_is_named() -> None:
    logger, handler = logging.getLogger("of_mine_too"), logging.StreamHandler()
    logger.addHandler(handler)
    captured = python_settings.capture()
    assert not [lost for lost in python_settings.restore(captured) if "of_mine_too" in lost]
    logger.removeHandler(handler)
    lost = python_settings.restore(captured)
    assert "the logger of_mine_too's StreamHandler" in lost


def test_settings_of_numpy_and_warnings() -> None:
    np = pytest.importorskip("numpy")
    before, errors = np.get_printoptions(), np.geterr()
    with warnings.catch_warnings(record=True) as seen:
        np.set_printoptions(precision=3)
        np.seterr(divide="ignore")
        warnings.filterwarnings("ignore", "only mine", UserWarning)
        captured = library_settings.capture()
        np.set_printoptions(**before)
        np.seterr(**errors)
        del warnings.filters[0]
        assert library_settings.restore(captured, lambda ordinal: "cpu") == []
        assert np.get_printoptions()["precision"] == 3
        assert np.geterr()["divide"] == "ignore"
        warnings.warn("only mine", UserWarning, stacklevel=1)
        assert not seen
        np.set_printoptions(**before)
        np.seterr(**errors)


def test_settings_that_are_functions() -> None:
    np = pytest.importorskip("numpy")
    before = np.get_printoptions()
    try:
        assert "numpy's formatter" not in library_settings.function_settings()
        np.set_printoptions(formatter={"float": hex})
        (formatter,) = library_settings.function_settings().values()
        np.set_printoptions(**before)
        library_settings.set_function_setting("numpy's formatter", formatter)
        assert np.get_printoptions()["formatter"] == {"float": hex}
    finally:
        np.set_printoptions(**before)


def test_settings_of_torch() -> None:
    torch = pytest.importorskip("torch")
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cuda:1")
        captured = library_settings.capture()
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        refused = library_settings.restore(captured, lambda ordinal: "cpu")
        assert refused == ["torch's default device (cuda:1 is hidden)"]
        assert torch.get_default_dtype() is torch.float64
        assert library_settings.restore(captured, lambda ordinal: f"cuda:{ordinal}") == []
        assert torch._GLOBAL_DEVICE_CONTEXT.device_context.device == torch.device("cuda:1")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
