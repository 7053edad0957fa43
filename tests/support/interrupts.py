"""Code that is to be interrupted by a signal of another process."""

from __future__ import annotations

#: An expression that lasts until it is interrupted; the code around it has ``time``. Python looks
#: for signals between the instructions of a program: one that comes between the last of them and
#: the system call of ``time.sleep(600)`` is noticed when that is over, ten minutes later.
UNTIL_INTERRUPTED = "any(time.sleep(0.01) for _ in iter(int, 1))"
