"""The choice that ``%gpu`` has made in this process, as a whole: remembered and restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE, Choice
from gpumagic.selection import claims, environment, soft_off


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """A `Choice`, with the claim, the gate, the environment and the number of threads then."""

    choice: Choice
    #: The UUIDs of the claimed devices.
    claim: tuple[str, ...]
    #: Whether the gate was closed.
    gated: bool
    #: The variables that choose devices; None for one that is not set.
    environment: Mapping[str, str | None]
    #: torch's number of CPU threads; None if torch was not loaded.
    threads: int | None


def take() -> Snapshot:
    """Return the current choice, for `restore`."""
    gated, threads = soft_off.is_closed(), torch_cuda.cpu_threads()
    return Snapshot(replace(STATE.choice), claims.held(), gated, environment.now(), threads)


def restore(before: Snapshot, *, started: bool = False, variables: bool = True) -> None:
    """Undo the choices since a snapshot: ``variables``, CPU threads, the gate and the claim.

    The variables get their values of that time, also if the user has written them since; the
    number of threads only if a choice has set it since. Where CUDA has ``started`` since, this
    process has its GPUs for good, and keeps their claims.
    """
    then = before.choice
    for name, value in before.environment.items() if variables else ():
        environment.set_variable(name, value)
    now, threads, torch = STATE.choice, before.threads, torch_cuda.loaded()
    if torch is not None and now.threads is not then.threads:
        if threads is None and now.threads is not None:  # torch was imported since
            threads = now.threads.before
        torch.set_num_threads(threads)
    if soft_off.is_closed() != before.gated:
        (soft_off.close if before.gated else soft_off.lift)()
    if not started:
        claims.hold(before.claim)
    STATE.choice = Choice(
        variables=then.variables if variables else now.variables,
        threads=then.threads,
        auto=now.auto if started else then.auto,
    )


@contextmanager
def undone_on_error() -> Iterator[Snapshot]:
    """Undo the choices of the block if it raises; gives the choice before it."""
    before = take()
    try:
        yield before
    except BaseException:
        restore(before)
        raise
