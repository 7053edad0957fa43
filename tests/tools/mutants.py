"""Check that tests fail for seeded defects, each put into a copy of the tree.

``python -m tests.tools.mutants [WORD…]``: all of them, or those whose file or text has one of the
words. Prints killed or survived, and fails if one survived. A defect whose text is not in its file
exactly once is refused, before anything runs: the file has changed, and the list has to follow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.kernels import ROOT

FOLDER = ROOT / "build" / "mutants"
_COPIED = ("gpumagic", "tests", "pyproject.toml")


class Mutant(NamedTuple):
    """A defect: in ``file``, ``old`` becomes ``new``, and one of the tests should fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


# What the tests are called for short, beside what they test.
SPEC = ("tests/selection/test_spec.py",)
MASK = ("tests/cuda/test_visible_devices.py",)
_CHOICE = "tests/magics/gpu/test_choosing.py::"  # a kernel each: only those that may tell
PROCESS = ("tests/cuda/test_process_state.py",)
ALREADY = (_CHOICE + "test_what_is_already_so_is_not_too_late",)
BROKEN_OFF = (_CHOICE + "test_a_choice_that_is_broken_off_lifts_no_gate",)
BOUND = ("tests/timing/test_bottleneck.py",)
KNOWN = ("tests/timing/test_event_timer.py",)
REPEATS = ("tests/timing/test_benchmark.py",)
COMPARING = ("tests/timing/test_comparison.py",)
ENOUGH = ("tests/timing/test_stopping_rule.py",)
LAUNCHED = ("tests/timing/test_line_kernels.py", "tests/timing/test_trace_clock.py")
VERDICT = ("tests/timing/test_line_verdict.py",)
WRITTEN = ("tests/timing/test_marked_runs.py",)
PEAKS = ("tests/memory/test_peak_ledger.py",)
BLOCKS = ("tests/memory/test_allocator_blocks.py",)
_REPORT = "tests/memory/test_report.py::"
REPORT = (
    _REPORT + "test_outside_the_allocator_and_other_processes",
    _REPORT + "test_any_nvml_call_may_fail",
    _REPORT + "test_unsupported_fields",
    _REPORT + "test_a_remainder_below_zero_is_unknown",
    "tests/memory/test_measurement.py",
)
POOLS = ("tests/memory/test_report_pools.py::test_pools",)
FREE = (
    "tests/magics/gpumem/test_free.py::test_outputs",
    "tests/magics/gpumem/test_free.py::test_named_variables",
    "tests/magics/gpumem/test_free.py::test_garbage_and_the_cache",
)
HOLDERS = ("tests/memory/test_attribution.py",)
OOM = ("tests/memory/test_oom.py",)

_SPEC, _MASK = "gpumagic/selection/spec.py", "gpumagic/cuda/visible_devices.py"
_APPLY, _STATE = "gpumagic/selection/apply.py", "gpumagic/cuda/process_state.py"
_TIMING, _MEMORY = "gpumagic/timing/", "gpumagic/memory/"

