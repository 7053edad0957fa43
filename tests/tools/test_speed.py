"""A machine of another speed is one whose clocks go otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.other_user import needs_root
from tests.tools.speed import __main__ as speed

#: Prints, for each way of waiting, the time by this process's clock, and two by the real one: of
#: the wait alone, and with the readings of the other clock.
_CODE = """
import asyncio, select, signal, subprocess, sys, threading, time
def real():
    return time.clock_gettime(time.CLOCK_BOOTTIME)
def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire(timeout=0.05)
def alarm():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.sigwait([signal.SIGALRM])
poll = select.poll()
waits = {
    "sleep": lambda: time.sleep(0.05),
    "select": lambda: select.select([], [], [], 0.05),
    "poll": lambda: poll.poll(50),
    "event": lambda: threading.Event().wait(0.05),
    "lock": lock,
    "alarm": alarm,
    "asyncio": lambda: asyncio.run(asyncio.sleep(0.05)),
    "process": lambda: subprocess.run(["sleep", "0.05"]),
}
for name in sys.argv[1:]:
    most = real()
    start = time.perf_counter()
    least = real()
    waits[name]()
    least = real() - least
    passed = time.perf_counter() - start
    most = real() - most
    print(name, passed, least, most)
most = real()
spent = time.process_time()
while time.process_time() - spent < 0.05:
    pass
print("cpu", 0.05, 0.0, real() - most)
most = real()
start = time.time()
least = real()
time.sleep(0.05)
least = real() - least
passed = time.time() - start
print("calendar", passed, least, real() - most)
"""
_WAITS = ("sleep", "select", "poll", "event", "lock", "alarm", "asyncio")


needs_real_clocks = pytest.mark.skipif(
    speed.in_use(), reason="a library is preloaded into all processes, perhaps these clocks"
)


def check(output: str, times: float) -> None:
    rows = [line.split() for line in output.splitlines()]
    assert rows
    for name, *figures in rows:
        passed, least, most = map(float, figures)
        # Timers count in milliseconds, or end a little early.
        assert passed >= 0.0485, name
        assert least <= times * passed + 1e-5, name
        assert most >= times * passed - 1e-5, name


@needs_real_clocks
@pytest.mark.parametrize("times", [3.0, 0.4])
def test_time_goes_by_the_clocks_of_that_machine(times: float) -> None:
    before = os.environ.get("LD_PRELOAD", "")
    # A blank would end the name of the library.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        library = speed.build(times, Path(folder))
        done = subprocess.run(
            [sys.executable, "-c", _CODE, *_WAITS],
            env={**os.environ, "LD_PRELOAD": f"{before}:{library}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    check(done.stdout, times)


@needs_root
@needs_real_clocks
def test_each_process_of_a_command_is_on_it(capfd: pytest.CaptureFixture[str]) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("root may make no mount namespace here")
    # Its own environment is empty.
    cleared = ["env", "-i", sys.executable, "-c", _CODE, "sleep", "process"]
    assert speed.main(["2", *cleared]) == 0
    check(capfd.readouterr().out, 2.0)


@pytest.mark.parametrize("words", [["2"], ["0", "true"], ["nan", "true"], ["many", "true"]])
def test_words_that_do_not_fit(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main(words)
    assert "error: " in capsys.readouterr().err


def test_a_list_that_is_in_use_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "ld.so.preload"
    listed.write_text("/usr/lib/libother.so\n", encoding="utf-8")
    monkeypatch.setattr(speed, "LIST", listed)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit):
        speed.main(["2", "true"])
    assert f"{listed} is in use" in capsys.readouterr().err


def test_another_user_may_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit):
        speed.main(["2", "true"])
    assert "only root" in capsys.readouterr().err
