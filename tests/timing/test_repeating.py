"""Repeated runs: when they stop, setup, cold caches, compilation, other devices."""

from __future__ import annotations

import time
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from gpumagic.results import Comparison
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND


def test_stops_when_the_median_is_known(work: Any) -> None:
    timing = gpumagic.cudatime(lambda: work.sleep(1e-3), precision=0.05)
    assert timing.quality.stopped_by == "precision"
    assert timing.quality.precision <= 0.05
    assert timing.repeat >= 10
    assert timing.loops == 1
    assert "as precise as requested" in str(timing)


def test_stops_when_the_time_is_over(work: Any) -> None:
    durations = iter([1e-3, 3e-3] * 10_000)
    begun = time.perf_counter()
    timing = gpumagic.cudatime(lambda: work.sleep(next(durations)), max_time=0.3)
    assert time.perf_counter() - begun < 10, "all the runs would take 40 s"
    assert timing.quality.stopped_by == "max-time"
    assert timing.quality.precision > 0.01
    assert "the time limit was reached" in str(timing)


def test_one_slow_run_is_enough_for_no_time(work: Any) -> None:
    timing = gpumagic.cudatime(lambda: work.sleep(0.2), max_time=0.1)
    assert timing.repeat == 1
    assert timing.quality.precision is None
    assert "too few" in str(timing)


def test_small_code_runs_many_loops(work: Any) -> None:
    timing = gpumagic.cudatime(lambda: work.sleep(20e-6), precision=0.05)
    assert timing.loops >= 10
    assert timing.gpu.median == pytest.approx(20e-6, rel=0.05)


