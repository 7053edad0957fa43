"""Which options of ``%gpu`` go together: none is passed over in silence."""

from __future__ import annotations

import argparse
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import percentage, size
from gpumagic.selection.spec import Wants

#: What is no choice of GPUs.
VERBS = ("", "ps", "watch", "doctor")


def check(options: argparse.Namespace, spec: str, *, one_cell: bool) -> None:
    """Whether every option that is used has a meaning beside the others.

    Raises:
        SpecError: one has none; what it goes with.
    """
    choice = spec not in VERBS
    lasting = choice and not one_cell
    listed = spec == "ps" or options.processes
    a_choice = "a choice of GPUs" if not one_cell else "%gpu, not with %%gpu, which is for one cell"
    for name, used, fits, partner in (
        ("-p", options.processes, spec in ("", "ps", "watch"), "the table; for example: %gpu -p"),
        ("--arguments", options.arguments, listed, "the processes: %gpu -p --arguments"),
        ("--every", options.every is not None, spec == "watch", "watch: %gpu watch --every 5"),
        ("--for", options.duration is not None, spec == "watch", "watch: %gpu watch --for 60"),
        ("--threads", options.threads is not None, choice, _example(a_choice, "--threads 4")),
        ("--soft", options.soft, choice, _example(a_choice, "--soft")),
        ("--restart", options.restart, lasting, _example(a_choice, "--restart")),
        ("--save", options.save, lasting, _example(a_choice, "--save")),
        ("--keep", options.keep, options.restart, _example("--restart", "--restart --keep model")),
        ("--force", options.force, options.restart, _example("--restart", "--restart --force")),
    ):
        if used and not fits:
            raise SpecError(f"{name} goes with {partner}")
    if options.soft and options.save:
        raise SpecError("--save keeps a choice of devices; a gate (--soft) is none")
    if options.soft and options.restart:
        raise SpecError("--soft is for going on without a restart: leave --soft or --restart out")
    if options.soft and options.wait > 0:
        raise SpecError("--wait does not go with --soft, which chooses at once: leave one out")


def _example(partner: str, options: str) -> str:
    return f"{partner}; for example: %gpu off {options}"


def wants(options: argparse.Namespace, magics: Any, spec: str) -> Wants:
    """What ``auto`` asks of a device, by the options or by what is configured.

    Raises:
        SpecError: it is asked for without ``auto``, or is no such value.
    """
    auto = spec.split(" ")[0].lower() == "auto"
    used = [
        name
        for name, value in (
            ("--min-free", options.min_free is not None),
            ("--max-util", options.max_util is not None),
            ("--idle", options.idle),
            ("--wait", options.wait > 0),
        )
        if value
    ]
    if used and not auto:
        raise SpecError(f"{used[0]} goes with auto; for example: %gpu auto {used[0]} …")
    if not auto:
        return Wants()
    try:
        min_free, max_util = options.min_free, options.max_util
        if min_free is None and magics.min_free:
            min_free = size(magics.min_free)
        if max_util is None and magics.max_util:
            max_util = percentage(magics.max_util)
    except argparse.ArgumentTypeError as error:
        raise SpecError(f"%config GpuMagic: {error}") from None
    return Wants(min_free=min_free, max_util=max_util, idle=options.idle)
