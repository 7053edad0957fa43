"""Signals at the end of a process that is to be replaced: what holds across ``execve``."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

#: What shells, nohup and Python itself have a process ignore, rather than a user in a notebook.
_LEFT_ALONE = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ", "SIGXFZ")


class Held:
    """Interrupts that came and were not told of."""

    came = False
    #: Whether the next one raises `KeyboardInterrupt` as usual; it is noted all the same.
    raises = False

    def note(self, *_: Any) -> None:
        """The handler of SIGINT."""
        self.came = True
        if self.raises:
            raise KeyboardInterrupt


@contextmanager
def interrupts_held() -> Iterator[Held]:
    """Note interrupts instead of raising `KeyboardInterrupt`."""
    held = Held()
    before = signal.signal(signal.SIGINT, held.note)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def as_at_the_start(blocked: Collection[signal.Signals] = ()) -> Iterator[None]:
    """Nothing ignored, no timer, nothing but ``blocked`` blocked: ``execve`` would hand that on."""
    alone = {getattr(signal, name, None) for name in _LEFT_ALONE}
    ignored = [
        number
        for number in signal.valid_signals() - alone
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
