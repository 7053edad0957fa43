"""A real in-process IPython shell, fresh for each test."""

from __future__ import annotations

import builtins
import gc
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from IPython import version_info
from IPython.core import page
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

#: The theme without colours, as this IPython spells it.
PLAIN = "nocolor" if version_info >= (9,) else "NoColor"


@dataclass(frozen=True)
class Ran:
    """The result of a cell: its value, output, displays and error."""

    stdout: str
    stderr: str
    #: The mime bundles that were displayed; an expression's own value is in ``value``.
    displays: list[dict[str, Any]] = field(default_factory=list)
    value: Any = None
    error: BaseException | None = None

    @property
    def text(self) -> str:
        """What was displayed, as text."""
        return "\n".join(bundle.get("text/plain", "") for bundle in self.displays)

    @property
    def html(self) -> str:
        return "\n".join(bundle.get("text/html", "") for bundle in self.displays)


#: What `EveryCell.failed` and `CellHook.failed` print.
_HOOK_FAILED = re.compile(r"cells are not \w+ any more \(|hook around cells was removed")


def run_cell(shell: InteractiveShell, source: str, *, raising: bool = True) -> Ran:
    """Run a cell as a front end does.

    Its exception is raised here, and so is a failure of a hook of ours, which only prints a line,
    unless ``raising`` is False.
    """
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if raising and error is not None:
        raise error
    if raising:
        printed = captured.stdout + captured.stderr
        assert not _HOOK_FAILED.search(printed), printed
    try:
        return Ran(
            stdout=captured.stdout,
            stderr=captured.stderr,
            displays=[output.data for output in captured.outputs],
            value=result.result,
            error=error,
        )
    finally:
        del error  # its traceback leads to this frame, which would keep it


@contextmanager
def shell(*, load: bool = True) -> Iterator[InteractiveShell]:
    """A fresh shell that `get_ipython` finds, with gpumagic loaded; unloaded and gone at the end.

    History is kept in memory. That unloading leaves the shell as it was found is checked here, for
    every test that uses it.
    """
    assert not InteractiveShell.initialized(), "another test left its shell behind"
    with _python_kept(), warnings.catch_warnings():
        ip = InteractiveShell.instance(config=_config())
        # A machine may have no program for that, and IPython would ask for a key.
        ip.set_hook("show_in_pager", page.as_hook(page.display_page), 90)
        try:
            if load:
                before = registered(ip)
                ip.extension_manager.load_extension("gpumagic")
            yield ip
            if load:
                ip.extension_manager.unload_extension("gpumagic")
                assert registered(ip) == before, "unloading left something in the shell"
                _forget_peaks()
        finally:
            _end(ip)
            InteractiveShell.clear_instance()


def _config() -> Config:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = PLAIN
    config.InteractiveShell.cache_size = 1000
    return config


def _forget_peaks() -> None:
    """Unloading keeps torch's functions wrapped as long as the user's peaks need it: no leak."""
    peaks = sys.modules.get("gpumagic.memory.exact_peaks")
    if peaks is not None:
        peaks.LEDGER._user.clear()
        peaks.LEDGER.leave()


def registered(ip: InteractiveShell) -> dict[str, object]:
    """Everything in a shell that an extension may have registered, comparable."""
    callbacks = {name: list(functions) for name, functions in ip.events.callbacks.items()}
    formatters = {
        mime: (dict(f.type_printers), dict(f.deferred_printers), dict(f.singleton_printers))
        for mime, f in [
            *ip.display_formatter.formatters.items(),
            ("mimebundle", ip.display_formatter.mimebundle_formatter),
        ]
    }
    return {
        "callbacks": callbacks,
        "formatters": formatters,
        "line magics": _foreign(ip.magics_manager.magics["line"]),
        "cell magics": _foreign(ip.magics_manager.magics["cell"]),
        "transformers": list(ip.input_transformers_post),
        "cleanup transformers": list(ip.input_transformers_cleanup),
        "AST transformers": list(ip.ast_transformers),
        "configurables": [c for c in ip.configurables if not _is_ipythons(type(c))],
        "custom exceptions": ip.custom_exceptions,
        "showtraceback": ip.showtraceback,
        "namespace": {name for name in ip.user_ns if "gpumagic" in name.lower()},
        "attributes": {name for name in vars(ip) if "gpumagic" in name.lower()},
    }


def _foreign(magics: Mapping[str, Any]) -> dict[str, Any]:
    """The magics that are not IPython's own, which it loads when they are first used."""
    return {name: magic for name, magic in magics.items() if not _is_ipythons(magic)}


def _is_ipythons(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("IPython.")


def _end(ip: InteractiveShell) -> None:
    import atexit

    atexit.unregister(ip.atexit_operations)
    scripts = ip.magics_manager.registry.get("ScriptMagics")
    if scripts is not None:  # IPython 9 makes it when it is first used
        atexit.unregister(scripts.kill_bg_processes)  # it would keep the shell, and its outputs
    # Where IPython forgets its outputs it collects all garbage, which takes 0.3 s of a process with
    # torch. What this test has left is young.
    with patch.object(gc, "collect", partial(gc.collect, 1)):
        ip.atexit_operations()
    ip.restore_sys_module_state()


#: What IPython changes in the interpreter, by module.
_CHANGED = {
    sys: "excepthook displayhook last_type last_value last_traceback last_exc ps1 ps2 ps3",
    builtins: "get_ipython display __IPYTHON__",
}


@contextmanager
def _python_kept() -> Iterator[None]:
    """Put back what IPython itself changes in the interpreter and never restores."""
    path, main, missing = list(sys.path), sys.modules["__main__"], object()
    handlers = list(logging.root.handlers)  # `logging.error`, as IPython 7 calls it, adds one
    kept = [
        (owner, name, getattr(owner, name, missing))
        for owner, names in _CHANGED.items()
        for name in names.split()
    ]
    try:
        yield
    finally:
        sys.path[:] = path
        logging.root.handlers[:] = handlers
        sys.modules["__main__"] = main
        for owner, name, value in kept:
            if value is not missing:
                setattr(owner, name, value)
            elif hasattr(owner, name):
                delattr(owner, name)
