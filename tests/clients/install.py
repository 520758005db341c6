"""Installs the clients that are pointed at `luce serve`, each at one version, apart from luce's own environment.

`make test` runs `python -m tests.clients.install` before pytest. Every group is an environment of its own, since
clients disagree with each other and with luce about what they need: Python packages in a virtual environment
`tests/.data/clients-GROUP`, those of Node.js in `tests/clients/node/node_modules`. pip and npm are called as
anyone would call them, for ready-made packages only, whose own programs do not run. What is there already is left
alone. What cannot be had costs one loud line here, and its tests are skipped, each with the reason.

`LUCE_TEST_CLIENTS=none` installs nothing; a list, as `LUCE_TEST_CLIENTS=sdk,node`, only those groups.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from tests.fetch import DATA

__all__ = ["GROUPS", "Group", "main", "require"]

HERE = Path(__file__).resolve().parent
TIMEOUT = 400
"""Seconds that one group may take; a slow network costs its tests, not the whole run."""
OLDEST_NODE = 20


class InstallError(Exception):
    """A group cannot be had."""


@attrs.frozen
class Group:
    """Clients that live together."""

    name: str
    holds: str

    @property
    def pins(self) -> Path:
        """The file that names every package with its version."""
        node = self.name == "node"
        return HERE / ("node/package-lock.json" if node else f"requirements-{self.name}.txt")

    @property
    def directory(self) -> Path:
        return HERE / "node/node_modules" if self.name == "node" else DATA / f"clients-{self.name}"

    @property
    def python(self) -> Path:
        return self.directory / "bin/python"

    @property
    def stamp(self) -> str:
        """Changes with the pins and with the interpreter that they were installed for."""
        version = "" if self.name == "node" else sys.version
        return hashlib.sha256(self.pins.read_bytes() + version.encode()).hexdigest()

    @property
    def wanted(self) -> bool:
        chosen = os.environ.get("LUCE_TEST_CLIENTS", "")
        return not chosen or self.name in chosen.split(",")

    @property
    def present(self) -> bool:
        """Whether exactly these pins were installed before, to the end."""
        stamp = self.directory / ".complete"
        return stamp.is_file() and stamp.read_text() == self.stamp

    @property
    def missing(self) -> Path:
        """Where it is kept why the last attempt failed."""
        return DATA / f"clients-{self.name}.missing"

    def install(self) -> None:
        """Leaves nothing half done. Raises InstallError."""
        DATA.mkdir(exist_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        try:
            if self.name == "node":
                _npm(self.pins.parent)
            else:
                venv.create(self.directory, symlinks=True)
                _pip(self.python, self.pins)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        (self.directory / ".complete").write_text(self.stamp)


GROUPS = {
    group.name: group
    for group in (
        Group("sdk", "openai, anthropic, litellm, langchain-openai and llm"),
        Group("instructor", "instructor, and with it an older openai"),
        Group("node", "openai for Node.js and the AI SDK"),
        Group("aiperf", "aiperf"),
        Group("schemathesis", "schemathesis"),
        Group("llamacpp", "llama.cpp, as a server beside luce"),
    )
}


def require(name: str) -> Group:
    """The group `name`, installed; skips the calling test, loudly, when it is not."""
    group = GROUPS[name]
    if group.present:
        return group
    why = (
        group.missing.read_text()
        if group.missing.is_file()
        else "python -m tests.clients.install was not run"
    )
    if not group.wanted:
        why = "LUCE_TEST_CLIENTS leaves it out"
    return pytest.skip(f"CLIENTS NOT TESTED: {name} ({group.holds}): {why}")


def _pip(python: Path, pins: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--only-binary",
        ":all:",
        "--requirement",
        str(pins),
    ]
    _run(command)


def _npm(folder: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise InstallError("npm or node is not installed")
    version = subprocess.run(
        [node, "--version"], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    found = re.match(r"v(\d+)", version)
    if found is None or int(found[1]) < OLDEST_NODE:
        raise InstallError(
            f"Node.js {OLDEST_NODE} or newer is needed, not {version.strip() or 'none that runs'}"
        )
    _run([npm, "ci", "--loglevel=error", "--prefix", str(folder)])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise InstallError(f"not complete within {TIMEOUT} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise InstallError(said[-1] if said else f"exit status {done.returncode}")


def _provide(group: Group) -> None:
    if group.present or not group.wanted:
        return
    try:
        group.install()
    except (InstallError, OSError, subprocess.SubprocessError) as error:
        why = " ".join(str(error).split())[:300]
        DATA.mkdir(exist_ok=True)
        group.missing.write_text(why)
        print(
            f"*** CLIENTS MISSING, tests will be skipped: {group.name} ({group.holds}): {why}",
            file=sys.stderr,
        )
    else:
        group.missing.unlink(missing_ok=True)
        print(f"installed clients: {group.name} ({group.holds})", file=sys.stderr)


def main() -> int:
    """Installs every group that is not there yet, two at a time. Always returns 0: tests that miss one skip."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_provide, sorted(GROUPS.values(), key=lambda group: group.name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
