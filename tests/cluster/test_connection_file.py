"""Connection files that other users may have written: none is used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.error import UsageError
from traitlets import TraitError

from gpumagic.cluster import connection, connection_file
from tests.support.clusters import Cluster
from tests.support.other_user import UID
from tests.support.shells import Ran

Run = Callable[..., Ran]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no owners and modes")


def test_a_connection_file_that_others_may_have_written(
    two_engines: Cluster, run_cell: Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(two_engines.file.read_text())
    for mode in (0o620, 0o602, 0o666):
        file.chmod(mode)
        with pytest.raises(UsageError) as raised:
            run_cell(f"%gpu cluster '{file}'")
        assert str(raised.value).startswith(
            f"{file} is not used, since others have access to it (mode {mode:04o}): "
        )
    file.chmod(0o644)
    assert "2 engines on 1 host" in run_cell(f"%gpu cluster '{file}'").text
    if os.geteuid() == 0:
        stranger = tmp_path / "stranger.json"
        stranger.write_text(two_engines.file.read_text())
        os.chown(stranger, UID, UID)
        with pytest.raises(UsageError, match=rf"it belongs to another user \(uid {UID}\)"):
            run_cell(f"%gpu cluster '{stranger}'")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '{"a": NaN}', "", "\0", '{"key": []}'])
def test_an_invalid_connection_file(run_cell: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(UsageError, match=r"odd\.json is no connection file of ipyparallel's"):
        run_cell(f"%gpu cluster '{tmp_path}/odd.json'")


#: As a controller writes it, without its secrets.
_FILE = {
    **{"ssh": "", "interface": "tcp://127.0.0.1", "registration": 1, "control": 2, "mux": 3},
    **{"task": 4, "iopub": 5, "notification": 6, "broadcast": [7, 8], "task_scheme": "leastload"},
    **{"key": "k", "curve_serverkey": None, "location": "host-1", "pack": "json", "unpack": "json"},
    "signature_scheme": "hmac-sha256",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("pack", value) for value in ("antigravity", "os.system", "pickle.loads", ["json"], 7)),
        ("unpack", "subprocess.getoutput"),
        *(("ssh", f"host{sign}") for sign in (" -oProxyCommand=x", "\t", "\n", "'x'", "`x`", ";x")),
        *(("ssh", value) for value in ("-oProxyCommand=x", "-l@h", "me@-h", "a:b", "a:1:2", ["h"])),
        ("interface", "tcp://127.0.0.1 -oProxyCommand=x"),
        ("interface", ["tcp://127.0.0.1"]),
        ("location", "host -oProxyCommand=x"),
        ("location", "-oProxyCommand=x"),
    ],
)
def test_a_connection_file_runs_nothing(
    run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    package = SimpleNamespace(Client=lambda *_, **__: pytest.fail("it was used"))
    monkeypatch.setattr(connection, "package", lambda: package)
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**_FILE, name: value}))
    with pytest.raises(UsageError, match=rf"^c\.json is not used: its '{name}' is .+, not .+$"):
        run_cell(f"%gpu cluster '{file}'")


def test_what_a_client_is_told_of_a_connection_file(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    for changed in (
        *({"ssh": ssh} for ssh in ("host", "me@host.example:22", "a.b-c@10.0.0.1", "my_alias")),
        *({"pack": name, "unpack": name} for name in ("json", "orjson", "pickle", "msgpack")),
        *({"interface": at} for at in ("tcp://*", "tcp://0.0.0.0", "ipc:///a b/c", "tcp://[::1]")),
        {"ssh": None, "location": None},
    ):
        file.write_text(json.dumps({**_FILE, **changed, "profile": "x", "debug": 1}))
        assert connection_file.read(file) == {**_FILE, **changed}
    for empty in ("", None):
        file.write_text(json.dumps({**_FILE, "pack": empty}))
        assert connection_file.read(file) == _FILE
    file.write_text(json.dumps({name: _FILE[name] for name in _FILE if name != "pack"}))
    assert connection_file.read(file) == _FILE


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("tunnel failed to start\nmore"),
        ImportError("pexpect unavailable"),
        TraitError("no such thing"),
        OSError("no route"),
        Exception("Failed to connect!\nTraceback"),
    ],
)
def test_whatever_a_client_raises_is_one_line(
    run_cell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def client(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(connection, "package", lambda: SimpleNamespace(Client=client))
    file = tmp_path / "c.json"
    file.write_text(json.dumps(_FILE))
    with pytest.raises(UsageError) as raised:
        run_cell(f"%gpu cluster '{file}'")
    first = str(error).splitlines()[0]
    assert str(raised.value) == f"cannot connect by c.json: {type(error).__name__}: {first}"