MUTANTS = (
    Mutant(
        "gpumagic/magics/gpu/restarting.py",
        "with import_path.restricted_to(import_path.module_folders()):",
        "if True:",
        ("tests/restart/test_working_folder.py",),
    ),
    Mutant(
        "gpumagic/magics/gpu/restarting.py",
        "with signals.interrupts_after():",
        "if True:",
        (
            "tests/restart/test_resuming.py::"
            "test_an_interrupt_while_the_trial_starts_leaves_no_child",
        ),
    ),
    # --- which GPUs: what is typed, what the driver reads, what is verified
    Mutant(_SPEC, "range(first, last + 1)", "range(first, last)", SPEC),
    Mutant(_SPEC, "return min(found, key=len)", "return max(found, key=len)", SPEC),
    Mutant(
        _SPEC,
        "len(found) > 1 and wanted not in (uuid.lower() for uuid in found)",
        "len(found) > 2 and wanted not in (uuid.lower() for uuid in found)",
        SPEC,
    ),
    Mutant(_SPEC, "if uuid in lost:", "if uuid in chosen:", SPEC),
    Mutant(_SPEC, "if parts and len(chosen) > 1:", "if parts and len(chosen) > 2:", SPEC),
    Mutant(_SPEC, "device.memory_free < wants.min_free", "device.memory_free < 0", SPEC),
    Mutant(_SPEC, "if device.utilization > limit:", "if device.utilization >= limit:", SPEC),
    Mutant(
        _SPEC,
        "return (claims(device), -free, used, device.index)",
        "return (claims(device), free, used, device.index)",
        SPEC,
    ),
    Mutant(_MASK, "return MASK in present and view", "return view", MASK),
    Mutant(_MASK, "lambda number: number < count", "lambda number: number <= count", MASK),
    Mutant(_MASK, "if int(match[1]) in numbers:", "if int(match[1]) in numbers[:0]:", MASK),
    Mutant(_MASK, "if entry[:4] == mask[:4] else None", "if entry else None", MASK),
    Mutant(_MASK, "if len(found) == 1 else None", "if found else None", MASK),
    Mutant(
        _APPLY,
        "return list(wanted.indexes) != [device.index for device in seen]",
        "return set(wanted.indexes) != {device.index for device in seen}",
        ALREADY,
    ),
    Mutant(_APPLY, '"unchanged" if now == before else "applied"', '"applied"', ALREADY),
    Mutant(
        "gpumagic/magics/gpu/choosing.py",
        "    except BaseException:\n        STATE.restore(before)\n",
        "    except BaseException:\n",
        BROKEN_OFF,
    ),
    Mutant(_STATE, "set_variable(name, value)\n        self", "pass\n        self", PROCESS),
    Mutant(_STATE, "        self._restore_gate(snapshot.choice.gate)\n", "", PROCESS),
    Mutant(
        _STATE,
        "if before is not None:\n            torch",
        "if before is None:\n            torch",
        PROCESS,
    ),
    # --- GPU time
    Mutant(
        _TIMING + "bottleneck.py", "return 2 * later > len(gpu)", "return later > len(gpu)", BOUND
    ),
    Mutant(_TIMING + "bottleneck.py", "as_run = min(gpu) / loops", "as_run = min(gpu)", BOUND),
    Mutant(_TIMING + "bottleneck.py", "if share < _HOST_BOUND:", "if share > _HOST_BOUND:", BOUND),
    Mutant(
        _TIMING + "line_kernels.py",
        "fresh = max(stop - max(start, busy_until[ordinal]), 0.0)",
        "fresh = stop - start",
        LAUNCHED,
    ),
    Mutant(_TIMING + "line_kernels.py", "else lines_at(at)", "else lines_at(start)", LAUNCHED),
    Mutant(_TIMING + "line_kernels.py", "line.source != CELL", "line.source == CELL", LAUNCHED),
    Mutant(_TIMING + "marked_runs.py", "self._begin.own + taken", "self._begin.own", WRITTEN),
    Mutant(_TIMING + "marked_runs.py", "self._summed, total = number,", "total =", WRITTEN),
    Mutant(_TIMING + "marked_runs.py", "if self.credit < 0:", "if self.credit < -9999:", WRITTEN),
    Mutant(_TIMING + "line_marks.py", "extend(reversed(later))", "extend(later[:0])", WRITTEN),
    Mutant(_TIMING + "trace_clock.py", "mark[0][1] - mark[0][0]", "mark[0][0]", LAUNCHED),
    Mutant(_TIMING + "line_verdict.py", "< _MANY or not line.at_most", "< _MANY", VERDICT),
    Mutant(
        _TIMING + "line_verdict.py",
        "busy < launching <= _LAUNCH * line.kernels",
        "busy < launching",
        VERDICT,
    ),
    Mutant(
        _TIMING + "run.py",
        "seconds = [max(_seconds(run, i) or 0.0 for i in used) for run in complete]",
        "seconds = [sum(_seconds(run, i) or 0.0 for i in used) for run in complete]",
        KNOWN,
    ),
    Mutant(
        _TIMING + "run.py",
        "return Sample(tuple(value / loops for value in values))",
        "return Sample(tuple(value for value in values))",
        REPEATS,
    ),
    Mutant(
        _TIMING + "event_timer.py",
        "        self.others = [(stream, torch_cuda.timing_event(stream)) for stream in busy]\n",
        "        self.others = []\n",
        KNOWN,
    ),
    Mutant(
        _TIMING + "context_event.py",
        "return end > max(known, later) + LATE",
        "return False",
        KNOWN,
    ),
    Mutant(_TIMING + "context_event.py", "thread_time() - before > _IDLE_WAIT", "False", KNOWN),
    Mutant(_TIMING + "comparison.py", "if high < 1 else", "if low < 1 else", COMPARING),
    Mutant(_TIMING + "ratio.py", "pairs - left_out)", "pairs)", COMPARING),
    Mutant(
        _TIMING + "stopping_rule.py",
        "return ordered[rank - 1], ordered[-rank]",
        "return ordered[rank], ordered[-rank]",
        ENOUGH,
    ),
    Mutant(_TIMING + "stopping_rule.py", "max(3 * (high - low),", "min(3 * (high - low),", ENOUGH),
    # --- GPU memory
    Mutant(
        _MEMORY + "peak_ledger.py",
        "peak = max(_peak(stats), scope.folded.get(ordinal, 0))",
        "peak = _peak(stats)",
        PEAKS,
    ),
    Mutant(
        _MEMORY + "peak_ledger.py",
        '                counter["peak"] = max(counter["peak"], peak)\n',
        "                pass\n",
        PEAKS,
    ),
    Mutant(
        _MEMORY + "peak_ledger.py",
        "                self._fold_into_scopes(ordinal, before)\n",
        "                pass\n",
        PEAKS,
    ),
    Mutant(_MEMORY + "report.py", "outside = own - (reserved or 0)", "outside = own", REPORT),
    Mutant(
        _MEMORY + "report.py",
        "return outside if outside >= 0 else None",
        "return max(outside, 0)",
        REPORT,
    ),
    Mutant(
        _MEMORY + "report.py",
        "graphs[segment.device] += segment.size if graph else 0",
        "graphs[segment.device] += segment.size if other else 0",
        POOLS,
    ),
    Mutant(
        _MEMORY + "allocator_blocks.py",
        "allocated[self.all[i].device] -= self.all[i].size",
        "allocated[self.all[i].device] -= self.all[i].requested",
        BLOCKS,
    ),
    Mutant(
        _MEMORY + "allocator_blocks.py",
        "return order[place] if address < block.address + block.size else None",
        "return order[place]",
        BLOCKS,
    ),
    Mutant(
        _MEMORY + "remedies.py",
        "free = min(free, now.limit - reserved)",
        "free = max(free, now.limit - reserved)",
        OOM,
    ),
)


