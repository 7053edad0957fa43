"""The options of ``%cudatime`` for repeated runs, and the plan made from them."""

from __future__ import annotations

import argparse

from gpumagic.magics.argument_types import count, duration, share
from gpumagic.magics.parsing import Parser
from gpumagic.timing.plan import DEFAULT_MAX_TIME, DEFAULT_PRECISION, Plan

#: Each of these alone makes the run a repeated one.
REPEATING = {
    *("-n", "-r", "-w", "--repeat", "-s", "--precision", "--max-time", "--queued", "--cold"),
    *("--on", "--energy"),
}


def add_options(parser: Parser) -> None:
    """Add the options, each of which makes the run a repeated one."""
    group = parser.add_argument_group("repeated runs")
    add = group.add_argument
    add("-n", dest="loops", metavar="N", type=count(), help="loops in each repeat")
    add("-r", dest="repeat", metavar="R", type=count(), help="repeats, each timed by itself")
    add("-w", dest="warmup", metavar="W", type=count(0), help="loops before the first repeat")
    add("--repeat", dest="repeated", action="store_true", help="repeat with nothing else given")
    add("-s", dest="setup", metavar="CODE", help="code to run before each repeat, not timed")
    add(
        "--precision",
        metavar="P",
        type=share,
        help="repeat until the median's 95 %% confidence interval is within P of it "
        f"(default {DEFAULT_PRECISION * 100:g} %%)",
    )
    add(
        "--max-time",
        metavar="T",
        type=duration,
        help=f"but no longer than this (default {DEFAULT_MAX_TIME:g}s)",
    )
    add("--queued", action="store_true", help="also the GPU time with the launch cost hidden")
    add("--cold", action="store_true", help="empty the GPU's L2 cache before each loop")
    add(
        "--on",
        metavar="DEVICES",
        help="run with each as torch's default device, and compare: cpu,cuda:0,cuda:1",
    )


def setup_code(options: argparse.Namespace, above: str) -> str:
    """Return the setup: the code of ``-s``, and that ``above`` the cell, on the magic's line."""
    return "\n".join(code for code in (options.setup, above) if code)


def only_for_energy(options: argparse.Namespace) -> bool:
    """Return whether the run is a repeated one by ``--energy`` alone."""
    asked = options.repeated or options.setup is not None or plan(options) != Plan()
    return options.energy and not asked


def plan(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for.

    Raises:
        SpecError: they contradict each other.
    """
    return Plan(
        options.loops,
        options.repeat,
        options.warmup,
        options.precision,
        options.max_time,
        options.queued,
        options.cold,
    )
