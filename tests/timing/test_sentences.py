"""No sentence says more than its evidence: each of them is listed here with what it needs.

A new sentence about the GPU's work or time, or a changed one, belongs into this table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gpumagic

PACKAGE = Path(gpumagic.__file__).parent
FILES = (*sorted(PACKAGE.glob("timing/*.py")), PACKAGE / "results" / "timing.py")
#: What a sentence of the kind speaks of.
ABOUT = re.compile(
    r"GPU|\bidle\b|\bwait|\bwork|bound|\bqueued|kernels? |Python|at least|at most|no sign"
)
#: The sentences as they stand in the source, by the evidence that they need.
NEEDS: dict[str, tuple[str, ...]] = {
    # The GPU has surely worked for 95 % of the time.
    "exact": ("the GPU still worked for {} of its time after Python returned",),
    # Loops that were queued behind a delay in time, on one device, and whose work showed.
    "queued": (
        "queued beforehand, the same work takes the GPU {} of the best repeat",
        "host-bound: the GPU waits for work to be launched",
        "GPU times are compared; host-bound, with a longer wall time:",
    ),
    # Lines whose own figures are no bounds.
    "lines": (
        "GPU-bound: the GPU is busy for {} of the wall time",
        # By the clock: the line ended when the work queued before it did, again and again.
        "{} of the wall time is waiting for the GPU in line {} ({})",
    ),
    # An upper bound, and a lower one.
    "bounds": (
        "the GPU may have waited for Python",
        "the GPU may wait for input: line {}, {} of the wall time",
        "{}: it may wait for the GPU, or the GPU may be idle then",
        ", at least {}",
        "the GPU worked for{}",  # at least
        "at least {}",
        "at most {}",
        "{}: {} times the GPU time of {}",  # at least, or at most
        "not checked, as the wall time of {} is an upper bound",
        "not checked, as the GPU time of {} is an upper bound, or not known",
        "wall times are compared: only upper bounds of the GPU time of {}",
        "at least {} times as long as {} by GPU time (allowed: {})",
        "{}; the host times of short lines are upper bounds",
        "; before Python 3.12 tracing also slows down the Python code that lines call (with -f, in "
        "try, with, generators, await): their host times are upper bounds",
    ),
    # Nothing outlasted Python; or the wait for a device was long, and nothing else showed.
    "no sign": (
        "no sign of GPU work was seen when Python returned: it may have waited for the GPU ",
        "another library may have used the GPU, ",
        "--kernels or -r tells more",
        "--lines, --kernels or -r tells more",
        "--lines or --kernels tells more",
    ),
    # The device had no context at the start; or the process has timed none on it.
    "first use": (
        "the first timed run since CUDA started: GPU kernels may have been loaded in it; run it "
        "again",
    ),
    # No GPU time at all: an error, a capture, no CUDA.
    "none": (
        "no GPU time: {}{}",
        "no GPU time of lines: {}",
        "no GPU time: a CUDA graph is being captured, and the GPU may not be waited for",
        "no GPU time: the GPU cannot be waited for ({})",
        "interrupted while waiting for the GPU",
        "wall times are compared: there is no GPU time",
        "wall times are compared: no GPU time of {}",
        "; the wall time does not wait for {}",
        "there is no GPU in use",
    ),
    # What was counted, or read; or the names of figures.
    "counted": (
        "no GPU time: earlier work was still under way on cuda:{} when the code began; the wall "
        "time ",
        # a query said so
        "does not wait for the GPU",
        "; {} more queued beforehand",
        "; Host: until Python returned",
        "Python returned after {}",
        "no GPU kernel ran, and nothing was copied",  # torch's profiler sees the GPU
        "energy of the whole of {}, idle power and other processes included",
        "TORCH_LOGS=recompiles,graph_breaks, set before Python starts, says why",
        "a Sample needs at least one value, and none below 0",
        "torch's profiler cannot see the GPU here, so there are no GPU kernels to show (CUPTI was "
        "refused; in a container it often needs the host's permission: "
        "NVreg_RestrictProfilingToAdminUsers=0)",
    ),
}
#: What is said of bounds, and of what was not seen, says how it is meant; a fact is none of these.
HEDGED = re.compile(r"\bmay\b|at least|at most|upper bound|tells more|worked for\{\}|times the GPU")
ASSERTED = re.compile(r"\bidle\b|\bworks?\b|\bworked\b|\bbusy\b|\bwaits\b|no GPU work|-bound")


def sentences(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstring, the parts of an f-string as one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    inner = {
        id(value)
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr)
        for value in each.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in docs | inner:
            yield str(node.value)


def found() -> set[str]:
    every = {text for path in FILES for text in sentences(path)}
    return {text for text in every if text.count(" ") > 1 and ABOUT.search(text)}


def test_each_sentence_is_listed_with_what_it_needs() -> None:
    listed = [text for texts in NEEDS.values() for text in texts]
    assert len(listed) == len({*listed})
    assert found() == {*listed}


def test_a_bound_asserts_nothing() -> None:
    for evidence in ("bounds", "no sign"):
        for text in NEEDS[evidence]:
            assert HEDGED.search(text), text
    for evidence, texts in NEEDS.items():
        if evidence not in ("exact", "queued", "lines", "counted"):
            for text in texts:
                assert HEDGED.search(text) or not ASSERTED.search(text), text


def test_no_branch_reads_a_sentence() -> None:
    """What is decided is decided by figures and flags."""
    texts = {"gpu_note", "NO_SIGN", "WAITED", "LOADED", "INTERRUPTED", "CAPTURE"}
    for path in FILES:
        trees = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for each in (node for node in trees if isinstance(node, ast.Compare)):
            read = texts & {*re.findall(r"\w+", ast.unparse(each))}
            is_none = isinstance(each.ops[0], (ast.Is, ast.IsNot))
            assert is_none or not read, (path.name, ast.unparse(each))
