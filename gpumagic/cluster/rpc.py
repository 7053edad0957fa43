"""One question to every engine: an answer, or why there is none; nobody is waited for too long."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from gpumagic._version import __version__
from gpumagic.cluster import engine as remote
from gpumagic.cluster.connection import Cluster
from gpumagic.render.units import bytes_
from gpumagic.results.deserialize import from_json
from gpumagic.system import text as one_line

#: Seconds for an engine to answer, if nobody says otherwise.
TIMEOUT = 5.0
#: Seconds for an engine to confirm that it has dropped a question.
CONFIRMATION = 2.0
#: Bytes of an answer, at most: a thousand engines' answers must fit into one kernel.
LARGEST = 16 * 2**20


@dataclass(frozen=True)
class Answer:
    """An engine's answer; ``error`` says in one line why there is none."""

    engine: int
    value: Any = None
    error: str | None = None


def ask(
    cluster: Cluster,
    engines: Sequence[int],
    question: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    each: Mapping[int, Mapping[str, Any]] | None = None,
    timeout: float = TIMEOUT,
) -> dict[int, Answer]:
    """Have `remote`'s function ``question`` called on every one of ``engines``.

    ``arguments`` go to all, ``each`` to the engine with that id. An engine that does not answer
    within ``timeout`` seconds, since it runs a long cell, has one answer less; the question is
    withdrawn, and nobody waits for it; so it is if this is interrupted.

    Raises:
        DeviceError: no engine answers, and neither does the controller.
    """
    client = cluster.client
    common = dict(arguments or {})
    registered = {*client.ids}
    there = [engine for engine in engines if engine in registered]
    gone = [engine for engine in engines if engine not in registered]
    if each is None:
        pending = [_send(client, there, question, common)] if there else []
    else:
        pending = [_send(client, [e], question, {**common, **each[e]}) for e in there]
    found = {engine: Answer(engine, error="the engine is gone") for engine in gone}
    asked = [pair for result in pending for pair in futures(result)]
    try:
        concurrent.futures.wait([future for _, future in asked], timeout)
    except BaseException:  # an interrupt: nobody waits for the answers any more
        _withdraw(client, [(engine, future) for engine, future in asked if not future.done()])
        raise
    for engine, future in asked:
        if future.done():
            found[engine] = _answer(engine, question, future.result())
        else:
            found[engine] = Answer(engine, error=_no_answer(client, engine, timeout))
    if not any(answer.value is not None for answer in found.values()):
        cluster.check()
    _withdraw(client, [(engine, future) for engine, future in asked if not future.done()])
    return {engine: found[engine] for engine in engines}


def _send(client: Any, engines: list[int], question: str, arguments: Mapping[str, Any]) -> Any:
    # Text, so that neither gpumagic nor the same Python is needed there for a clear answer.
    call = f"answer({__version__!r}, {question!r}, {dict(arguments)!r}, {LARGEST})"
    source = f"__import__('gpumagic.cluster.engine', fromlist=['answer']).{call}"
    return client.direct_view(engines).apply_async(eval, source)


def futures(result: Any) -> list[tuple[int, Any]]:
    """Each engine of an ``AsyncResult`` with the future of its reply."""
    return list(zip(result._targets, result._children, strict=True))


@cache
def _expected(question: str) -> Any:
    return get_type_hints(remote.QUESTIONS[question])["return"]


def _answer(engine: int, question: str, outcome: Any) -> Answer:
    if isinstance(outcome, Exception):
        return Answer(engine, error=_reason(outcome))
    kind, content = outcome if isinstance(outcome, tuple) and len(outcome) == 2 else ("", "")
    if type(kind) is not str:
        return Answer(engine, error="its answer is not understood")
    if kind == "ok" and isinstance(content, str) and len(content) <= LARGEST:
        try:
            return Answer(engine, from_json(_expected(question), content))
        except ValueError as error:
            return Answer(engine, error=f"its answer is not understood: {error}")
    if kind == "version" and type(content) is str:
        other = one_line.reason(content)
        return Answer(
            engine,
            error=f"has gpumagic {other}, this kernel {__version__}: install the same there",
        )
    if kind == "large" and type(content) is int and 0 <= content < 2**63:
        return Answer(engine, error=f"its result is too large to fetch ({bytes_(content)})")
    if kind == "error" and isinstance(content, str):
        return Answer(engine, error=one_line.harmless(content))
    return Answer(engine, error="its answer is not understood")


def _reason(error: Any) -> str:
    """Why there is no answer, by what was raised instead."""
    name, text = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "ModuleNotFoundError" and "'gpumagic'" in str(text):
        return "gpumagic is not installed there: pip install gpumagic"
    if name == "ModuleNotFoundError" and "gpumagic." in str(text):
        return f"has a gpumagic that knows no clusters: install {__version__} there"
    return told(error)


def told(error: Any) -> str:
    """An exception, perhaps an engine's (ipyparallel's ``RemoteError``), in one short line."""
    name, text = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    if name == "EngineError":
        return "the engine died"
    return f"{one_line.reason(name)}: {one_line.reason(text) if str(text) else ''}"


def _no_answer(client: Any, engine: int, timeout: float) -> str:
    if engine not in client.ids:
        return "the engine is gone"
    return f"no answer within {timeout:g} s: it is busy, or has lost its connection"


def _withdraw(client: Any, late: Sequence[tuple[int, Any]]) -> None:
    """Take back the questions that are not answered, so that they do not pile up at an engine.

    A busy engine confirms that from its control thread. It is waited for, but not long: until
    then, an engine whose cell ends still begins with the question.
    """
    registered = {*client.ids}
    late = [pair for pair in late if pair[0] in registered]
    if late:
        messages = [future.msg_id for _, future in late]
        confirmed = client.abort(messages, targets=[engine for engine, _ in late], block=False)
        concurrent.futures.wait([confirmed], CONFIRMATION)
