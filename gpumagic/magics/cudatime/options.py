"""The forms of ``%cudatime``: a statement, a verb, or ``--compare``; and its help."""

from __future__ import annotations

from argparse import ArgumentTypeError
from functools import cache

from gpumagic.magics.argument_types import count, duration, duration_or_zero
from gpumagic.magics.parsing import (
    BASELINE,
    PLAIN,
    Grammar,
    Parser,
    add_baseline,
    add_lines,
    add_targets,
)

HELP = """\
%cudatime [options] STATEMENT          %%cudatime [options] [SETUP]

Time code on the GPU, on the wall and on the CPU. GPU time is read from CUDA
events on every busy stream of every device: from the start of the code until
its last work has ended. A time with ≤ is an upper bound: the GPU may have
been idle in between. Wall time ends when the GPU's work has, too.

  %cudatime y = model(x)      run it once, like %time; y is assigned
  %%cudatime                  the same for a cell
  %cudatime -n 10 -r 5 f(x)   run it many times, like %timeit
  %cudatime on                after every cell that used the GPU, or took more
                              than 0.5 s (--above TIME), a line with its times;
                              off ends that, log sums them up
  %cudatime --compare [NAMES] the results of --name side by side

repeated runs: the code is a function's body, and assigns no variables
  -n N, -r R, -w W            loops in a repeat, repeats, warm-up loops
  -s SETUP                    code before each repeat, not timed
  --repeat                    until the median is precise to 1 %
  --max-time T                but no longer than this (default: 3s)
  --cold                      with an empty L2 cache before each loop
  --on DEVICES                on each, and compare: cpu,cuda:0
line by line
  --lines                     GPU and host time of each line, and its waits
  -f FUNC                     with --lines: this function's lines, too
where the time goes
  --kernels                   the kernels by time, from torch's profiler
  --trace FILE                its trace, for ui.perfetto.dev (.json, .json.gz)
  --nvtx NAME                 an NVTX range around the code, for Nsight
  --flops                     floating-point operations, and per second
  --energy                    joules per loop, and mean watts
comparing
  --name NAME                 name the result, for --compare
  --save FILE                 write the result to FILE, as JSON
  --against FILE              compare with the result in FILE
  --fail-above PERCENT        and fail if it takes so much longer, e.g. 10%
cluster (needs ipyparallel)
  --cluster                   on the engines, not in this kernel
  -t, --targets ENGINES       only these engines: 2, 0,3, 0:4
result
  -o, -v NAME, -q             return it, store it in NAME, print nothing

examples
  timing = %cudatime -o -q -n 100 model(x)
  %cudatime -- -x @ y         code that begins with a minus sign follows --
  %%cudatime --lines -f train_step
  %%cudatime --repeat x = torch.rand(4096, 4096, device="cuda")
"""

#: By verb: its module in this folder.
VERBS = {"on": "per_cell", "off": "per_cell", "log": "per_cell"}
#: The form that shows named results.
COMPARE = "--compare"
#: Each of these options alone makes the run a repeated one.
REPEATING = {
    *("-n", "-r", "-w", "--repeat", "-s", "--max-time", "--cold", "--on", "--energy"),
}
#: Options that have no meaning for the engines of a cluster.
_ONLY_HERE = ("--lines", "--name", "--trace", "--on", "--flops", "--energy", *sorted(BASELINE))
#: Seconds from which a cell without GPU work gets a line by default.
ABOVE = 0.5


@cache
def grammar() -> Grammar:
    """Return the forms of ``%cudatime``."""
    forms = {verb: Parser(f"%cudatime {verb}") for verb in (*VERBS, COMPARE)}
    forms["on"].add_argument("--above", metavar="TIME", type=duration_or_zero, default=ABOVE)
    forms[COMPARE].add_argument("names", nargs="*", metavar="NAME", default=[])
    return Grammar("%cudatime", {PLAIN: _run(), **forms})


def _run() -> Parser:
    """Return the form of a line that runs code."""
    form = Parser("%cudatime")
    add = form.add_argument
    add("-n", dest="loops", metavar="N", type=count())
    add("-r", dest="repeat", metavar="R", type=count())
    add("-w", dest="warmup", metavar="W", type=count(0))
    add("--repeat", dest="repeated", action="store_true")
    add("-s", dest="setup", metavar="CODE")
    add("--max-time", metavar="T", type=duration)
    add("--on", metavar="DEVICES")
    form.flags("--cold")
    add_lines(form)
    form.apart("--lines", sorted(REPEATING))
    form.apart("--on", ("--kernels", "--trace", "--nvtx", "--flops", "--energy", *BASELINE))
    add("--trace", metavar="FILE")
    add("--nvtx", metavar="NAME")
    form.flags("--kernels", "--flops", "--energy")
    add("--name", metavar="NAME", type=_name)
    add_baseline(form)
    add_targets(form)
    form.apart("--cluster", _ONLY_HERE)
    return form


def _name(word: str) -> str:
    if not word or "," in word:
        raise ArgumentTypeError(f"{word!r} is not a name; it must not hold a comma")
    return word