def test_given_numbers_have_no_stopping_rule(work: Any) -> None:
    timing = gpumagic.cudatime(lambda: work.sleep(1e-3), n=2, r=8)
    assert timing.quality.stopped_by is None
    assert (timing.loops, timing.repeat) == (2, 8)
    assert timing.quality.precision is not None
    timing = gpumagic.cudatime(lambda: work.sleep(1e-3), n=2, precision=0.1)
    assert timing.loops == 2
    assert timing.quality.stopped_by == "precision"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-n 1 -r 3 -w 0", "1 of 3 repeats, 1 loop each, stopped early"),
        ("-n 1 --max-time 9s -w 0", "1 repeat, 1 loop each, stopped early"),
    ],
)
def test_stopped_after_one_repeat(options: str, says: str, ip: Any, run_cell: Any) -> None:
    ip.user_ns["once"] = iter([1])
    ran = run_cell(f"%%cudatime {options}\nnext(once)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert says in ran.text


def test_drift_and_outliers_are_flagged_and_counted(work: Any) -> None:
    durations = iter([1e-3, *[1e-3] * 20, *[2e-3] * 19, 20e-3])
    timing = gpumagic.cudatime(lambda: work.sleep(next(durations)), n=1, r=40, w=1)
    assert timing.quality.drift == pytest.approx(1.0, abs=0.2)
    assert timing.gpu.worst >= 20e-3
    assert any(value >= 20e-3 for value in timing.quality.outliers)
    assert len(timing.gpu.all) == 40
    assert "drift: the second half" in str(timing)
    assert "of 40 repeats, up to" in str(timing)
    assert "all are counted" in str(timing)


def test_clocks_held_down_are_flagged(work: Any, virtual_gpu: Any) -> None:
    code = {"n": 1, "r": 2, "w": 1}
    assert gpumagic.cudatime(lambda: work.sleep(1e-3), **code).quality.throttled == {}
    virtual_gpu.set_gpu(0, throttle_reasons=0x04 | 0x40 | 0x01)
    timing = gpumagic.cudatime(lambda: work.sleep(1e-3), **code)
    assert timing.quality.throttled == {0: ("power limit", "too hot (hardware)")}
    assert "cuda:0's clock was throttled: power limit, too hot" in str(timing)
    virtual_gpu.set_gpu(0, throttle_reasons=0x01)  # idle is no trouble
    assert gpumagic.cudatime(lambda: work.sleep(1e-3), **code).quality.throttled == {}
    virtual_gpu.set_gpu(0, unsupported={"throttle_reasons"})
    assert gpumagic.cudatime(lambda: work.sleep(1e-3), **code).quality.throttled == {}


def test_cold_empties_the_cache(work: Any, virtual_gpu: Any) -> None:
    def writes(**options: Any) -> tuple[int, Any]:
        """How many kernels and fills a timing takes: some versions of torch fill by a kernel."""
        names = ("cudaMemsetAsync", "cudaLaunchKernel", "__cudaLaunchKernel")
        before = sum(map(virtual_gpu.calls, names))
        timing = gpumagic.cudatime(lambda: work.sleep(1e-3), n=1, r=5, w=0, **options)
        return sum(map(virtual_gpu.calls, names)) - before, timing

    warm, _ = writes()
    cold, timing = writes(cold=True)
    assert timing.loops == 1
    assert timing.quality.flushed[0] == 50 * 2**20
    assert cold >= warm + 5
    assert "L2 cache flushed before each loop: cuda:0 50.0 MiB" in str(timing)
    # It is not in the times.
    assert timing.gpu.best == pytest.approx(1e-3, rel=0.03)
    with pytest.raises(gpumagic.SpecError, match="leave -n 5"):
        gpumagic.cudatime(lambda: None, cold=True, n=5)


def test_contradictions_are_refused() -> None:
    with pytest.raises(gpumagic.SpecError, match="leave nothing for --precision"):
        gpumagic.cudatime(lambda: None, r=5, precision=0.01)
    with pytest.raises(gpumagic.SpecError, match="above 0"):
        gpumagic.cudatime(lambda: None, max_time=0)


# Setup.


def test_setup_is_run_before_each_repeat_and_not_timed(ip: Any, run_cell: Any, clock: None) -> None:
    ip.user_ns["made"] = made = []
    source = (
        "%%cudatime -n 2 -r 3 -w 1 -o -q import time; time.sleep(0.02); made.append(1); k = 7\n"
        "made.append(k)"
    )
    timing = run_cell(source).value
    assert timing.wall.best < 0.01, "half of what the setup would add to each"
    assert made == [1, 7] + [1, 7, 7] * 3
    assert "k" not in ip.user_ns


def test_setup_by_option_and_by_line_together(ip: Any, run_cell: Any) -> None:
    ip.user_ns["got"] = got = []
    run_cell("%%cudatime -s 'a = 1; b = 2' -n 1 -r 1 -w 0 -q c = a + b\ngot.append((a, b, c))")
    assert got == [(1, 2, 3)]
    run_cell('%cudatime -n 1 -r 1 -w 0 -q -s "a = 5" got.append(a)')
    assert got[-1] == 5


def test_setup_sees_a_functions_locals_and_magics(ip: Any, run_cell: Any) -> None:
    ip.user_ns["got"] = got = []
    source = (
        "def f():\n    local = 3\n"
        "    get_ipython().run_line_magic('cudatime', "
        "'-q -n 1 -r 1 -w 0 -s \"k = local\" got.append(k)')\nf()"
    )
    run_cell(source)
    assert got == [3]


def test_setups_errors_point_at_the_line(run_cell: Any) -> None:
    ran = run_cell("%%cudatime -n 1 k = 1 / 0\nk + 1", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert "----> 1 %%cudatime -n 1 k = 1 / 0" in ran.stdout + ran.stderr
    ran = run_cell("%%cudatime -n 1 k = (\nk + 1", raising=False)
    assert isinstance(ran.error, SyntaxError)
    ran = run_cell("%%cudatime -n 1 return\nk + 1", raising=False)
    assert isinstance(ran.error, SyntaxError)


def test_setup_of_the_function() -> None:
    got: list[Any] = []
    gpumagic.cudatime("got.append(k)", setup="k = 3", n=2, r=2, w=0, globals={"got": got})
    assert got == [3] * 4
    gpumagic.cudatime(lambda: got.append(1), setup=lambda: got.append(0), n=2, r=2, w=0)
    assert got[4:] == [0, 1, 1] * 2
    with pytest.raises(TypeError, match="source text too"):
        gpumagic.cudatime("1", setup=lambda: None, n=1)


# The magic's options.


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%cudatime --precision 1 1", "'1' is not a share; write 1% or 0.01"),
        ("%cudatime --max-time soon 1", "'soon' is not a time"),
        ("%cudatime -r 3 --precision 1% 1", "leave nothing for --precision"),
        ("%cudatime --cold -n 5 1", "leave -n 5 (n=5) out"),
        ("%cudatime -s 'x = 1 y", "no closing quotation"),
        ("%cudatime --on mars 1", "'mars' is not a device"),
        ("%cudatime --on cuda:9 1", "there is no cuda:9: this kernel sees cuda:0"),
        ("%cudatime --on mps 1", "there is no mps"),
        ("%cudatime --on cpu,cpu 1", "cpu is named twice"),
        ("%cudatime --on cpu,cuda --kernels 1", "leave --on out"),
        ("%%cudatime x = 1\ny = 2", "with --repeat it is setup"),
    ],
)
def test_bad_lines_are_one_line(line: str, says: str, run_cell: Any) -> None:
    error = run_cell(line, raising=False).error
    assert type(error) is UsageError
    assert says in str(error)
    assert "\n" not in str(error)


