"""Start the program that replaces another one: run its command line again, and resume.

Executed by its path, and importing nothing of gpumagic but modules that import nothing of it
either, so that the request that asked for the restart is answered also where gpumagic cannot be
imported. The user's configuration applies: extensions, startup files, lines to execute. Only what
the command line itself ran (``ipython -i train.py``) is not run again.

With ``--check`` it only tries whether the new process will be able to import what it needs.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).parent
#: The name under which the rest of the package imports this module.
NAME = "gpumagic.restart.loader"

#: The state that the old program has written; None in a process without one.
state: dict[str, Any] | None = None
#: The number of interrupts since the start of this program that were not reported.
interrupts = 0

_second_interrupt_raises = False


# --- interrupts ----------------------------------------------------------------------------------


def defer_interrupts() -> None:
    """Count interrupts from now on instead of raising `KeyboardInterrupt`."""
    signal.signal(signal.SIGINT, _count_interrupt)


def _count_interrupt(*_: Any) -> None:
    global interrupts
    interrupts += 1
    if _second_interrupt_raises and interrupts > 1:
        raise KeyboardInterrupt


@contextmanager
def second_interrupt_raises() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block from the second interrupt on."""
    global _second_interrupt_raises
    _second_interrupt_raises = True
    try:
        yield
    finally:
        _second_interrupt_raises = False


# --- the start -----------------------------------------------------------------------------------


def main() -> None:
    """Run the command that follows on the command line, as Python itself would."""
    global state
    if sys.path and sys.path[0] == str(_HERE):  # not with -P
        del sys.path[0]
    words = sys.argv[1:]
    if words[:1] == ["--check"]:
        _check(words[1])
        return
    defer_interrupts()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.modules[NAME] = sys.modules["__main__"]
    sys.orig_argv[:] = [*sys.orig_argv[: len(sys.orig_argv) - len(words) - 1], *words]
    state = _sibling("state_file").take()
    if state is not None:
        _patch_ipython(state)
    _run(words)


