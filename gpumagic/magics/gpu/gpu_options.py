"""The forms of ``%gpu``: a verb, a choice of GPUs, or nothing."""

from __future__ import annotations

from functools import cache

from gpumagic.magics.argument_types import count, duration, duration_or_zero, size
from gpumagic.magics.forms import Parser
from gpumagic.magics.parsing import Grammar

#: The options of a choice that outlast one cell.
LASTING = ("--restart", "--keep", "--force", "--cluster")
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
