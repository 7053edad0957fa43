"""In the process that replaces another: say what was lost, what came back, and what to type next.

This is the IPython extension that `restart.before` names on the command line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.magics.delivery import hand_over
from gpumagic.magics.gpu.restart import modes_over_restart
from gpumagic.magics.gpu.restart.restarting import Begun
from gpumagic.render.units import bytes_
from gpumagic.restart import after
from gpumagic.selection import apply, cpu_threads, environment
from gpumagic.system.introspection import imported_as, is_a, is_imported, names, slot
from gpumagic.system.shell import Shell
from gpumagic.wording import listed, with_reasons

if TYPE_CHECKING:
    from gpumagic.restart.variables.restoring import Restored

#: Names that are shown of a list.
_MOST = 10
#: Objects in which an optimizer is looked for.
_LOOKED = 10_000


def load_ipython_extension(shell: Shell) -> None:
    """Load gpumagic, and go on where the old process stopped."""
    shell.extension_manager.load_extension("gpumagic")
    after.go_on(shell, lambda *restarted: _report(shell, *restarted), _prepare)


def _prepare() -> None:
    """Import what draws the report."""
    from gpumagic.render import html, text  # noqa: F401


def _report(shell: Shell, begun: Begun, file: IO[bytes] | None, notes: list[str]) -> Any:
    seconds = time.time() - begun.began - begun.keeping
    started, spec = time.time(), begun.spec
    restored: Restored | None = None
    took = f"It took {seconds:.1f} s"
    # First of all: whatever fails behind it, the variables are there.
    if file is not None and begun.kept is not None:
        from gpumagic.restart.variables import restoring

        restored = restoring.restore(file, shell, begun.kept)
        took += f", and {begun.keeping + time.time() - started:.1f} s for the variables"
    took += ". Cell numbers and In go on; Out is empty."
    environment.start_from(begun.started_with)
    STATE.choice.auto = begun.auto
    chosen = apply.after_restart(spec, claim=begun.claim)
    cuda = driver.state().initialized
    if spec.kind == "same" and cuda is False:
        took += " CUDA is not started."
    lost = tuple(name for name in begun.variables if name not in shell.user_ns)
    # What is lost or changed comes first: of many notes the last ones are folded.
    said = [*(f"Ended: {each}." for each in begun.ended), *notes]
    said += modes_over_restart.restore(shell, begun.session)
    if begun.widgets:
        said.append("Widgets of the old process do not answer any more.")
    kept, changed = tuple[str, ...](), dict[str, tuple[str, ...]]()
    if restored is not None:
        kept = tuple(restored.done)
        changed = {words: tuple(names) for words, names in restored.notes.items() if names}
        failed = (f"Not kept: {each}." for each in with_reasons(restored.failed, _MOST))
        said = [*failed, _listed(changed), *said, *_came_back(restored, shell.user_ns, lost)]
    said += [took, *chosen.notes]
    chosen = replace(chosen, cuda_initialized=cuda, lost=lost, kept=kept, changed=changed)
    chosen = cpu_threads.with_threads(
        replace(chosen, notes=tuple(filter(None, said))), spec, begun.options.threads
    )
    return hand_over(shell, chosen, begun.options)


def _listed(found: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{words} {listed(names, _MOST)}." for words, names in found.items())


def _came_back(
    restored: Restored, namespace: Mapping[str, Any], lost: Sequence[str]
) -> Iterator[str]:
    """Yield what came back, and where tensors are now and how they move."""
    done, devices, anew = restored.done, restored.manifest.devices, restored.manifest.anew
    bound = [name for name in done if is_imported(namespace[name])]
    imported = [name for name in done if name in anew or name in bound]
    if kept := [name for name in done if name not in imported]:
        yield f"{'' if lost else 'No variable was lost. '}Kept: {listed(kept, _MOST)}."
    if devices.moved:
        moved = f"Moved: {', '.join(sorted(devices.moved))}."
        calls = [f"{name}.load_state_dict({name}.state_dict())" for name in _optimizers(namespace)]
        if "cpu" in moved:
            back = [".cuda()", *calls]
            if devices.now("cuda") == "cpu":
                back.insert(0, "%gpu on (if it is too late for that: %gpu on --restart)")
            moved += f" Back: {listed(back, 4)}."
        if devices.named:
            moved += f" Set again: torch.device, which was {', '.join(sorted(devices.named))}."
        yield moved
    for device, size in devices.refused.items():
        yield f"On the CPU, since {device} has too little free memory for it: {bytes_(size)}."
    if restored.on_gpu:
        yield (
            f"CUDA is started by {listed(restored.on_gpu, 3)}. To fork: %gpu off --restart, then "
            "%gpu on."
        )
    if imported:
        yield f"Imported anew: {listed(imported, _MOST)}."
    modules = {imported_as(namespace[each]) or namespace[each].__module__ for each in bound}
    if own := sorted(modules & tracebacks.users_modules().keys()):
        yield (
            f"Module state was reset in {listed(own, _MOST)}, except for objects that your "
            "variables use."
        )


def _optimizers(namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the expressions of torch's optimizers: of variables, and of what these hold."""
    kind, seen = torch_cuda.module().optim.Optimizer, set[int]()
    left = deque(each for each in namespace.items() if not each[0].startswith("_"))
    while left and len(seen) < _LOOKED:
        expression, value = left.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_a(value, kind):
            yield expression
        elif type(value) in (list, tuple):
            left += ((f"{expression}[{n}]", each) for n, each in enumerate(value[:_LOOKED]))
        elif type(value) is dict:
            left += ((f"{expression}[{key!r}]", each) for key, each in names(value)[:_LOOKED])
        elif not imported_as(value):
            left += ((f"{expression}.{key}", each) for key, each in names(slot(value, "__dict__")))
