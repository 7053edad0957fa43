"""In the old process: start the child, and learn what comes of the variables."""

from __future__ import annotations

import json
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from gpumagic.cuda.pytorch import torch_cuda
from gpumagic.errors import RestartError
from gpumagic.restart import handover
from gpumagic.restart.variables.kinds import refused
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import Reference
from gpumagic.restart.variables.pickler import Leaves
from gpumagic.restart.variables.trial.child import Step
from gpumagic.system import child_process, import_path
from gpumagic.system.introspection import imported_as
from gpumagic.system.shell import Shell

#: The import path, by which the child finds gpumagic, comes first.
_PROGRAM = """
import os, pickle, sys
requests = os.fdopen(os.dup(0), "rb")
sys.path[:] = pickle.load(requests)
from gpumagic.restart.variables.trial import child
child.run(requests, int(sys.argv[1]))
"""


@dataclass(frozen=True)
class Outcome:
    """What a try has found."""

    #: What modules hold here, and a fresh import does not.
    missing: Sequence[Reference] = ()
    #: The first variable with which the try has ended, and why.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: What variables have not any more when they come back.
    lacking: Mapping[str, str] = field(default_factory=dict)


class Trial:
    """A process that tries to load variables; ``data`` is their file."""

    def __init__(self, process: Any, errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    @classmethod
    @contextmanager
    def begun(
        cls, data: IO[bytes], extension: str, environment: Mapping[str, str], shell: Shell
    ) -> Iterator[Trial]:
        """Start the process, which imports ``extension``, and the modules that variables are."""
        modules = [name for name in map(imported_as, shell.user_ns.values()) if name]
        modules += ["torch"] if torch_cuda.loaded() is not None else []
        imports = import_path.Imports.of_this_process(shell.starting_dir)
        descriptors = [data.fileno()]
        with ExitStack() as stack:
            with suppress(OSError):  # the working folder is closed to this user
                descriptors.append(os.open(".", os.O_PATH | os.O_DIRECTORY))
                stack.callback(os.close, descriptors[1])
            errors = stack.enter_context(handover.in_memory())
            process = stack.enter_context(
                child_process.conversation(
                    *(_PROGRAM, str(data.fileno())),
                    environment=import_path.environment(environment, shell.starting_dir),
                    stderr=errors,
                    pass_fds=descriptors,
                )
            )
            trial = cls(process, errors)
            trial._send(imports.path, (imports, descriptors[1:], extension, modules))
            yield trial

    def _send(self, *requests: object) -> None:
        with suppress(BrokenPipeError):  # it has ended, and says why
            for each in requests:
                pickle.dump(each, self._process.stdin)
            self._process.stdin.flush()

    def outcome(self, manifest: Manifest, leaves: Leaves, namespace: Mapping[str, Any]) -> Outcome:
        """Load the variables, which are in ``namespace`` here; return what comes of them.

        Those of which there are ``leaves`` are compared with these.

        Raises:
            RestartError: no process starts in that environment, or it ends with an import.
        """
        status, last, faults = self._answer(manifest, leaves)
        if found := faults["find"]:
            return Outcome(missing=[each for each in manifest.referred if str(each) in found])
        if last.stage == "done":
            return Outcome(lacking=faults["compare"])
        ends = f"ends with status {status}"
        if last.stage == "find" or not last.name:
            looks = f" when it looks for {last.name}" * bool(last.name)
            raise RestartError(f"the new process {ends}{looks}")
        words = refused.type_in_words(namespace.get(last.name))
        why = last.fault or f"a process that {last.stage}s it {ends}"
        return Outcome(failed={last.name: f"{words}{': ' * bool(words)}{why}"})

    def _answer(
        self, manifest: Manifest, leaves: Leaves
    ) -> tuple[str, Step, Mapping[str, dict[str, str]]]:
        """Return the status with which a try ends, its last step, and the faults of each stage."""
        self._send((manifest, leaves))
        last, faults = Step("find"), defaultdict[str, dict[str, str]](dict)
        for line in self._process.stdout:
            step = Step(*json.loads(line))
            if step.stage == "end":
                return step.fault, last, faults
            if step.fault:
                faults[step.stage][step.name] = step.fault
            last = step
        self._errors.seek(0)
        why = child_process.last_error(self._errors.read().decode(errors="replace"))
        raise RestartError(f"the new process would not start: {why}")
