"""Within a source no moment counts twice: the rows of a function never exceed the cell."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from math import fsum
from types import CodeType
from typing import Any

import pytest

from gpumagic.results import CudaTiming
from gpumagic.results.line_timing import LineTiming
from tests.support.line_cells import measured

#: What reading marks may differ by: CUDA returns times with 24 bits.
RESOLUTION = 2e-6
#: Work before all other, so that the GPU is behind the host, and no time is an upper bound.
AHEAD = 0.02


def rows(timing: CudaTiming) -> list[dict[int, LineTiming]]:
    """The lines by number, of the cell and of each function; none counts a moment twice."""
    assert timing.lines is not None, timing.notes
    assert timing.gpu is not None
    assert timing.host is not None
    assert timing.lines.between is not None
    found = [timing.lines.cell, *timing.lines.functions]
    for source in found:
        assert fsum(line.gpu or 0.0 for line in source.lines) <= timing.gpu.median + RESOLUTION
        assert fsum(line.host for line in source.lines) <= timing.host.median + RESOLUTION
        for ordinal, sample in timing.per_device.items():
            of_device = (line.per_device.get(ordinal, 0.0) for line in source.lines)
            assert fsum(of_device) <= sample.median + RESOLUTION
    of_cell = [*timing.lines.cell.lines, timing.lines.between]
    assert fsum(line.gpu or 0.0 for line in of_cell) == pytest.approx(timing.gpu.median, rel=1e-6)
    return [{line.line: line for line in source.lines} for source in found]


CASES: dict[str, tuple[str, tuple[dict[int, float], ...]]] = {
    "recursion": (
        """\
def f(n):
    sleep(.01)
    if n:
        f(n - 1)
    sleep(.001)
f(3)
""",
        ({4: 0.04, 5: 0.0, 6: 0.0, 7: 0.004},),
    ),
    "recursion in one line": (
        """\
def f(n): sleep(.01), n and f(n - 1)


f(3)
""",
        ({3: 0.04},),
    ),
    "mutual recursion": (
        """\
def f(n):
    sleep(.01)
    if n: g(n - 1)
def g(n):
    sleep(.02)
    if n: f(n - 1)
f(3)
""",
        # While one of them runs, the other one's line that called it has the time, too.
        ({4: 0.02, 5: 0.04}, {7: 0.04, 8: 0.01}),
    ),
    "two generators": (
        """\
def f():
    sleep(.01)
    yield 1
    sleep(.02)
    yield 2
    sleep(.001)

for a, b in zip(f(), f()):
    sleep(.1)
""",
        ({4: 0.02, 5: 0.0, 6: 0.04, 7: 0.0, 8: 0.001},),
    ),
    "a generator within itself": (
        """\
def f(n):
    sleep(.01)
    if n:
        for each in f(n - 1):
            sleep(.001)
            yield each
    yield n

for i in f(2):
    sleep(.1)
""",
        ({4: 0.03, 5: 0.0, 6: 0.0, 7: 0.003, 8: 0.0, 9: 0.0},),
    ),
    "two coroutines": (
        """\
async def f(t):
    sleep(t)
    await asyncio.sleep(0)
    sleep(10 * t)
async def main():
    await asyncio.gather(f(.01), f(.02), other(.05))
asyncio.run(main())
""",
        ({4: 0.03, 5: 0.05, 6: 0.3},),
    ),
    "three coroutines": (
        """\
async def f(t):
    sleep(t)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sleep(10 * t)
async def main():
    await asyncio.gather(f(.01), other(.001), f(.02), other(.002), f(.04), other(.004))
asyncio.run(main())
""",
        # Where nothing waits, or runs, on the second line yet, the first one has the time.
        ({4: 0.07, 5: 0.007, 6: 0.0, 7: 0.7},),
    ),
    "a coroutine that awaits itself": (
        """\
async def f(n):
    sleep(.01)
    if n:
        await f(n - 1)
    else:
        await asyncio.sleep(0)
