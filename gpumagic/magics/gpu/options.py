"""The forms of ``%gpu``: a verb, a choice of GPUs, or nothing; and its help."""

from __future__ import annotations

from functools import cache

from gpumagic.magics.argument_types import count, duration_or_zero, size
from gpumagic.magics.parsing import PLAIN, SPEC, Grammar, Parser, add_targets

HELP = """\
%gpu [SPEC | VERB] [options]           %%gpu SPEC: for one cell, and back

The GPUs, and which of them this kernel sees: chosen, and verified.

  %gpu                        the table of devices; -p: with their processes
  %gpu off                    hide every GPU from this kernel (also: none, cpu)
  %gpu 0,2                    show it GPUs 0 and 2, as nvidia-smi numbers them
  %gpu 1-3                    a range
  %gpu GPU-8f1d               a UUID, or a unique beginning of one; MIG-… too
  %gpu auto 2 --min-free 20GiB --wait 600
  %gpu on                     show all (also: all)
  %gpu reset                  what the kernel was started with
  %gpu watch                  a panel beside the cells; watch off ends it
  %gpu plot [FILE]            what it saw: the time since it began, with cells
  %gpu doctor                 why torch can, or cannot, use the GPU; what helps
  %gpu cluster [PROFILE]      the GPUs of ipyparallel's engines, on all hosts
  %gpu pin                    each engine its own GPU

a choice of GPUs
  --restart                   if it is too late, or CUDA has failed: a fresh
                              kernel in place of this one; the next cells go on
  --keep NAMES | all          with --restart: bring these variables back
  --force                     with --restart: although something would be lost
  --soft                      with off, where it is too late and nothing may be
                              lost: a gate in this process; device-agnostic
                              code goes to the CPU, new CUDA tensors are
                              refused; %gpu on lifts it
  --threads N                 compute with N CPU threads; on and reset undo it
  --no-claim                  neither claim it nor heed the claims of others
auto [N]: the N GPUs with the most free memory
  --min-free SIZE             with at least so much free memory, e.g. 20GiB
  --idle                      without other processes and utilisation
  --wait SECONDS              wait for such GPUs
watch
  --every SECONDS             between two updates (default: 1)
cluster (needs ipyparallel)
  --cluster                   choose for the engines, not for this kernel
  -t, --targets ENGINES       only these engines: 2, 0,3, 0:4
result
  -o                          return the result object
  -v NAME                     store it in NAME
  -q                          print nothing, as does a ; at the end

also: ps, as -p; --processes

examples
  %gpu off --restart --keep model optimizer
  selection = %gpu off -o -q
  %gpu off --cluster -t 0:4
"""

#: The options of a choice that outlast one cell.
LASTING = ("--restart", "--keep", "--force", "--cluster")
#: Those that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--restart", "--keep", "--force", "--soft", "--threads")


@cache
def grammar() -> Grammar:
    """Return the forms of ``%gpu``."""
    forms = {verb: Parser(f"%gpu {verb}".rstrip()) for verb in (PLAIN, "ps", "watch", "doctor")}
    for form in (forms[PLAIN], forms["watch"]):
        form.add_argument("-p", "--processes", action="store_true")
    watch = forms["watch"]
    watch.add_argument("state", nargs="?", choices=("off",))
    watch.add_argument("--every", type=duration_or_zero, metavar="SECONDS")
    plot = forms["plot"] = Parser("%gpu plot")
    plot.add_argument("file", nargs="?", metavar="FILE")
    forms.update({verb: _cluster(verb) for verb in ("cluster", "pin")})
    forms["auto"] = _auto()
    forms[SPEC] = _choice()
    return Grammar("%gpu", forms)


def _choice() -> Parser:
    form = Parser("%gpu")
    form.add_argument("spec", nargs="*", metavar="SPEC", default=[])
    form.flags("--soft", "--restart", "--force", "--no-claim")
    form.add_argument("--threads", type=count(most=10**9 - 1), metavar="N")
    form.add_argument("--keep", nargs="+", action="extend", metavar="NAME")
    form.needs("--restart", "--keep", "--force")
    form.apart("--soft", ("--restart",))
    add_targets(form)
    form.apart("--cluster", _ONLY_HERE)
    return form


def _auto() -> Parser:
    form = _choice()
    form.add_argument("--min-free", type=size, metavar="SIZE")
    form.add_argument("--wait", type=duration_or_zero, metavar="SECONDS", default=0.0)
    form.flags("--idle")
    form.apart("--wait", ("--soft", "--cluster"))
    return form


def _cluster(verb: str) -> Parser:
    """Return the form of a verb for the engines of a cluster."""
    form = Parser(f"%gpu {verb}")
    form.flags("--cluster")
    form.add_argument("-t", "--targets", metavar="ENGINES")
    if verb == "cluster":
        form.add_argument("-p", "--processes", action="store_true")
        form.add_argument("profile", nargs="?", metavar="PROFILE")
    else:
        form.flags("--no-claim")
    return form
