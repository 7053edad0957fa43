"""The content of a file in the registry of claims, and the identity of a process.

Other users may have written the file: every field is checked, by type, range and pattern.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumagic.errors import GpuMagicError
from gpumagic.system import system_files

_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,76}")
#: The most characters of a notebook's name, and GPUs in a claim.
NOTEBOOK, _GPUS = 100, 64


class ClaimError(GpuMagicError):
    """No claim can be made here; the reason in one line. The choice of GPUs does not need one."""


class TooManyFilesError(ClaimError):
    """Not all claims can be found among the files of the registry.

    ``wrong`` has the number of files that are no claims, by owner.
    """

    def __init__(self, path: str, wrong: Counter[int]) -> None:
        who = "".join(f"; uid {uid} owns {n} that are no claims" for uid, n in wrong.most_common(1))
        super().__init__(f"{path} has too many files of claims to read{who}")


@dataclass(frozen=True)
class Entry:
    """The content of a file of the registry; times are seconds since the machine's start."""

    pid: int
    #: The process's start, in clock ticks since the machine's start.
    start: int
    #: The inode of its pid namespace.
    namespace: int
    #: The machine's boot id.
    boot: str
    uuids: tuple[str, ...]
    #: This and the next only if the user publishes them.
    notebook: str | None = None
    #: When the last cell ended; 0 while one runs.
    last_cell: float | None = None
    #: Whether the GPU memory is parked; None before it has been.
    parked: bool | None = None


def encode(entry: Entry) -> bytes:
    """Return the content of a file."""
    fields = {name: value for name, value in vars(entry).items() if value is not None}
    return json.dumps({"version": 1, **fields}).encode()


def parse(data: bytes) -> Entry | None:
    """Return the entry in a file's content; None if any field is not valid."""
    try:
        fields = json.loads(data, parse_constant=_refuse)
        if type(fields) is not dict or fields.pop("version", None) != 1:
            return None
        uuids = fields.get("uuids")
        if type(uuids) is not list or not 0 < len(uuids) <= _GPUS:
            return None
        entry = Entry(**{**fields, "uuids": tuple(uuids)})
    except (ValueError, TypeError, RecursionError):
        return None
    return entry if _is_valid(entry) else None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _is_valid(entry: Entry) -> bool:
    numbers = ((entry.pid, 2**32), (entry.start, 2**63), (entry.namespace, 2**64))
    cell = entry.last_cell
    return (
        all(type(number) is int and 0 < number < limit for number, limit in numbers)
        and type(entry.boot) is str
        and len(entry.boot) <= 64
        and all(type(uuid) is str and _UUID.fullmatch(uuid) for uuid in entry.uuids)
        and (entry.notebook is None or type(entry.notebook) is str)
        and len(entry.notebook or "") <= NOTEBOOK
        and "/" not in (entry.notebook or "")
        and (cell is None or (type(cell) in (int, float) and math.isfinite(cell) and cell >= 0))
        and entry.parked in (None, True, False)
        and type(entry.parked) in (type(None), bool)
    )


# --- the machine -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What distinguishes this process from all others of the machine."""

    uid: int
    pid: int
    start: int
    namespace: int
    boot: str

    @property
    def name(self) -> str:
        """Return the name of this process's file."""
        return f"gpumagic-{self.uid}-{self.pid}-{self.start}.json"


def identity() -> Identity:
    """Return the identity of this process.

    Raises:
        ClaimError: the system does not report it, or hides processes from other users.
    """
    try:
        uid, start = process("self")
        boot = (system_files.read("/proc/sys/kernel/random/boot_id") or "").strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except (OSError, ValueError, IndexError):
        raise ClaimError("claims need Linux's /proc") from None
    if re.search(
        r"^\S+ /proc proc \S*\bhidepid=[^0,\s]", system_files.read("/proc/mounts") or "", re.M
    ):
        raise ClaimError("/proc hides the processes of users from each other (hidepid)")
    return Identity(uid, os.getpid(), start, namespace, boot)


def process(pid: int | str) -> tuple[int, int]:
    """Return the uid of a process and its start in clock ticks since the machine's start.

    Raises:
        OSError, ValueError, IndexError: there is no such process.
    """
    with Path(f"/proc/{pid}/stat").open("rb") as file:
        start = int(file.read(4096).rpartition(b")")[2].split()[19])
    with Path(f"/proc/{pid}/status").open("rb") as file:  # the folder's owner may be root
        line = next(line for line in file if line.startswith(b"Uid:"))
    return int(line.split()[2]), start
