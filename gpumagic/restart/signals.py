"""The dispositions and masks of signals that a program inherits by ``execve``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

#: Signals that shells, nohup and Python itself ignore: not the notebook's user.
_EXEMPT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ", "SIGXFZ")


class DeferredInterrupts:
    """Whether an interrupt arrived while SIGINT was deferred."""

    pending = False
    #: Whether the next one also raises `KeyboardInterrupt`, as usual.
    raising = False

    def note(self, *_: Any) -> None:
        """Note an interrupt: the handler of SIGINT."""
        self.pending = True
        if self.raising:
            raise KeyboardInterrupt


@contextmanager
def interrupts_deferred() -> Iterator[DeferredInterrupts]:
    """Note interrupts instead of raising `KeyboardInterrupt`."""
    deferred = DeferredInterrupts()
    before = signal.signal(signal.SIGINT, deferred.note)
    try:
        yield deferred
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_after() -> Iterator[None]:
    """Let an interrupt that arrives in the block take effect at its end.

    What the block starts has an owner by then. Only the main thread is interrupted, and a handler
    that is none of Python's stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    with interrupts_deferred() as interrupts:
        yield
    if interrupts.pending:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def default_dispositions(blocked: Collection[signal.Signals] = ()) -> Iterator[None]:
    """Ignore no signal, stop timers, block only ``blocked``: ``execve`` inherits all of these."""
    exempt = {getattr(signal, name, None) for name in _EXEMPT}
    ignored = [
        number
        for number in signal.valid_signals() - exempt
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    timers = {
        timer: signal.setitimer(timer, 0)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    }
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for timer, (seconds, interval) in timers.items():
            signal.setitimer(timer, seconds, interval)
