"""``%gpu`` and ``%%gpu``: the device table, and what this kernel sees of the devices."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from gpumagic.cells import compile as cells
from gpumagic.cuda import devices, driver, init_failure, torch_cuda
from gpumagic.errors import DeviceError, GpuMagicWarning, RestartError, SpecError
from gpumagic.magics.argument_types import count, duration_or_zero, percentage, size
from gpumagic.magics.gpu import cluster, option_conflicts, restarting, saved_choice
from gpumagic.magics.output import LiveDisplay, hand_over, show
from gpumagic.magics.parsing import Parser, add_result_options, split, take_semicolon
from gpumagic.results import DeviceTable, Selection, Status
from gpumagic.selection import apply, cpu_threads, environment, gate
from gpumagic.selection.spec import Wants, parse

_EXAMPLES = """\
examples:
  %gpu                        the table of devices
  %gpu -p                     with the processes on them
  %gpu off                    hide every GPU from this kernel
  %gpu 0,2                    show it GPUs 0 and 2, as nvidia-smi numbers them
  %gpu 1-3                    a range
  %gpu GPU-8f1d               a UUID, or a unique beginning of one
  %gpu auto                   the GPU with the most free memory
  %gpu auto 2 --min-free 20GiB --max-util 10 --wait 600
  %gpu on                     show all; %gpu reset: what the kernel was started with
  %gpu watch                  the table, again every second until interrupted
  %gpu doctor                 why torch can, or cannot, use the GPU here; what to do about it
  %gpu off --threads 4        compute on the CPU, with 4 threads
  selection = %gpu off -o -q  the result as an object

  %gpu off --restart          too late: a fresh kernel in place of this one; the next cells go on
  %gpu off --restart --keep model optimizer
  %gpu off --soft             too late, and nothing may be lost: a gate; %gpu on lifts it

  %%gpu off                   one cell without a GPU; then what was there before

  %gpu cluster                the GPUs of ipyparallel's engines, on all their hosts
  %gpu pin                    each engine its own GPU; %gpu off --cluster: none for any
  %gpu dist init              torch.distributed's process group of the engines; %gpu dist down
