"""Interrupts wait, and dispositions are Python's own, until ``execve`` has been called."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from gpumagic.restart import signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows restarts nothing")


def test_interrupts_are_deferred() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals.interrupts_deferred() as interrupts:
        assert not interrupts.pending
        signal.raise_signal(signal.SIGINT)
        assert interrupts.pending
        interrupts.raising = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_take_effect_after_the_block() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def interrupted() -> None:
        with signals.interrupts_after():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [1]
    with signals.interrupts_after():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before

    def handler() -> object:
        with signals.interrupts_after():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler).result() is before
    with patch("signal.getsignal", return_value=None):  # one that is none of Python's
        assert handler() is None
    assert signal.getsignal(signal.SIGINT) is before


def test_dispositions_timers_and_masks_are_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, 1000)
    try:
        with signals.default_dispositions((signal.SIGINT,)):
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGINT}
            assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {*mask, signal.SIGUSR2}
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)
