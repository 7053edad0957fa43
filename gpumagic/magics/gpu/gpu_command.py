"""``%gpu`` and ``%%gpu``: the device table, and which devices this process sees.

What can be typed, and which function runs it. Completion reads the forms at a key press: what lists
or chooses devices is imported when it is used.
"""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import count, duration, duration_or_zero, size
from gpumagic.magics.forms import Parser
from gpumagic.magics.parsing import Grammar, MagicLine, split

if TYPE_CHECKING:
    from gpumagic.magics.shell_state import ShellState
    from gpumagic.results.devices import DeviceTable

# --- what can be typed ----------------------------------------------------------------------------

#: The options of a choice that outlast one cell.
_LASTING = ("--restart", "--keep", "--force", "--cluster")
#: Those that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--restart", "--keep", "--force", "--soft", "--threads")
_NO_CLAIM = "do not claim it, ignore the claims of others"


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpu``."""
    table = Parser("%gpu")
    table.section("the table")("-p", "with the processes on each device", dest="processes")
    auto = _choice("auto")
    add = auto.section("auto [N]: the N GPUs with the most free memory that nobody claims")
    add("--min-free SIZE", "with at least so much free memory, e.g. 20GiB", size)
    add("--idle", "without other processes, not busy, claimed by nobody")
    add(
        "--wait SECONDS",
        "wait for such GPUs, that nobody claims; without --min-free for idle ones",
        duration_or_zero,
        default=0.0,
    )
    auto.apart("--wait", ("--soft", "--cluster"))
    watch = Parser("%gpu watch [on|off]", "a panel beside the cells; off ends it")
    about = "between two updates (default: 1)"
    watch.section("watch")("--every SECONDS", about, duration, default=1.0)
    cluster = Parser("%gpu cluster [PROFILE]", "the GPUs of ipyparallel's engines, on all hosts")
    pin = Parser("%gpu pin", "each engine its own GPU")
    for form in (cluster, pin):
        form.add_targets()
    pin.section("a choice of GPUs")("--no-claim", _NO_CLAIM)
    restart = Parser(
        "%gpu restart",
        "a fresh process in place of this one, with its GPUs and all variables; the next cells go "
        "on",
    )
    _add_what_goes_on(restart)
    return Grammar(
        "%gpu",
        table,
        _choice("SPEC"),
        auto,
        watch,
        Parser("%gpu plot [FILE]", "draw what it saw since it began, with the cells"),
        Parser("%gpu doctor", "why torch can, or cannot, use the GPU; what helps"),
        cluster,
        pin,
        restart,
        words=("off", "on", "reset", "auto"),
    )


def _choice(written: str) -> Parser:
    form = Parser(f"%gpu {written}")
    form.add_argument("spec", nargs="*", metavar="SPEC", default=[])
    add = form.section("a choice of GPUs")
    add("--restart", "if it is too late, or CUDA has failed: restart; variables stay")
    _add_what_goes_on(form)
    add(
        "--soft",
        "with off, if it is too late: keeps the process and all variables; device-agnostic code "
        "goes to the CPU, what is on a GPU goes on there; %gpu on ends it",
    )
    add("--threads N", "compute with N CPU threads; on and reset undo it", count)
    add("--no-claim", _NO_CLAIM)
    form.needs("--restart", "--keep", "--force")
    form.apart("--soft", ("--restart",))
    form.add_targets(_ONLY_HERE)
    return form


def _add_what_goes_on(form: Parser) -> None:
    add = form.section("a choice of GPUs")
    about = "with restart or --restart: keep these variables alone, or none"
    add("--keep NAMES", about, nargs="+", action="extend")
    add("--force", "with these, too: go on, and lose what cannot be kept")


# --- what runs it ---------------------------------------------------------------------------------


def run(magics: ShellState, line: MagicLine, cell: str | None, _: object = None) -> Any:
    """Show the table, choose devices, or run ``cell`` under a choice.

    Raises:
        SpecError: the line does not fit.
    """
    from gpumagic.magics.delivery import hand_over

    options, verb, text = line.options, line.verb, " ".join(line.options.spec)
    options.typed = shlex.join(["%gpu", *split(line.written.strip().removesuffix(";"))])
    if cell is not None:
        if not text:
            raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
        for name in _LASTING:
            if name in line.given:
                raise SpecError(f"{name} goes with %gpu, not with %%gpu, which is for one cell")
    if options.cluster or verb in ("cluster", "pin"):
        from gpumagic.magics import cluster

        return cluster.run(magics, verb, options)
    if verb == "restart":
        from gpumagic.magics.gpu import restarting

        restarting.restart(magics, options)
    if verb in ("watch", "plot"):
        from gpumagic.magics.gpu import watch

        return watch.run(verb, magics.shell, options)
    if text:
        from gpumagic.magics.gpu import choosing

        return choosing.run(magics, text, options, cell, f"%%gpu {line.written}")
    if verb == "doctor":
        from gpumagic.doctor import diagnose

        return hand_over(magics.shell, diagnose(), options)
    table = _table(processes=options.processes)
    returned = hand_over(magics.shell, table, options)
    if not (options.quiet or magics.has_hinted or table.cuda_failed):
        _hint(magics, table)
    return returned


def _table(*, processes: bool) -> DeviceTable:
    """Return the table; check whether CUDA has failed where it may have, which can take seconds."""
    from dataclasses import replace

    from gpumagic.cuda import failure
    from gpumagic.selection import remedies, soft_off
    from gpumagic.selection.table import devices

    found = devices(processes=processes)
    if not found.cuda_failed and failure.has_failed(found):
        found = devices(processes=processes)
    note = remedies.dead_context_note()
    if found.cuda_failed:
        note = f"To change that: {remedies.start_remedy()}"
    notes = found.notes if note is None else (*found.notes, note)
    return replace(found, gated=soft_off.is_closed(), notes=notes)


def _hint(magics: ShellState, table: DeviceTable) -> None:
    """Show below the first table of a session what to try next."""
    from gpumagic.magics.delivery import say
    from gpumagic.results.devices import VIRTUAL

    magics.has_hinted = True
    more = "Try next: %%cudatime above a cell for its GPU time, %gpumem for GPU memory"
    none = f"{VIRTUAL}; why there is none: %gpu doctor"
    say(magics.shell, more if table.no_gpu is None else none)