def stale(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """Return the errors in the list: texts not in their files exactly once, missing tests."""
    found = []
    for mutant in mutants:
        file = root / mutant.file
        times = file.read_text(encoding="utf-8").count(mutant.old) if file.is_file() else 0
        if times != 1:
            found.append(f"{mutant.file}: {times} times, not once: {mutant.old.strip()}")
        found += [
            f"{mutant.file}: there is no {test}" for test in mutant.tests if not _exists(root, test)
        ]
    return found


def _exists(root: Path, test: str) -> bool:
    return (root / test.partition("::")[0]).exists()


def copy(root: Path = ROOT, folder: Path = FOLDER) -> Path:
    """Copy the tree, without what was built, and return the copy's folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in _COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def passes(folder: Path, tests: Sequence[str]) -> bool:
    """Return whether the tests pass in a copy.

    Raises:
        RuntimeError: they could not be run at all; with what pytest said.
    """
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    # Started so often, it is to start quickly: no plugins but ours, and compiled files are kept.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def run(mutants: Sequence[Mutant], folder: Path) -> Iterator[tuple[Mutant, bool]]:
    """Yield each mutant, and whether its tests fail; the file is restored after each."""
    for mutant in mutants:
        file = folder / mutant.file
        sound = file.read_text(encoding="utf-8")
        file.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            yield mutant, not passes(folder, mutant.tests)
        finally:
            file.write_text(sound, encoding="utf-8")


def main(words: Sequence[str]) -> int:
    if wrong := stale(MUTANTS):
        print("the list has to follow the files:", *wrong, sep="\n  ")
        return 2
    chosen = [m for m in MUTANTS if not words or any(w in m.file or w in m.old for w in words)]
    folder = copy()
    groups = sorted({mutant.tests for mutant in chosen})
    unsound = {tests for tests in groups if not passes(folder, tests)}
    for tests in sorted(unsound):
        print(f"without any defect {' '.join(tests)} fails: nothing can be told by it", flush=True)
    survived = 0
    sound = [mutant for mutant in chosen if mutant.tests not in unsound]
    for mutant, killed in run(sound, folder):
        survived += not killed
        verdict = "killed  " if killed else "SURVIVED"
        change = f"{mutant.old.strip()}  →  {mutant.new.strip()}"
        print(f"{verdict}  {mutant.file}: {change}", flush=True)
    untried = len(chosen) - len(sound)
    print(f"{len(chosen)} defects: {survived} survived, {untried} not tried", flush=True)
    return 2 if untried else 1 if survived else 0


if __name__ == "__main__":
    begun = time.monotonic()
    code = main(sys.argv[1:])
    print(f"{time.monotonic() - begun:.0f} s")
    sys.exit(code)
