"""Scripts that run in the environment of a client, and what each of their checks found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.clients.install import HERE, Group

__all__ = ["ENVIRONMENT", "Script", "all_checks", "environment"]

TIMEOUT = 300
ENVIRONMENT = {
    # Clients that would ask or tell someone on the network something do not.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}


def environment(**more: str) -> dict[str, str]:
    """This process's variables without those that clients take their server or key from."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "ANTHROPIC_", "LITELLM_", "LLM_", "PYTHON"))
    }
    return own | ENVIRONMENT | more


@attrs.frozen
class Script:
    """One file with checks: in Python functions under `@check`, in JavaScript calls of `check("name", …)`."""

    group: str
    name: str

    @property
    def path(self) -> Path:
        return HERE / ("node" if self.name.endswith(".mjs") else "python") / self.name

    @property
    def checks(self) -> list[str]:
        """Names in order, read from the text: the script imports what only its own environment has."""
        pattern = r'^check\("(\w+)"' if self.name.endswith(".mjs") else r"^@check\n(?:async )?def (\w+)"
        return re.findall(pattern, self.path.read_text(), re.MULTILINE)

    def run(self, group: Group, facts: Path, results: Path) -> Mapping[str, str | None]:
        """Runs all checks. Returns what went wrong by check, None where nothing did."""
        program = shutil.which("node") if self.name.endswith(".mjs") else str(group.python)
        assert program is not None
        command = [program, str(self.path), str(facts), str(results)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
                env=environment(),
                cwd=results.parent,
            )
            ending = f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        except subprocess.TimeoutExpired as late:
            ending = f"not done within {TIMEOUT} s\n{late.stdout!r}\n{late.stderr!r}"
        lines = results.read_text().splitlines() if results.is_file() else []
        found = {row["check"]: row["error"] for row in map(json.loads, lines)}
        return {name: found.get(name, f"the script ended without it: {ending}") for name in self.checks}


def all_checks(*scripts: Script) -> list[Any]:
    """A parameter set of script and check for every check, named after both."""
    return [
        pytest.param(script, check, id=f"{script.path.stem}-{check}")
        for script in scripts
        for check in script.checks
    ]
