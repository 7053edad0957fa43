"""The options of ``%cudatime`` and of its verbs.

Light to import: completion does, at a key press.
"""

from __future__ import annotations

import argparse

from gpumagic.magics.argument_types import duration_or_zero
from gpumagic.magics.cudatime.repeat_options import add_options as add_repeats
from gpumagic.magics.parsing import Parser, add_functions_option, add_result_options
from gpumagic.magics.shared_options import BASELINE, add_baseline, add_targets
from gpumagic.timing.plan import DEFAULT_REPEAT, ENERGY_SECONDS, MIN_REPEAT_TIME

_DESCRIPTION = f"""\
Time code on the GPU, on the wall and on the CPU.

  %cudatime STATEMENT     run the statement once, like %time
  %%cudatime              run the cell once, like %%time
  %%cudatime --lines      once, line by line: GPU and host time, waits for the GPU and for input
  %%cudatime -n 10 -r 5   run it many times, like %%timeit: 5 repeats of 10 loops
  %cudatime --compare     the results named by --name, side by side
  %cudatime on            from now on a line with the times of every cell that used the GPU, or
                          took longer than 0.5 s (--above TIME); off ends that; log sums them up;
                          work that a cell waited for itself, or on streams that are not torch's,
                          may not be seen there

GPU time is measured by CUDA events on every device in use, and includes side streams and other
threads: from the start of the code until the device has finished its last work. A time with ≤ is
an upper bound: the GPU finished no later than the code, so it may have been idle in between.
Work has to leave a sign: it is unfinished when the code returns, torch allocates memory for it, or
waits for it. Else there is no GPU time; other libraries' work may have ended unseen.
Wall time ends when everything, GPU work included, has finished; host time when the code returns.
The GPU times of --lines add up to the cell's: work beside an earlier line's counts to that one. A
statement over several lines counts to its first line, with what it awaits. Calls of torch's that
wait for the GPU are known by name; other waits are found by the times of a line, with a ≤.

A single run assigns the code's variables and returns its value. With an option of "repeated runs",
or --energy, the code becomes the body of a function, assigns nothing in the namespace, the garbage
collector is off, and code on the %%cudatime line is setup. The repeats end when the median is
precise enough, or the time is over; -n alone is {DEFAULT_REPEAT} repeats, -r alone as many loops as
last {MIN_REPEAT_TIME:g} s. Unless -w is given with -n or -r, a few more loops are run behind a
delay kernel, to find what limits the code: the GPU, or the host that launches the work.
"""

_EXAMPLES = """\
examples:
  %cudatime y = model(x)
  %cudatime -r 20 model(x)
  timing = %cudatime -o -q -n 100 model(x)
  %cudatime -- -x @ y

  %%cudatime -v step
  loss = model(x).sum()
  loss.backward()

  %%cudatime --lines -f train_step
  for batch in loader:
      train_step(batch)

  %%cudatime --repeat x = torch.rand(4096, 4096, device="cuda")
  x @ x

  %%cudatime --on cpu,cuda:0 x = torch.rand(2048, 2048)
  x @ x
"""

#: Options that no verb has.
OF_A_RUN = {
    *("--name", "--trace", "--nvtx", "--kernels", "--compare", "--flops", "--lines", "-f"),
    *BASELINE,
}

#: Seconds from which a cell without GPU work gets a line by default.
ABOVE = 0.5

# argparse formats a usage with %.
_USAGE = "%%cudatime [options] STATEMENT\n       %%%%cudatime [options] [SETUP]"


def parser() -> Parser:
    """Return the parser of the options of ``%cudatime``."""
    made = Parser("%cudatime", description=_DESCRIPTION, epilog=_EXAMPLES, usage=_USAGE)
    add_repeats(made)
    _add_lines(made)
    made.add_argument(
        "--rows",
        action="store_true",
        help="show a single run with a row for each of its times, instead of in one line",
    )
    _add_profiler(made)
    _add_work(made)
    _add_comparing(made)
    add_baseline(made, "it takes that much longer, beyond the noise")
    group = made.add_argument_group("many processes")
    add_targets(group)
    group.add_argument(
        "--barrier",
        action="store_true",
        help="wait for the other ranks of torch.distributed's group before the clocks start",
    )
    add_result_options(made)
    return made


def verb_parser(verb: str) -> Parser:
    """Return the parser of the options of ``%cudatime VERB``."""
    made = Parser(f"%cudatime {verb}")
    if verb == "on":
        made.add_argument(
            "--above",
            metavar="TIME",
            type=duration_or_zero,
            default=ABOVE,
            help="also cells without GPU work that take longer",
        )
    add_result_options(made)
    return made


def _add_lines(parser: Parser) -> None:
    """Add ``--lines`` and ``-f``."""
    group = parser.add_argument_group("line by line")
    group.add_argument(
        "--lines",
        action="store_true",
        help="GPU and host time of each line, the calls in which it waits for the GPU or for "
        "input, and what limits the cell",
    )
    add_functions_option(group)


def _add_profiler(parser: Parser) -> None:
    """Add ``--kernels``, ``--trace`` and ``--nvtx``."""
    group = parser.add_argument_group("where the time goes")
    group.add_argument(
        "--kernels",
        action="store_true",
        help="run the code once more, under torch's profiler, and show its kernels by time; with "
        "--lines, also how long those of each line kept the GPU busy",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="the same run's trace, for ui.perfetto.dev (.json or .json.gz)",
    )
    group.add_argument(
        "--nvtx", metavar="NAME", help="put an NVTX range around the timed run, for Nsight"
    )


def _add_work(parser: Parser) -> None:
    """Add ``--flops`` and ``--energy``."""
    group = parser.add_argument_group("what the code did")
    group.add_argument(
        "--flops",
        action="store_true",
        help="run the code once more under torch's FLOP counter: operations per loop, per second, "
        "and the share of the card's dense peak where that is known",
    )
    group.add_argument(
        "--energy",
        action="store_true",
        help=f"repeat the code, as --repeat does, and for {ENERGY_SECONDS:g} s more at least: "
        "joules per loop and mean watts by NVML's counter of the whole device; no figure per loop "
        "beside other processes",
    )


def _add_comparing(parser: Parser) -> None:
    """Add ``--name`` and ``--compare``."""
    group = parser.add_argument_group("comparing")
    group.add_argument("--name", metavar="NAME", type=_name, help="name the result, to compare it")
    group.add_argument(
        "--compare",
        action="store_true",
        help="show the named results side by side, the first as the baseline; names after it "
        "(one with a blank in quotes) choose some, and which is the first",
    )


def _name(word: str) -> str:
    if not word or "," in word:
        raise argparse.ArgumentTypeError(f"{word!r} is not a name; it must not hold a comma")
    return word