async def main():
    await asyncio.gather(f(2), other(.05))
asyncio.run(main())
""",
        ({4: 0.03, 5: 0.0, 6: 0.0, 8: 0.05},),
    ),
    "an asynchronous generator": (
        """\
async def f():
    sleep(.01)
    await asyncio.sleep(0)
    yield 1
    sleep(.02)
async def main():
    task = asyncio.ensure_future(other(.05))
    async for i in f():
        sleep(.1)
        await asyncio.sleep(0)
asyncio.run(main())
""",
        ({4: 0.01, 5: 0.05, 6: 0.0, 7: 0.02},),
    ),
    "a coroutine that is cancelled": (
        """\
async def f():
    await asyncio.sleep(60)
async def main():
    task = asyncio.ensure_future(f())
    await other(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sleep(.01)
    task.cancel()
    await asyncio.wait([task])
    sleep(.1)
asyncio.run(main())
sleep(.2)
""",
        ({4: 0.01},),
    ),
    "a coroutine that waits on": (
        """\
async def f():
    sleep(.01)
    await asyncio.sleep(0)
c = f()
c.send(None)
sleep(.2)
keep.append(c)
""",
        ({4: 0.01, 5: 0.2},),
    ),
    "a comprehension that waits": (
        """\
async def f(t):
    x = [
        await asyncio.sleep(0)
        for i in range(3)
    ]
async def main():
    await asyncio.gather(f(.01), other(.01), f(.02), other(.02))
asyncio.run(main())
""",
        ({4: 0.03},),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_moment_counts_to_one_line(name: str, gpu_work: Any) -> None:
    import asyncio

    cell, expected = CASES[name]
    keep: list[Any] = []

    async def other(seconds: float) -> None:
        gpu_work.sleep(seconds)

    timing = measured(
        f"sleep({AHEAD})\n{cell}",
        ("f", "g")[: len(expected)],
        sleep=gpu_work.sleep,
        other=other,
        asyncio=asyncio,
        keep=keep,
    )
    for coroutine in keep:
        coroutine.close()
    _, *functions = rows(timing)
    for found, true in zip(functions, expected, strict=True):
        times = {
            number: line.gpu for number, line in found.items() if line.gpu != 0 or number in true
        }
        if name == "a comprehension that waits" and sys.version_info >= (3, 12):
            # It is part of the function there, and its lines have events of their own.
            times = {4: sum(line.gpu or 0.0 for line in found.values())}
        assert times == {
            number: pytest.approx(seconds, abs=RESOLUTION) for number, seconds in true.items()
        }


def test_the_hosts_time_and_its_waits_count_once(gpu_work: Any) -> None:
    import asyncio

    x = gpu_work.torch.zeros((), device="cuda")
    cell = """\
async def f(n):
    time.sleep(.01)
    if n:
        await f(n - 1)
    await asyncio.sleep(0)
async def other():
    time.sleep(.05)
    sleep(.02)
    x.item()
async def main():
    await asyncio.gather(f(1), f(0), other())
asyncio.run(main())
"""
    timing = measured(cell, ("f",), sleep=gpu_work.sleep, time=time, asyncio=asyncio, x=x)
    _, found = rows(timing)
    assert {number: line.host for number, line in found.items()} == {
        3: pytest.approx(0.03, rel=0.02),
        4: pytest.approx(0.0, abs=1e-3),
        5: pytest.approx(0.0, abs=1e-3),
        6: pytest.approx(0.07, rel=0.02),
    }
    assert {number: line.syncs for number, line in found.items()} == {3: 0, 4: 0, 5: 0, 6: 1}


class Program:
    """A small random program of functions of all kinds that call one another and themselves."""

    KINDS = ("def", "def", "yields", "async def", "async def", "async yields")

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.names = [f"f{i}" for i in range(self._random.randint(1, 3))]
        self._kinds = {name: self._random.choice(self.KINDS) for name in self.names}
        lines = [f"sleep({AHEAD})"]
        for name, kind in self._kinds.items():
            lines.append(f"{'async ' * kind.startswith('async')}def {name}(n):")
            lines.append("    if n <= 0 or not calls.pop(): return")
            lines += ["    yield 0"] * ("yields" in kind)
            for _ in range(self._random.randint(2, 5)):
                lines += [f"    {line}" for line in self._statement(kind)]
        lines.append("async def main():")
        for _ in range(4):
            lines += [f"    {line}" for line in self._statement("async def")]
        self.text = "\n".join([*lines, "asyncio.run(main())", "sleep(.001)"])

    def _sleep(self) -> str:
        return f"work({self._random.randint(1, 50) * 1e-5:.5f})"

    def _named(self, *kinds: str) -> str | None:
        names = [name for name, kind in self._kinds.items() if kind in kinds]
        return f"{self._random.choice(names)}(n - 1)" if names else None

    def _statement(self, kind: str) -> list[str]:
        choices: list[list[str]] = [[self._sleep()], [f"[{self._sleep()} for i in range(2)]"]]
        plain, generator = self._named("def"), self._named("yields")
        if plain:
            choices += [[plain], [f"{self._sleep()}, {plain}"]]
            choices += [["try:", f"    {plain}", "    1 / 0", "except ArithmeticError:"]]
            choices[-1].append(f"    {self._sleep()}")
        if generator:
            second = self._named("yields")
            choices += [[f"for i in zip({generator}, {second}):", f"    {self._sleep()}"]]
            choices += [[f"x = [{self._sleep()} for i in {generator}]"], [f"next({generator}, 0)"]]
        if "yields" in kind:
            choices += [["yield 1"], ["yield", self._sleep()]]
        if kind == "yields" and generator:
            choices += [[f"yield from {generator}"]]
        if kind.startswith("async"):
            choices += [["await asyncio.sleep(0)"]] * 2
            one, two, each = *(self._named("async def") for _ in "12"), self._named("async yields")
            if one:
                choices += [[f"await {one}"], [f"await asyncio.gather({one}, {two}, other(.001))"]]
                choices += [[f"tasks.append(asyncio.ensure_future({one}))"]]
                choices += [["tasks and tasks.pop().cancel()"]]
            if each:
                choices += [[f"async for i in {each}:", f"    {self._sleep()}"]]
        return self._random.choice(choices)


def _function(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and that which runs in its lines."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_name in {"<listcomp>", "<genexpr>"}:
            yield from _function(each)


@pytest.mark.parametrize("seed", range(50))
def test_no_program_has_a_moment_twice(seed: int, gpu_work: Any) -> None:
    """And each line has at least the work that it, the innermost of its source, has launched."""
    import asyncio

    program = Program(seed)
    launched: Counter[tuple[str, int]] = Counter()
    codes: dict[CodeType, str] = {}

    def work(seconds: float) -> None:
        gpu_work.sleep(seconds)
        step: Any = sys._getframe(1)
        if not codes:
            for name in program.names:
                codes.update(dict.fromkeys(_function(step.f_globals[name].__code__), name))
        seen: set[str] = set()
        while step is not None:
            name = codes.get(step.f_code)
            if name is not None and name not in seen:
                seen.add(name)
                launched[name, step.f_lineno] += seconds
            step = step.f_back

    async def other(seconds: float) -> None:
        gpu_work.sleep(seconds)

    timing = measured(
        program.text,
        tuple(program.names),
        asyncio=asyncio,
        calls=[False, *[True] * 80],
        n=4,
        other=other,
        sleep=gpu_work.sleep,
        tasks=[],
        work=work,
    )
    assert not timing.partial, program.text
    _, *functions = rows(timing)
    for name, found in zip(program.names, functions, strict=True):
        for number, line in found.items():
            assert line.gpu is not None
            own = launched[name, number]
            if "await" in program.text.splitlines()[number - 2]:
                assert line.gpu >= own - RESOLUTION
            else:
                assert line.gpu == pytest.approx(own, abs=RESOLUTION), program.text
