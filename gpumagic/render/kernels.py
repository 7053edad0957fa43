"""Where the GPU time went, as blocks."""

from __future__ import annotations

import re

from gpumagic.render.blocks import DASH, Block, Cell, Column, Grid, Line
from gpumagic.render.units import bytes_, percent, seconds
from gpumagic.results import Copy, Kernel, KernelReport
from gpumagic.system.text import plural

#: So many kernels are shown; all are in the result.
_SHOWN = 20
_LONGEST_NAME = 60
BLIND = (
    "torch's profiler cannot see the GPU here, so there are no kernels to show (CUPTI was refused; "
    "in a container it often needs the host's permission: NVreg_RestrictProfilingToAdminUsers=0)"
)


def kernels(report: KernelReport) -> list[Block]:
    """The blocks that show ``report``: how busy the GPU was, kernels by time, copies."""
    blocks: list[Block] = []
    if not report.visible:
        blocks.append(Line.of(BLIND, "warn"))
    elif not report.kernels and not report.copies:
        blocks.append(Line.of("no kernel ran, and nothing was copied", "dim"))
    else:
        blocks += [_busy(report, ordinal) for ordinal in report.busy]
        blocks += [_kernel_table(report)] if report.kernels else []
        blocks += _rest(report)
        blocks += [_copy_table(report)] if report.copies else []
        blocks.append(_check(report))
    if report.trace is not None:
        blocks.append(Line.of(f"trace written to {report.trace}; ui.perfetto.dev opens it", "dim"))
    return [*blocks, *(Line.of(note, "dim") for note in report.notes)]


def short(name: str) -> str:
    """A kernel's name without return type, parameters and the namespaces that all have."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|\bat::native::|\bat::cuda::|\bc10::", "", name)
    if name.endswith(")"):  # the parameters: from the parenthesis that matches the last one
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if depth == 0:
                name = name[:i] or name
                break
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _busy(report: KernelReport, ordinal: int) -> Line:
    share = report.busy_share(ordinal)
    text = f"cuda:{ordinal} busy {seconds(report.busy[ordinal])}"
    if share is None:
        return Line.of(text)
    parts = (Cell(f" of {seconds(report.window)}: "), Cell(percent(100 * share), "strong"))
    return Line((Cell(text), *parts, Cell("  (under the profiler, which slows the host)", "dim")))


def _kernel_table(report: KernelReport) -> Grid:
    columns = (
        Column("kernel"),
        Column("count", "right"),
        Column("total", "right"),
        Column("share", "right"),
        Column("mean", "right", rank=1),
    )
    return Grid(columns, [_kernel(kernel, report.total) for kernel in report.kernels[:_SHOWN]])


def _kernel(kernel: Kernel, total: float) -> tuple[Cell, ...]:
    share = kernel.total / total if total else None
    return (
        Cell(short(kernel.name)),
        Cell(f"{kernel.count:,}"),
        Cell(seconds(kernel.total), "strong"),
        Cell(percent(None if share is None else 100 * share), bar=share),
        Cell(seconds(kernel.total / kernel.count), "dim"),
    )


def _rest(report: KernelReport) -> list[Line]:
    rest = report.kernels[_SHOWN:]
    if not rest:
        return []
    total = seconds(sum(kernel.total for kernel in rest))
    kinds = plural(len(rest), "more kernel")
    return [Line.of(f"and {kinds}, {total} together", "dim")]


def _copy_table(report: KernelReport) -> Grid:
    columns = (
        Column("copy"),
        Column("count", "right"),
        Column("total", "right"),
        Column("size", "right"),
        Column("per second", "right", rank=1),
    )
    return Grid(columns, [_copy(copy) for copy in report.copies])


def _copy(copy: Copy) -> tuple[Cell, ...]:
    known = copy.bytes is not None and copy.total > 0
    rate = bytes_(round((copy.bytes or 0) / copy.total)) if known else DASH
    return (
        Cell(copy.name),
        Cell(f"{copy.count:,}"),
        Cell(seconds(copy.total), "strong"),
        Cell(bytes_(copy.bytes)),
        Cell(rate, "dim"),
    )


def _check(report: KernelReport) -> Line:
    """Whether the kernels are as many as the launches."""
    kernels = plural(report.count, "kernel")
    graphs = report.graph_launches
    of_graphs = f", {plural(graphs, 'CUDA graph launch', 'CUDA graph launches')}" if graphs else ""
    if report.launches is None:
        return Line.of(f"{kernels}; the launches were not recorded", "dim")
    if report.agrees:
        what = "launch" if report.launches == 1 else "launches"
        agree = "as launched" if graphs else "as many as launched"
        return Line.of(f"{kernels}, {agree} ({report.launches:,} {what}{of_graphs})", "dim")
    missing = []
    if report.lost_kernels:
        missing.append(f"{report.lost_kernels:,} of {report.launches:,} launches have no kernel")
    if report.lost_launches:
        missing.append(f"{report.lost_launches:,} of {kernels} have no launch")
    return Line.of(f"the profiler lost records: {', '.join(missing)}", "warn")
