"""The first code of a process that replaces another one: it runs the old command line again.

Executed by its path and importing nothing of gpumagic (but `handover`, which stands by itself), so
that the request which asked for the restart is answered also where gpumagic does not import. What
the user has configured takes its course: extensions, startup files, lines to execute. Only what was
run by the command line itself (``ipython -i train.py``) is not run a second time.

With ``--check`` it says instead whether the new process will find all that it needs.
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
#: How this module is found by the rest of the package.
NAME = "gpumagic.restart.loader"

#: What the old process left; None in a process that replaces none.
state: dict[str, Any] | None = None
#: How often this process has been interrupted since its start, and nothing was told of it.
interrupts = 0

_may_be_stopped = False


# --- interrupts ----------------------------------------------------------------------------------


def hold_interrupts() -> None:
    """Count interrupts from now on, instead of raising `KeyboardInterrupt`."""
    signal.signal(signal.SIGINT, _note)


def _note(*_: Any) -> None:
    global interrupts
    interrupts += 1
    if _may_be_stopped and interrupts > 1:
        raise KeyboardInterrupt


@contextmanager
def stopped_by_the_second_interrupt() -> Iterator[None]:
    """One interrupt is held; a further one raises `KeyboardInterrupt` in the block."""
    global _may_be_stopped
    _may_be_stopped = True
    try:
        yield
    finally:
        _may_be_stopped = False


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
    hold_interrupts()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.modules[NAME] = sys.modules["__main__"]
    sys.orig_argv[:] = [*sys.orig_argv[: len(sys.orig_argv) - len(words) - 1], *words]
    state = _neighbour("state_file").take()
    if state is not None:
        _hook(state)
    _run(words)


def _neighbour(name: str) -> ModuleType:
    """A module beside this file that needs no other of gpumagic, without the package around it."""
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
    """``-m module``, ``-c code`` or a script, with their arguments."""
    here = None if getattr(sys.flags, "safe_path", sys.flags.isolated) else _working_folder()
    if words[0] == "-m":
        # What is installed comes before a file of that name in the working folder.
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
    """Where the code of ``python -m name`` is; None if nowhere."""
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        return None
    return found


# --- what is done on the way ---------------------------------------------------------------------


def _hook(left: Mapping[str, Any]) -> None:
    """Have IPython's application call `_go_on` when it has run the user's configuration."""
    from IPython.core.shellapp import InteractiveShellApp as App

    undo = [_replaced(App, "init_path", _before_shell), _replaced(App, "init_code", _run_code)]
    if left["kernel"]:
        from ipykernel.kernelapp import IPKernelApp

        # It would ignore interrupts; they are counted until the restart has been answered.
        undo.append(_replaced(IPKernelApp, "init_signal", lambda _app, _original: None))
        undo.append(_hand_on(left["sockets"]))
    left_undo.extend(undo)


#: Takes back what `_hook` has replaced.
left_undo: list[Callable[[], None]] = []


def _replaced(owner: Any, name: str, new: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method by ``new``, which is given the original; returns what takes that back."""
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
        app.exec_PYTHONSTARTUP = False  # as with something to run
        app.code_to_run = app.file_to_run = app.module_to_run = ""
    original()
    for take_back in left_undo:
        take_back()
    left_undo.clear()
    _go_on(app)


def _hand_on(descriptors: Mapping[int, int]) -> Callable[[], None]:
    """Let zmq listen on the sockets that the old process has left open, a TCP port each.

    The ports have never been free, so nobody else can have taken them.
    """
    import zmq

    for descriptor in descriptors.values():
        os.set_inheritable(descriptor, False)
    left, original = dict(descriptors), zmq.Socket.bind

    def bind(self: Any, address: str) -> Any:
        port = address.rpartition(":")[2]
        if not address.startswith("tcp://") or not port.isdigit() or int(port) not in left:
            return original(self, address)
        self.setsockopt(zmq.USE_FD, left.pop(int(port)))
        try:
            return original(self, address)
        finally:
            self.setsockopt(zmq.USE_FD, -1)

    def take_back() -> None:
        zmq.Socket.bind = original  # type: ignore[method-assign]
        for descriptor in left.values():
            os.close(descriptor)

    zmq.Socket.bind = bind  # type: ignore[method-assign, assignment]
    return take_back


