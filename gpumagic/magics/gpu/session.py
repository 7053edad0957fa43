"""The settings of IPython and gpumagic in a session, restored in the process that replaces it."""

from __future__ import annotations

import builtins
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from traitlets.config import Config

from gpumagic.errors import GpuMagicError
from gpumagic.magics.cudatime.per_cell import cell_timer
from gpumagic.magics.extension import of
from gpumagic.magics.gpumem import history, limit, park, per_cell
from gpumagic.memory.limit import LIMIT
from gpumagic.selection import cpu_threads
from gpumagic.system import text

_PLAIN = (bool, int, float, str, type(None))
#: Settings of a shell apart from its configuration.
_ATTRIBUTES = ("ast_node_interactivity", "call_pdb", "automagic", "Completer.use_jedi")
#: Functions that Python calls and that the notebook may have replaced.
_CALLED = (
    *("sys.excepthook", "sys.unraisablehook", "threading.excepthook"),
    *("warnings.showwarning", "warnings.formatwarning"),
)


def capture(shell: Any) -> dict[str, Any]:
    """Return the settings, as plain data and results of gpumagic."""
    extension = of(shell)
    timing, memory, history = (
        extension.cell_timing,
        extension.cell_memory,
        extension.memory_history,
    )
    recorded = None if history is None else history.state()
    return {
        "extensions": [*shell.extension_manager.loaded],
        "autoreload": _autoreload(shell),
        "magics": _magics(shell),
        "hooks": [*_hooks(shell)],
        "builtins": _builtins(shell),
        "configuration": [*_configuration(shell)],
        "attributes": {name: _attribute(shell, name) for name in _ATTRIBUTES},
        "exceptions": shell.InteractiveTB.mode,
        "precision": _formatter(shell).float_precision,
        "timing": (timing.above,) if timing is not None and timing.watching else (),
        "memory": memory is not None and memory.watching,
        "history": recorded.max_entries if recorded is not None and recorded.own else None,
        "parking": None if extension.parking is None else extension.parking.after,
        "limit": LIMIT.size,
        "timings": extension.named_timings,
        "threads": cpu_threads.number() if cpu_threads.is_ours() else None,
    }


def restore_first(shell: Any, found: Mapping[str, Any]) -> None:
    """Restore settings that also set those of libraries, which are restored later as they were.

    These are ``--threads`` of an earlier choice, and ``%precision``.
    """
    if _formatter(shell).float_precision != found["precision"]:
        _formatter(shell).float_precision = found["precision"]
    if found["threads"] is not None:
        cpu_threads.use(found["threads"])


def restore(shell: Any, found: Mapping[str, Any]) -> list[str]:
    """Restore the settings; return a note for each that could not be."""
    notes = []
    random_state = random.getstate()  # imports may draw random numbers
    for name in found["extensions"]:
        if name not in shell.extension_manager.loaded:
            try:
                shell.extension_manager.load_extension(name)
            except Exception as error:
                notes.append(f"Not loaded again: {name} ({text.named(error)}).")
    random.setstate(random_state)
    if found["autoreload"] is not None and _autoreload(shell) not in (None, found["autoreload"]):
        shell.run_line_magic("autoreload", found["autoreload"])
    _configure(shell, found["configuration"])
    for name, value in found["attributes"].items():
        if _attribute(shell, name) != value:
            owner, _, attribute = name.rpartition(".")
            setattr(getattr(shell, owner) if owner else shell, attribute, value)
    if shell.InteractiveTB.mode != found["exceptions"]:  # %xmode
        shell.InteractiveTB.set_mode(mode=found["exceptions"])
    modes: dict[str, tuple[Any, Callable[[], Any]]] = {
        "%cudatime on": (
            found["timing"],
            lambda: cell_timer(shell).on(*found["timing"]),
        ),
        "%gpumem on": (found["memory"], per_cell.of(shell).on),
        "%gpumem record": (
            found["history"],
            lambda: history.of(shell).on(found["history"]),
        ),
        "%gpumem park --after": (
            found["parking"],
            lambda: park.of_shell(shell).set_idle(found["parking"]),
        ),
        "%gpumem limit": (found["limit"], lambda: limit.set_limit(shell, found["limit"])),
    }
    for mode, (was, begin) in modes.items():
        try:
            if was:
                begin()
        except GpuMagicError as error:  # there is no GPU any more
            notes.append(f"Not on again: {mode} ({error}).")
    of(shell).named_timings = found["timings"]
    missing = [*sorted(found["magics"] - _magics(shell)), *found["hooks"]]
    missing += [f"builtins.{name}" for name in sorted(found["builtins"] - _builtins(shell))]
    if missing:
        notes.append(f"Not registered again: {', '.join(missing)}.")
    return notes


def _magics(shell: Any) -> set[str]:
    kinds = (("line", "%"), ("cell", "%%"))
    known = shell.magics_manager.lsmagic()
    return {f"{sign}{name}" for kind, sign in kinds for name in known[kind]}


def _hooks(shell: Any) -> Iterator[str]:
    """Yield the notebook's functions that IPython calls around cells, and that Python calls."""
    lists = [*shell.events.callbacks.values()]
    lists += [shell.input_transformers_cleanup, shell.input_transformers_post]
    for function in {id(each): each for found in lists for each in found}.values():
        if _is_of_notebook(function, shell):
            yield f"the hook {function.__name__}"
    for name in _CALLED:
        module, _, attribute = name.partition(".")
        if _is_of_notebook(getattr(sys.modules[module], attribute, None), shell):
            yield name
    for number in sorted(signal.valid_signals()):
        if _is_of_notebook(signal.getsignal(number), shell):
            yield f"the handler of {getattr(number, 'name', number)}"


def _is_of_notebook(function: Any, shell: Any) -> bool:
    return getattr(function, "__globals__", None) is shell.user_ns


def _builtins(shell: Any) -> set[str]:
    """Return the names in `builtins`, without those that IPython adds while it runs a cell."""
    of_ipython = shell.builtin_trap.auto_builtins
    return {n for n in vars(builtins) if not n.startswith("_") and n not in of_ipython}


def _attribute(shell: Any, name: str) -> Any:
    return attrgetter(name)(shell)


def _formatter(shell: Any) -> Any:
    return shell.display_formatter.formatters["text/plain"]


def _autoreload(shell: Any) -> str | None:
    """Return the mode of ``%autoreload``; None where that is not loaded."""
    magics = shell.magics_manager.registry.get("AutoreloadMagics")
    reloader = getattr(magics, "_reloader", None)
    if reloader is None:
        return None
    every = "3" if getattr(reloader, "autoload_obj", False) else "2"
    return "0" if not reloader.enabled else every if reloader.check_all else "1"


def _configuration(shell: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what ``%config`` and the profile have set, by class: plain values of `traitlets`."""
    for configurable in shell.configurables:
        for kind in type(configurable).mro():
            section = configurable.config.get(kind.__name__) or {}
            values = {n: value for n, value in section.items() if isinstance(value, _PLAIN)}
            if values:
                yield kind.__name__, values


def _configure(shell: Any, sections: list[tuple[str, dict[str, Any]]]) -> None:
    for name, values in sections:
        owners = [
            each
            for each in shell.configurables
            if any(kind.__name__ == name for kind in type(each).mro())
        ]
        for owner in owners or [shell]:  # a shell passes its own to what it creates
            now = owner.config.get(name) or {}
            changed = {n: v for n, v in values.items() if now.get(n, _PLAIN) != v}
            if changed:
                owner.update_config(Config({name: changed}))
