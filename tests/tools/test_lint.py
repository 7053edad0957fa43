"""The hooks of ``.pre-commit-config.yaml`` are the commands of ``make lint``."""

from __future__ import annotations

import re

from tests.support.device import ROOT


def test_pre_commit_runs_the_commands_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\nlint:")[1].partition("\n\n")[0]
    commands = re.findall(r"^\t\$\(RUN\) (.+)$", recipe, re.MULTILINE)
    assert len(commands) == 4
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert "\nVENV := .venv\nRUN := $(VENV)/bin/python\n" in makefile
    assert re.findall(r"^ +entry: \.venv/bin/python (.+)$", hooks, re.MULTILINE) == commands