# --- the restart's answer ------------------------------------------------------------------------


def _go_on(app: Any) -> None:
    """Load gpumagic, which answers; if it cannot, answer that."""
    assert state is not None
    try:
        _find_gpumagic()
        app.shell.extension_manager.load_extension("gpumagic")
        app.shell.magics_manager.registry["GpuMagic"].resume(state)
    except BaseException as error:
        failed(app.shell, state, error)


def _find_gpumagic() -> None:
    """Have gpumagic be that of the old process, also where this one finds another, or none."""
    package = _HERE.parent
    place = package / "__init__.py"
    found = importlib.util.find_spec("gpumagic")
    if found is None:
        # What it needs may lie beside it.
        sys.path.append(str(package.parent))
    elif found.origin is None or Path(found.origin).resolve() != place.resolve():
        spec = importlib.util.spec_from_file_location(
            "gpumagic", place, submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["gpumagic"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["gpumagic"])


def failed(shell: Any, left: Mapping[str, Any], error: BaseException) -> None:
    """Answer the request that asked for the restart: it has failed. The kernel goes on.

    Those that waited behind it are answered as behind any cell that fails.
    """
    lines = str(error).splitlines()
    # As `one_line.reason`, which may be out of reach.
    what = "".join(c if c.isprintable() else "\ufffd" for c in (lines or [""])[0][:300])
    said = (
        f"the restart failed: {type(error).__name__}: {what}. This is a fresh "
        "process under the new choice; all variables are lost"
    )
    kernel = getattr(shell, "kernel", None)
    shell.execution_count = left["numbering"]["next"]
    if kernel is None:
        print(said, file=sys.stderr)
        answered(kernel)
        return
    shell.execution_count -= 1  # the kernel counts the cell once more
    code = "raise __import__('IPython.core.error', fromlist=['error']).UsageError(" + repr(said)

    async def answer(run: Any, stream: Any, identities: Any, parent: dict[str, Any]) -> None:
        await _neighbour("connections").back(kernel.parent, left["channels"])
        parent["content"]["code"] = f"{code})"
        await run(stream, identities, parent)

    answer_first(kernel, left, answer)


def answer_first(kernel: Any, left: Mapping[str, Any], answer: Callable[..., Any]) -> None:
    """Give the kernel the requests of the old one, once its loop runs; interrupts are held.

    The first of them, which asked for the restart, is handled by ``answer``, a coroutine function;
    its first argument is what would have handled it otherwise.
    """
    from tornado.ioloop import IOLoop

    handlers = kernel.shell_handlers
    run = handlers["execute_request"]

    async def first(stream: Any, identities: Any, parent: dict[str, Any]) -> None:
        handlers["execute_request"] = run
        await answer(run, stream, identities, parent)

    def after() -> None:
        del kernel.pre_handler_hook, kernel.post_handler_hook
        answered(kernel)

    # They would have an interrupt raise in the loop, where nothing catches it.
    kernel.pre_handler_hook, kernel.post_handler_hook = lambda: None, after
    handlers["execute_request"] = first
    # The first thing that the kernel's loop does; nothing has been read from a socket before.
    IOLoop.current().add_callback(
        _neighbour("shell_queue").put, kernel, [left["asking"], *left["waiting"]]
    )


def answered(kernel: Any) -> None:
    """Interrupts do again what they do in a shell of this kind."""
    if kernel is None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # but for the time that a request takes


# --- before the restart --------------------------------------------------------------------------


def _check(what: str) -> None:
    """In a child of the old process: import what the new process imports, and print the version."""
    importlib.import_module("ipykernel.ipkernel" if what == "kernel" else "IPython.terminal.ipapp")
    _find_gpumagic()
    for name in ("magics.loading", "magics.gpu.restarting", "restart.resuming"):
        importlib.import_module(f"gpumagic.{name}")
    print(sys.modules["gpumagic"].__version__)


if __name__ == "__main__":
    main()