"""


@cache
def parser() -> Parser:
    """The options of ``%gpu``."""
    options = Parser(
        "%gpu",
        usage="%(prog)s [SPEC] [options]",
        description="Show the GPUs, or choose which of them this kernel sees, and verify it.",
        epilog=_EXAMPLES,
    )
    options.add_argument(
        "spec",
        nargs="*",
        metavar="SPEC",
        help="off (none, cpu), on (all), reset, an index, a list (0,2), a range (1-3), a UUID or "
        "its beginning, auto [N]; ps: the table with processes; watch: the table, repeated; "
        "doctor: a report on why the GPU is, or is not, usable; cluster [PROFILE or connection "
        "file], pin, dist init, dist down: see below",
    )
    options.add_argument("-p", "--processes", action="store_true", help="list processes")
    options.add_argument(
        "--arguments",
        action="store_true",
        help="with -p: the whole command lines of your own processes; the notebook keeps them",
    )
    options.add_argument(
        "--soft",
        action="store_true",
        help="a gate inside the process, for when it is too late and the state must be kept: "
        "device-agnostic code goes to the CPU, new CUDA tensors are refused; %%gpu on lifts it",
    )
    options.add_argument(
        "--threads",
        type=count(most=10**9 - 1, of="threads"),
        metavar="N",
        help="let torch compute with N CPU threads; %%gpu on and reset take that back",
    )
    again = options.add_argument_group("restart")
    again.add_argument(
        "--restart",
        action="store_true",
        help="if it is too late, restart the kernel in place: variables are lost, the next cells "
        "run in the new state; must be the last line of its cell",
    )
    again.add_argument(
        "--keep",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="bring these variables back after the restart, or all; with them the globals that "
        "their functions use, imports, random states, and settings of IPython, Python, torch, "
        "NumPy, pandas, matplotlib, warnings and logging, but no hooks and no handlers; "
        "CUDA tensors come back on the same GPU if it is still visible and has room, else on the "
        "CPU",
    )
    again.add_argument(
        "--save",
        action="store_true",
        help="make this choice again when gpumagic loads after a restart of this kernel by its "
        "front end; %%gpu reset --save ends that",
    )
    again.add_argument(
        "--force",
        action="store_true",
        help="restart although running threads, child processes, or variables that cannot be kept "
        "would be lost",
    )
    auto = options.add_argument_group("auto")
    auto.add_argument(
        "--min-free", type=size, metavar="SIZE", help="at least so much free memory (20GiB)"
    )
    auto.add_argument(
        "--max-util", type=percentage, metavar="PERCENT", help="at most so much utilised"
    )
    auto.add_argument("--idle", action="store_true", help="no other process, and not utilised")
    auto.add_argument(
        "--wait", type=duration_or_zero, metavar="SECONDS", default=0.0, help="wait for such GPUs"
    )
    watch = options.add_argument_group("watch")
    watch.add_argument(
        "--every", type=duration_or_zero, metavar="SECONDS", help="between looks (default: 1)"
    )
    watch.add_argument(
        "--for",
        dest="duration",
        type=duration_or_zero,
        metavar="SECONDS",
        help="stop after so long",
    )
    cluster.add_options(options)
    add_result_options(options)
    return options


def help_text() -> str:
    """What ``%gpu?`` shows."""
    return parser().format_help()


def run(magics: Any, line: str, cell: str | None, local_ns: Any = None) -> Any:
    """Show the table, choose devices, or run ``cell`` under a choice."""
    __tracebackhide__ = True
    shell = magics.shell
    header = f"%%gpu {line}"
    line, silent = take_semicolon(line)
    options = parser().parse_words(split(line))
    options.quiet = options.quiet or magics.quiet
    spec = " ".join(options.spec)
    if options.cluster or (options.spec and options.spec[0] in cluster.VERBS):
        if cell is not None:
            raise SpecError("%%gpu is for this kernel; %gpu … --cluster chooses for the engines")
        auto = spec.split(" ")[0].lower() == "auto"
        wants = option_conflicts.wants(options, magics, spec) if auto else Wants()
        return cluster.run(magics, options, silent, parser().parse_words([]), wants)
    cluster.check_unused(options)
    if cell is not None and spec in option_conflicts.VERBS:
        raise SpecError("%%gpu needs a choice of GPUs for the cell; for example: %%gpu off")
    option_conflicts.check(options, spec, one_cell=cell is not None)
    wants = option_conflicts.wants(options, magics, spec)
    if cell is not None:
        return _run_cell(shell, spec, wants, options, cell, header)
    if spec in ("", "ps"):
        table = _table(options.processes or spec == "ps", options.arguments)
        return hand_over(shell, table, options, silent=silent)
    if spec == "watch":
        return _watch(shell, options)
    if spec == "doctor":
        from gpumagic.doctor import diagnose

        return hand_over(shell, diagnose(), options, silent=silent)
    if options.save:
        kept = saved_choice.kept(shell)
    before, gated = environment.now(), gate.current()
    try:
        chosen = _choose(shell, spec, wants, options)
    except KeyboardInterrupt:
        environment.restore(before)
        gate.put_back(gated)
        raise DeviceError("interrupted; nothing was changed") from None
    if options.save:
        chosen = saved_choice.keep(shell, chosen)
    if options.restart and chosen.status == "too-late":
        try:
            restarting.begin(magics, chosen, options, silent=silent)
        except BaseException as failure:
            environment.restore(before)
            if options.save:
                saved_choice.put_back(shell, kept)
            if isinstance(failure, KeyboardInterrupt):
                raise RestartError("interrupted; this kernel goes on as it was") from None
            raise
    _warn(chosen)
    chosen = cpu_threads.noted(chosen, options.threads)
    return hand_over(shell, chosen, options, silent=silent)


def _choose(shell: Any, spec: str, wants: Wants, options: argparse.Namespace) -> Selection:
    if options.soft:
        return gate.choose(spec, wants, shell.user_ns)
    lifted = parse(spec).kind in ("on", "reset") and gate.lift()
    with LiveDisplay(shell, quiet=options.quiet) as live:

        def progress(waited: float, what: str) -> None:
            live.text(f"waiting for GPUs: {what} ({waited:.0f} s of {options.wait:.0f} s)")

        try:
            chosen = apply.choose(spec, wants, wait=options.wait, progress=progress)
        except KeyboardInterrupt:
            if not options.wait:
                raise
            raise DeviceError("interrupted while waiting for GPUs; nothing was changed") from None
    if not lifted:
        return gate.noted(chosen)
    # The variables may be as they were; what this kernel can use is not.
    status: Status = "applied" if chosen.status == "unchanged" else chosen.status
    return replace(chosen, status=status, notes=("the gate is lifted", *chosen.notes))


def _warn(chosen: Selection) -> None:
    if chosen.status == "too-late":
        # Without a registry: said every time, and nothing is left in the user's namespace.
        warnings.warn_explicit(
            str(chosen.message), GpuMagicWarning, filename="%gpu", lineno=1, registry=None
        )


def _table(processes: bool, arguments: bool) -> DeviceTable:
    """The table, with what it costs seconds to find out if there is reason to."""
    table = devices.devices(processes=processes, arguments=arguments)
    if not table.cuda_failed and init_failure.found(table):
        table = devices.devices(processes=processes, arguments=arguments)
    gated = gate.note()
    return table if gated is None else replace(table, notes=(*table.notes, f"{gated}."))


def _watch(shell: Any, options: argparse.Namespace) -> Any:
    """The table, again and again in one place, until interrupted."""
    ends = None if options.duration is None else time.monotonic() + options.duration
    table = _table(options.processes, options.arguments)
    with LiveDisplay(shell, quiet=options.quiet) as live:
        with suppress(KeyboardInterrupt):  # the way to stop it
            live.result(table)
            while ends is None or time.monotonic() < ends:
                time.sleep(1.0 if options.every is None else options.every)
                table = _table(options.processes, options.arguments)
                live.result(table)
        live.keep()
    options.quiet = True  # it stands on the screen already
    return hand_over(shell, table, options)


# --- one cell ----------------------------------------------------------------------------------


def _run_cell(
    shell: Any, spec: str, wants: Wants, options: argparse.Namespace, cell: str, header: str
) -> Any:
    __tracebackhide__ = True
    parse(spec)
    compiled = cells.compile_cell(shell, cell, header=header)
    outcome: list[Selection] = []

    def finish(value: Any) -> Any:
        chosen = outcome[0]
        options_shown = argparse.Namespace(**{**vars(options), "quiet": True})
        returned = hand_over(shell, chosen, options_shown)
        if returned is None:
            return value
        if value is not None:
            shell.displayhook(value)
        return returned

    return compiled.run_within(_under(shell, spec, wants, options, outcome.append), finish)


@contextmanager
def _under(
    shell: Any,
    spec: str,
    wants: Wants,
    options: argparse.Namespace,
    tell: Callable[[Selection], None],
) -> Iterator[None]:
    """The selection for a while; the variables are put back at the end, also after an exception."""
    __tracebackhide__ = True
    before, gated, computing = environment.now(), gate.current(), cpu_threads.number()
    chosen = _choose(shell, spec, wants, options)
    failed = driver.runtime_failed
    started = time.monotonic()
    try:
        chosen = cpu_threads.noted(chosen, options.threads)
        tell(chosen)
        _warn(chosen)
        if not options.quiet:
            show(shell, chosen)
        yield
    finally:
        passed = time.monotonic() - started
        if not chosen.devices and torch_cuda.loaded() is not None:
            init_failure.note_hiding(environment.now(), devices.devices(processes=False))
        environment.restore(before)
        gate.put_back(gated)
        if options.threads is not None:
            cpu_threads.put_back(computing)
        if not options.quiet and not chosen.cuda_initialized:
            with suppress(Exception, KeyboardInterrupt):  # what the cell came to must pass
                _say_what_is_permanent(passed, failed)


def _say_what_is_permanent(passed: float, failed: bool) -> None:
    """What the cell has made of its choice, if it is for good; it had ``failed`` before or not.

    To find that out may take long, next to the seconds that the cell took: then `%gpu` does it.
    """
    if driver.is_initialized():
        print(
            "The cell has initialised CUDA, so its choice of GPUs has become permanent for "
            "this kernel; the variables are put back for processes started from here."
        )
        return
    may_have = not failed and init_failure.suspected() and init_failure.is_quick(passed)
    if may_have and init_failure.found(devices.devices(processes=False)):
        print(
            f"{init_failure.cause()}: this kernel sees no GPU any more. To change that: "
            "%gpu on --restart, or restart the kernel."
        )
