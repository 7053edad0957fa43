"""Process-wide settings of Python: captured, changed, restored."""

from __future__ import annotations

import copy
import decimal
import gc
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpumagic.restart.variables import python_settings


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


def test_handlers_that_a_library_sets_itself_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own class on its own logger, as torch does for modules that it imports only later."""

    class OwnHandler(logging.Handler):
        pass

    OwnHandler.__module__ = "library_of_handlers._logging"
    loggers = [logging.getLogger(f"{name}.part") for name in ("library_of_handlers", "users_own")]
    for logger in loggers:
        logger.addHandler(OwnHandler())
    try:
        named = python_settings.capture()["handlers"]
        assert "library_of_handlers.part" not in named
        assert named["users_own.part"] == ["OwnHandler"]
        # An imported library has its loggers again when it is imported again.
        monkeypatch.setitem(sys.modules, "users_own", logging)
        assert "users_own.part" not in python_settings.capture()["handlers"]
    finally:
        for logger in loggers:
            logger.handlers.clear()
