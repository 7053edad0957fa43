"""In the process that replaces another: say what came back, what did not, and what to type next.

This is the IPython extension that `restart.before` names on the command line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from gpumagic.cuda import driver, torch_cuda
from gpumagic.magics.delivery import hand_over
from gpumagic.magics.gpu import session
from gpumagic.render.units import bytes_
from gpumagic.restart import after
from gpumagic.restart.handover import Kept
from gpumagic.selection import apply, cpu_threads, environment
from gpumagic.system.introspection import is_a
from gpumagic.system.shell import Shell


def load_ipython_extension(shell: Shell) -> None:
    """Load gpumagic, and go on where the old process stopped."""
    shell.extension_manager.load_extension("gpumagic")
    after.go_on(shell, lambda *restarted: _report(shell, *restarted), _prepare)


def _prepare() -> None:
    """Import what draws the report."""
    from gpumagic.render import html, text  # noqa: F401


def _report(
    shell: Shell, payload: Mapping[str, Any], file: IO[bytes] | None, notes: list[str]
) -> Any:
    seconds = time.time() - payload["began"] - payload["keeping"]
    environment.start_from(payload["started_with"])
    spec = payload["spec"]
    chosen = apply.after_restart(spec, claim=payload["claim"])
    took, kept, cuda = f"{seconds:.1f} s", list[str](), chosen.cuda_initialized
    on_gpu: Sequence[str] = ()
    if file is not None:
        from gpumagic.restart import keep

        began = time.time()
        restored = keep.restore(file, shell, payload["kept"])
        kept, on_gpu = [*_kept(restored, shell.user_ns)], restored.on_gpu
        took += f" ({payload['keeping']:.1f} s more to keep variables, "
        took += f"{time.time() - began:.1f} s to restore them)"
        chosen = replace(chosen, cuda_initialized=driver.state().initialized)
    said = (
        f"The process was restarted in place in {took}; numbering, inputs and working folder go "
        "on, outputs (Out) do not."
    )
    lost = tuple(name for name in payload["variables"] if name not in shell.user_ns)
    if chosen.cuda_initialized and not cuda:
        by = ", ".join(on_gpu) or "what came back"
        kept.append(
            f"CUDA is started by {by}. To fork processes that use it: %gpu off --restart, then "
            "%gpu on."
        )
    elif spec.kind == "same" and cuda is False:
        said += " CUDA is not started."
    notes = [said, *([] if lost else ["No variable was lost."]), *kept, *notes]
    if payload["comms"]:
        notes.append("Widgets of the old process do not answer any more.")
    notes += [*session.restore(shell, payload["session"]), *chosen.notes]
    chosen = replace(chosen, notes=tuple(notes), lost=lost)
    chosen = cpu_threads.with_threads(chosen, spec, payload["threads"])
    options = argparse.Namespace(**payload["options"], quiet=payload["quiet"])
    return hand_over(shell, chosen, options)


#: How tensors that are on the CPU now come to a GPU, by whether every GPU is hidden.
_BACK = {
    True: "To move tensors back: %gpu on for all GPUs, or %gpu NUMBER (after a backward pass with "
    "--restart), then .cuda().",
    False: "Their GPU is hidden now; .cuda() moves them to one that is not.",
}
_SET_AGAIN = "A torch.device, and torch's default device, must be set again."


def _kept(restored: Kept, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on what was restored, where to, and on what was not, and why."""
    for words, names in restored.notes.items():
        if names:
            yield f"{words} {', '.join(names)}."
    if restored.devices.moved:
        moved = f"Tensors and devices moved: {', '.join(sorted(restored.devices.moved))}."
        hidden = restored.devices.now("cuda") == "cpu"
        yield f"{moved} {_BACK[hidden]} {_SET_AGAIN}" if "cpu" in moved else moved
        kind = torch_cuda.module().optim.Optimizer
        found = [name for name, value in namespace.items() if is_a(value, kind)]
        if found and "cpu" in moved:
            calls = "; ".join(f"{name}.load_state_dict({name}.state_dict())" for name in found)
            yield f"After parameters were moved back, an optimizer's state follows by: {calls}."
    for device, size in restored.devices.refused.items():
        yield f"On the CPU, since {device} has too little free memory for it: {bytes_(size)}."
    for name, reason in restored.failed.items():
        yield f"Not kept: {name} ({reason})."