def _sibling(name: str) -> ModuleType:
    """Import a module beside this file, which imports nothing of gpumagic, without the package."""
    known = sys.modules.get(f"gpumagic.restart.{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"_gpumagic_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(words: list[str]) -> None:
    """Run ``-m module``, ``-c code`` or a script, with their arguments."""
    here = None if getattr(sys.flags, "safe_path", sys.flags.isolated) else _working_folder()
    if words[0] == "-m":
        # An installed module has precedence over a file of that name in the working folder.
        spec = _spec(words[1])
        if here is not None:
            sys.path.insert(0, here)
        spec = spec or _spec(words[1])
        if spec is None or spec.loader is None:
            sys.exit(f"{sys.executable}: No module named {words[1]}")
        main = importlib.util.module_from_spec(spec)
        main.__name__ = "__main__"
        code = spec.loader.get_code(spec.name)
        sys.argv[:] = [str(spec.origin), *words[2:]]
    else:
        main = ModuleType("__main__")
        if words[0] == "-c":
            here = None if here is None else ""
            code = compile(words[1], "<string>", "exec")
            sys.argv[:] = ["-c", *words[2:]]
        else:
            script = Path(words[0])
            here = None if here is None else str(script.resolve().parent)
            code = compile(script.read_bytes(), words[0], "exec")
            main.__file__ = words[0]
            sys.argv[:] = words
        if here is not None:
            sys.path.insert(0, here)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return None


def _spec(name: str) -> Any:
    """Find the code of ``python -m name``; None if there is none."""
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        return None
    return found


# --- changes to IPython and zmq until the shell is ready -----------------------------------------


def _patch_ipython(old: Mapping[str, Any]) -> None:
    """Have IPython call `_load_extension` when it has run the user's configuration."""
    from IPython.core.shellapp import InteractiveShellApp as App

    undo = [_replaced(App, "init_path", _before_shell), _replaced(App, "init_code", _run_code)]
    if old["kernel"]:
        from ipykernel.kernelapp import IPKernelApp

        # It would ignore interrupts; they are counted until the restart is answered.
        undo.append(_replaced(IPKernelApp, "init_signal", lambda _app, _original: None))
        undo.append(_reuse_sockets(old["sockets"]))
    _undo.extend(undo)


#: Restore what `_patch_ipython` has replaced.
_undo: list[Callable[[], None]] = []


def _replaced(owner: Any, name: str, new: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method by ``new``, which is given the original; return what restores it."""
    original = vars(owner)[name]

    def method(self: Any, *arguments: Any) -> Any:
        return new(self, lambda: original(self, *arguments))

    setattr(owner, name, method)
    return lambda: setattr(owner, name, original)


def _before_shell(app: Any, original: Callable[[], None]) -> None:
    if hasattr(app, "display_banner"):
        app.display_banner = False
    original()


def _run_code(app: Any, original: Callable[[], None]) -> None:
    if app.code_to_run or app.file_to_run or app.module_to_run:
        app.exec_PYTHONSTARTUP = False  # as IPython does where there is code to run
        app.code_to_run = app.file_to_run = app.module_to_run = ""
    original()
    for restore in _undo:
        restore()
    _undo.clear()
    _load_extension(app)


def _reuse_sockets(descriptors: Mapping[int, int]) -> Callable[[], None]:
    """Let zmq listen on the sockets that the old program has left open, by their TCP ports.

    No other process can have taken the ports meanwhile.
    """
    import zmq

    for descriptor in descriptors.values():
        os.set_inheritable(descriptor, False)
    unused, original = dict(descriptors), zmq.Socket.bind

    def bind(self: Any, address: str) -> Any:
        port = address.rpartition(":")[2]
        if not address.startswith("tcp://") or not port.isdigit() or int(port) not in unused:
            return original(self, address)
        self.setsockopt(zmq.USE_FD, unused.pop(int(port)))
        try:
            return original(self, address)
        finally:
            self.setsockopt(zmq.USE_FD, -1)

    def restore() -> None:
        zmq.Socket.bind = original  # type: ignore[method-assign]
        for descriptor in unused.values():
            os.close(descriptor)

    zmq.Socket.bind = bind  # type: ignore[method-assign, assignment]
    return restore


# --- the reply to the request that asked for the restart -----------------------------------------


def _load_extension(app: Any) -> None:
    """Load gpumagic, which replies; if it cannot be loaded, reply that."""
    assert state is not None
    try:
        _find_gpumagic()
        app.shell.extension_manager.load_extension("gpumagic")
        app.shell.magics_manager.registry["GpuMagic"].resume(state)
    except BaseException as error:
        answer_failure(app.shell, state, error)


def _find_gpumagic() -> None:
    """Import the gpumagic of the old process, also where another one, or none, would be found."""
    package = _HERE.parent
    place = package / "__init__.py"
    found = importlib.util.find_spec("gpumagic")
    if found is None:
        # Its dependencies may be installed beside it.
        sys.path.append(str(package.parent))
    elif found.origin is None or Path(found.origin).resolve() != place.resolve():
        spec = importlib.util.spec_from_file_location(
            "gpumagic", place, submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["gpumagic"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["gpumagic"])


def answer_failure(shell: Any, old: Mapping[str, Any], error: BaseException) -> None:
    """Reply to the request that asked for the restart that it failed. The kernel goes on.

    Requests behind it are aborted as after any cell that fails.
    """
    lines = str(error).splitlines()
    # As `system.text.reason`, which may not be importable.
    what = "".join(c if c.isprintable() else "\ufffd" for c in (lines or [""])[0][:300])
    said = (
        f"the restart failed: {type(error).__name__}: {what}. This is a fresh "
        "process under the new choice; all variables are lost"
    )
    kernel = getattr(shell, "kernel", None)
    shell.execution_count = old["counters"]["next"]
    if kernel is None:
        print(said, file=sys.stderr)
        restore_interrupts(kernel)
        return
    shell.execution_count -= 1  # the kernel counts the cell once more
    code = "raise __import__('IPython.core.error', fromlist=['error']).UsageError(" + repr(said)

    async def answer(run: Any, stream: Any, identities: Any, parent: dict[str, Any]) -> None:
        await _sibling("connections").wait_until_reconnected(kernel.parent, old["channels"])
        parent["content"]["code"] = f"{code})"
        await run(stream, identities, parent)

    answer_first(kernel, old, answer)


def answer_first(kernel: Any, old: Mapping[str, Any], answer: Callable[..., Any]) -> None:
    """Give the kernel the requests of the old one, once its loop runs; interrupts are deferred.

    The first one, which asked for the restart, is handled by the coroutine function ``answer``; its
    first argument is the kernel's own handler.
    """
    from tornado.ioloop import IOLoop

    handlers = kernel.shell_handlers
    run = handlers["execute_request"]

    async def first(stream: Any, identities: Any, parent: dict[str, Any]) -> None:
        handlers["execute_request"] = run
        await answer(run, stream, identities, parent)

    def after() -> None:
        del kernel.pre_handler_hook, kernel.post_handler_hook
        restore_interrupts(kernel)

    # With ipykernel's own an interrupt would raise in the event loop, which does not catch it.
    kernel.pre_handler_hook, kernel.post_handler_hook = lambda: None, after
    handlers["execute_request"] = first
    # The loop runs this first, before it reads from a socket.
    IOLoop.current().add_callback(
        _sibling("shell_queue").put, kernel, [old["current_request"], *old["pending_requests"]]
    )


def restore_interrupts(kernel: Any) -> None:
    """Restore the disposition of SIGINT in a shell of this kind."""
    if kernel is None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # except while a request is handled


# --- before the restart --------------------------------------------------------------------------


def _check(what: str) -> None:
    """Import what the new process imports, and print the version; run in a child process."""
    importlib.import_module("ipykernel.ipkernel" if what == "kernel" else "IPython.terminal.ipapp")
    _find_gpumagic()
    for name in ("magics.loading", "magics.gpu.restarting", "restart.resuming"):
        importlib.import_module(f"gpumagic.{name}")
    print(sys.modules["gpumagic"].__version__)


if __name__ == "__main__":
    main()