def test_options_reach_the_repetition(work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = work.torch
    code = f"torch.cuda._sleep({SLEEP_CYCLES_PER_SECOND // 1000})"
    timing = run_cell(f"%cudatime -o -q --repeat --precision 20% --queued --cold {code}").value
    assert timing.quality.stopped_by == "precision"
    assert timing.queued.median == pytest.approx(1e-3, rel=0.02)
    assert timing.quality.flushed
    timing = run_cell(f"%cudatime -o -q --max-time 50ms {code}").value
    assert timing.quality.stopped_by == "max-time"


# torch.compile.


def test_compilation_is_shown_apart(work: Any) -> None:
    torch = work.torch
    x = torch.ones(16, device="cuda")

    def backend(graph: Any, inputs: Any) -> Any:
        time.sleep(0.1)  # by the virtual clock compiling takes this, and nothing else
        return graph.forward

    for options in ({"n": 2, "r": 3, "w": 0}, {"n": 2, "r": 3}, {"precision": 0.5}):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: x * 2 + 1, backend=backend)
        timing = gpumagic.cudatime(lambda f=compiled: f(x), **options)
        assert len(timing.compilations) == 1
        assert timing.compilations[0] > 20 * timing.wall.median
        assert timing.wall.worst < timing.compilations[0]
        assert "torch.compile compiled in the first run, not counted" in str(timing)
        if "r" in options:
            assert timing.repeat == 3
        again = gpumagic.cudatime(lambda f=compiled: f(x), **options)
        assert again.compilations == ()


# Several devices.


def test_on_several_devices(work: Any, ip: Any, run_cell: Any) -> None:
    source = (
        "%%cudatime --on cpu,cuda:0,cuda:1 -n 2 -r 5 -o -q -v t x = torch.ones(64, 64)\n"
        "import gpumagic\n"
        "seen.append((str(x.device), str(gpumagic.device()), torch.cuda.current_device()))\n"
        "y = x @ x"
    )
    ip.user_ns.update(torch=work.torch, seen=[])
    before = gpumagic.device()
    result = run_cell(source).value
    assert isinstance(result, Comparison)
    assert [entry.name for entry in result] == ["cpu", "cuda:0", "cuda:1"]
    assert result is run_cell("t").value
    assert {*ip.user_ns["seen"]} == {
        ("cpu", "cpu", 0),
        ("cuda:0", "cuda:0", 0),
        ("cuda:1", "cuda:1", 1),
    }
    assert result["cpu"].timing.gpu is None or result["cpu"].timing.gpu_at_most
    assert {*result["cuda:1"].timing.per_device} <= {1}
    assert gpumagic.device() == before
    assert str(work.torch.ones(1).device) == "cpu"
    assert work.torch.cuda.current_device() == 0


def test_on_shows_one_table(work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = work.torch
    ran = run_cell("%%cudatime --on cpu,cuda -n 2 -r 5 x = torch.ones(8, 8)\nx @ x")
    assert "cuda:0" in ran.text
    assert "baseline" in ran.text


def test_on_shows_what_is_complete_when_it_raises(work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["torch"] = work.torch
    ran = run_cell(
        "%%cudatime --on cpu,cuda:0 -n 1 -r 2\nassert str(torch.ones(1).device) == 'cpu'",
        raising=False,
    )
    assert isinstance(ran.error, AssertionError)
    assert "baseline" in ran.text
    assert "stopped early: not one repeat is complete on cuda:0" in ran.text
    assert str(work.torch.ones(1).device) == "cpu"


def test_on_that_is_stopped_says_where(work: Any, ip: Any, run_cell: Any) -> None:
    ip.user_ns["left"] = iter(range(3))
    on = "%%cudatime --on cpu,cuda:0 -n 1 -r 2 -w 0 -v t --name it"
    ran = run_cell(f"{on}\nnext(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "stopped early on cuda:0, after 1 of 2 repeats" in ran.text
    compared = run_cell("t").value
    assert [(each.name, each.timing.partial) for each in compared] == [
        ("cpu", False),
        ("cuda:0", True),
    ]
    # on the first device
    ip.user_ns["left"] = iter(range(1))
    ran = run_cell(f"{on}\nnext(left)", raising=False)
    assert "cpu" in ran.text
    assert "stopped early on cpu, after 1 of 2 repeats" in ran.text
    # before there is anything
    ran = run_cell(f"{on}\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    assert "stopped before the first repeat was complete" in ran.stdout


def test_on_passes_the_codes_exception_when_ours_fails(
    work: Any, ip: Any, run_cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumagic.magics.cudatime import device_comparison

    monkeypatch.setattr(device_comparison, "compare", lambda timings: 1 / 0)
    ip.user_ns["left"] = iter(range(3))
    ran = run_cell("%%cudatime --on cpu,cuda:0 -n 1 -r 2 -w 0\nnext(left)", raising=False)
    assert isinstance(ran.error, StopIteration)
    assert "cannot show the times (ZeroDivisionError: division by zero)" in ran.stdout


def test_on_that_awaits(ip: Any, run_cell: Any) -> None:
    import torch

    ip.user_ns.update(torch=torch, seen=[])
    run_cell(
        "%%cudatime --on cpu -n 1 -r 1 -w 0 -q\nimport asyncio\nawait asyncio.sleep(0)\n"
        "seen.append(str(torch.ones(1).device))"
    )
    assert ip.user_ns["seen"] == ["cpu"]
