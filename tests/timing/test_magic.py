"""``%cudatime``'s own options, and what its results look like."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.results import CudaTiming, Sample


def test_output_returns_the_timing_and_displays_the_value(run_cell: Any) -> None:
    ran = run_cell("%%cudatime -o\n6 * 7")
    assert isinstance(ran.value, CudaTiming)
    assert "42" in ran.text.splitlines()
    assert "Wall" in ran.text


def test_variable_and_quiet(run_cell: Any) -> None:
    ran = run_cell("%cudatime -q -v t 6 * 7")
    assert ran.value == 42
    assert ran.text == ran.stdout.replace("Out[1]: 42\n", "") == ""
    assert isinstance(run_cell("t").value, CudaTiming)


def test_quiet_as_a_default(ip: Any, run_cell: Any) -> None:
    run_cell("%config GpuMagic.quiet = True")
    assert run_cell("%cudatime 6 * 7").text == ""


def test_a_semicolon_silences_the_value_not_the_times(run_cell: Any) -> None:
    ran = run_cell("%cudatime 6 * 7;")
    assert ran.value is None
    assert "Wall" in ran.text


@pytest.mark.parametrize("magic", ["cudatime", "gpumem"])
def test_a_semicolon_and_the_result(magic: str, ip: Any, run_cell: Any) -> None:
    """-o gives it to an assignment; nothing is displayed of what stands alone."""
    assert run_cell(f"r = %{magic} -o -q 6 * 7;\nr").value is not None
    assert run_cell(f"r = %{magic} -o -q -v t await __import__('asyncio').sleep(0);\nr is t").value
    for bare in (
        f"%{magic} -o -q 6 * 7;",
        f"%{magic} -o -q 6 * 7; ",
        f"%%{magic} -o -q\n6 * 7;\n",
        f"if True:\n    %{magic} -o -q 6 * 7;",
    ):
        ran = run_cell(bare)
        assert ran.value is None, bare
        assert "Out[" not in ran.stdout
    assert run_cell(f"%{magic} -o -q 6 * 7").value is not None
    assert run_cell(f"%{magic} -q ';'").value == ";"
    assert run_cell(f"%%{magic} -q\n6 * 7  # a note;\n").value == 42
    assert run_cell(f"%%{magic} -o -q\n6 * 7;  # quiet\n").value is None


def test_a_semicolon_ends_an_option(run_cell: Any) -> None:
    assert run_cell("%gpumem -q;").text == ""
    assert run_cell("%gpumem -o;").value is None
    run_cell("%gpumem -q -v report;")
    assert run_cell("report is not None").value
    assert run_cell("%%cudatime -q;\n42").value == 42
    run_cell("%%cudatime -q -v timing -n 2 -r 3;\n42")
    assert run_cell("timing.repeat").value == 3
    error = run_cell("%cudatime -q;", raising=False).error
    assert "no statement" in str(error)
    error = run_cell("%cudatime --compare;", raising=False).error
    assert "none is kept" in str(error)


def test_options_end_where_the_statement_begins(ip: Any, run_cell: Any) -> None:
    ip.user_ns["f"] = lambda *arguments: ip.user_ns.update(got=arguments)
    ip.user_ns["x"] = 5
    timing = run_cell("%cudatime -n 3 -r 2 -o -q f(-x, '-q -n 9')").value
    assert (timing.loops, timing.repeat) == (3, 2)
    assert ip.user_ns["got"] == (-5, "-q -n 9")
    assert run_cell("%cudatime -q -- -x").value == -5
    assert run_cell("%cudatime -n4 -r2 -qo x").value.loops == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%cudatime", "no statement"),
        ("%cudatime -n 0 1", "'0' is not a number of 1 or more"),
        ("%cudatime -r x 1", "'x' is not a number"),
        ("%cudatime -w -1 1", "-1"),
        ("%cudatime -n", "expected one argument"),
        ("%cudatime --repaet 1", "unknown option --repaet"),
        ("%cudatime --precision 1% -r 5 1", "-r 5 (r=5) repeats leave nothing for --precision"),
        ("%cudatime --max-time 1s -r 5 1", "nothing for --max-time (max_time=…) to decide"),
        ("%cudatime --cold -n 5 1", "leave -n 5 (n=5) out"),
        ("%cudatime onn", "%cudatime onn: there is no such name; did you mean on?"),
        ("%cudatime -q lgo;", "%cudatime lgo: there is no such name; did you mean log?"),
        ("%gpumem onn", "%gpumem onn: there is no such name; did you mean on?"),
        ("%gpumem -q lgo", "%gpumem lgo: there is no such name; did you mean log?"),
        ("%cudatime -v 1x 1", "'1x' is not a variable name"),
        ("%%cudatime x = 1\ny = 2", "'x = 1' belongs below"),
    ],
)
def test_bad_lines_are_one_line(line: str, says: str, run_cell: Any) -> None:
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert says in str(error)
    assert "\n" not in str(error)


def test_no_warm_up_alone_is_a_repeated_run(run_cell: Any) -> None:
    timing = run_cell("%cudatime -o -q -w 0 sum(range(100_000))").value
    assert timing.repeat > 1
    assert timing.warmup == 0


def test_a_statement_that_awaits(run_cell: Any) -> None:
    run_cell("import asyncio")
    ran = run_cell("%cudatime await asyncio.sleep(0.02, 3)")
    assert ran.value == 3
    assert "Wall" in ran.text
    timing = run_cell("é = %cudatime -o -q await asyncio.sleep(0.02)\né").value
    assert timing.wall.median >= 0.02
    inside = "\n    t = %cudatime -o -q -n 2 -r 3 await asyncio.sleep(0)\n"
    assert run_cell(f"if True:{inside}t").value.repeat == 3
    assert run_cell(f"async def f():{inside}    return t\nawait f()").value.repeat == 3
    # text is text, and what awaits already is left as it is
    text = "get_ipython().run_line_magic('cudatime', '-q await asyncio.sleep(0, 5)')"
    assert run_cell(f'"""\n{text}\n"""').value == f"\n{text}\n"
    assert run_cell(f"await {text}").value == 5


def test_where_nobody_awaits(ip: Any, run_cell: Any) -> None:
    """One line, and no coroutine that never runs."""
    ip.user_ns["runs"] = runs = []
    run_cell("async def step(): runs.append(1)")
    for line in ("%cudatime", "%cudatime -n 1", "%gpumem"):
        error = run_cell(f"def f():\n    {line} await step()\nf()", raising=False).error
        name = line.split()[0]
        assert str(error) == f"{name} cannot await here; write it below %{name}"
    call = "get_ipython().run_cell_magic('cudatime', '', 'await step()')"
    error = run_cell(f"def f(): return {call}\nf()", raising=False).error
    assert str(error) == "%%cudatime cannot await here; give it a cell of its own"
    assert runs == []


def test_a_name_of_the_users_is_no_verb(ip: Any, run_cell: Any) -> None:
    ip.user_ns.update(onn=3, of=4)
    assert run_cell("%cudatime -q onn").value == 3
    assert run_cell("%gpumem -q of").value == 4
    inside = "return get_ipython().run_line_magic('gpumem', '-q logs')"
    assert run_cell(f"def f(logs): {inside}\nf(5)").value == 5
    for line in ("%cudatime -q -- lgo", "%cudatime -q nothing_like_it", "%gpumem -q -- lgo"):
        assert isinstance(run_cell(line, raising=False).error, NameError)


def test_repeated_leaves_nothing_behind(ip: Any, run_cell: Any) -> None:
    before = {*ip.user_ns}
    ran = run_cell("%%cudatime -n 3 -r 2 -w 1\nmade = 1\nmade + 1")
    assert ran.value is None
    assert {n for n in {*ip.user_ns} - before if not n.startswith("_")} == set()
    assert "2 repeats, 3 loops each" in ran.text


def test_repeated_runs_as_often_as_it_says(ip: Any, run_cell: Any) -> None:
    ip.user_ns["runs"] = runs = []
    run_cell("%%cudatime -n 3 -r 4 -w 2 -q\nruns.append(1)")
    assert len(runs) == 2 + 3 * 4


def test_loops_are_chosen(run_cell: Any, clock: None) -> None:
    timing = run_cell("import time\n%cudatime -o -q -r 2 time.sleep(0.03)").value
    assert timing.loops == 10
    assert timing.repeat == 2


def test_the_collector_is_off_while_repeating(ip: Any, run_cell: Any) -> None:
    ip.user_ns["seen"] = seen = []
    run_cell("%cudatime -q -n 1 -r 2 -w 1 seen.append(__import__('gc').isenabled())")
    assert seen == [False] * 3
    assert gc.isenabled()


def test_repeated_sees_a_functions_locals(ip: Any, run_cell: Any) -> None:
    source = (
        "def f():\n    local = 3\n"
        "    get_ipython().run_line_magic('cudatime', '-q -n 1 -r 1 -w 1 got.append(local)')\nf()"
    )
    ip.user_ns["got"] = got = []
    run_cell(source)
    assert got == [3, 3]
    assert "local" not in ip.user_ns


@pytest.mark.parametrize("body", ["return 1", "yield 1", "a = (", "from string import *"])
def test_repeated_refuses_what_does_not_compile(body: str, run_cell: Any) -> None:
    assert isinstance(run_cell(f"%%cudatime -n 1\n{body}", raising=False).error, SyntaxError)


def test_repeated_shows_what_is_complete_when_it_raises(ip: Any, run_cell: Any) -> None:
    ip.user_ns["left"] = [1, 2, 3]
    ran = run_cell("%cudatime -n 1 -w 0 -r 9 left.pop()", raising=False)
    assert isinstance(ran.error, IndexError)
    assert "3 of 9 repeats, 1 loop each, stopped early" in ran.text


def test_help_is_complete(run_cell: Any) -> None:
    from gpumagic.magics.cudatime.command import help_text, parser

    for option in parser().option_strings():
        assert option in help_text()
    assert "examples:" in help_text()


def timing(**fields: Any) -> CudaTiming:
    one = Sample((0.0123,))
    return CudaTiming(**{"gpu": one, "wall": one, "cpu": one, **fields})


def test_a_single_run_in_text() -> None:
    shown = str(
        timing(
            gpu=Sample((0.05,)),
            wall=Sample((0.0502,)),
            cpu=Sample((2e-5,)),
            cpu_user=Sample((1.5e-5,)),
            cpu_system=Sample((5e-6,)),
            host=Sample((3e-5,)),
            per_device={0: Sample((0.05,))},
        )
    )
    assert shown.splitlines() == [
        "GPU   50.0 ms  cuda:0",
        "Wall  50.2 ms",
        "CPU   20.0 µs  user 15.0 µs, sys 5.00 µs",
        "Host  30.0 µs  until the code returned",
    ]


def test_several_devices_in_text() -> None:
    shown = str(timing(per_device={0: Sample((0.0123,)), 3: Sample((0.005,))}))
    assert "  cuda:0  12.3 ms" in shown
    assert "  cuda:3  5.00 ms" in shown


def test_no_gpu_in_text() -> None:
    lines = str(timing(gpu=None, gpu_note="no GPU time: torch is not imported")).splitlines()
    assert lines[0].split() == ["GPU", "–"]
    assert lines[-1] == "no GPU time: torch is not imported"


def test_repeats_in_text() -> None:
    sample = Sample((0.001, 0.002, 0.003, 0.004))
    lines = str(timing(gpu=sample, wall=sample, loops=10, repeat=4)).splitlines()
    assert lines[0].split() == ["per", "loop", "median", "IQR", "min", "max", "mean", "±", "std"]
    assert lines[2].split()[:9] == ["GPU", "2.50", "ms", "1.50", "ms", "1.00", "ms", "4.00", "ms"]
    assert "4 repeats, 10 loops each" in lines


# The public function.


def test_a_string(recwarn: pytest.WarningsRecorder) -> None:
    namespace: dict[str, Any] = {"runs": []}
    result = gpumagic.cudatime("runs.append(1)", n=2, r=3, w=1, globals=namespace)
    assert len(namespace["runs"]) == 7
    assert (result.loops, result.repeat, result.warmup) == (2, 3, 1)
    assert gpumagic.cudatime("test_a_string", n=1, r=1).loops == 1, "the caller's names are seen"
    with pytest.raises(SyntaxError):
        gpumagic.cudatime("return 1", n=1)


def test_bad_arguments() -> None:
    with pytest.raises(gpumagic.SpecError, match="n is 0, but must be 1 or more"):
        gpumagic.cudatime(lambda: None, n=0)
    with pytest.raises(gpumagic.SpecError, match="need something to run"):
        gpumagic.cudatime(n=3)
    with pytest.raises(TypeError, match="not int"):
        gpumagic.cudatime(3)  # type: ignore[call-overload]


def test_a_block() -> None:
    timed = gpumagic.cudatime()
    with pytest.raises(RuntimeError, match="not ended"):
        _ = timed.wall
    with timed as inside:
        assert inside is timed
    assert isinstance(timed.result, CudaTiming)
    assert timed.wall is timed.result.wall


def test_a_block_that_raises() -> None:
    timed = gpumagic.cudatime()
    with pytest.raises(ZeroDivisionError), timed:
        _ = 1 / 0
    assert timed.result.partial


def test_a_decorator(capsys: pytest.CaptureFixture[str]) -> None:
    @gpumagic.cudatime
    def twice(x: int) -> int:
        """Doubles."""
        return 2 * x

    assert twice(4) == 8
    assert twice.__name__ == "twice"
    assert isinstance(twice.timing, CudaTiming)  # type: ignore[attr-defined]
    assert "twice:\n" in (out := capsys.readouterr().out)
    assert "Wall" in out

    @gpumagic.cudatime(quiet=True)
    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - raised above
        fails()
    assert fails.timing.partial  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""
