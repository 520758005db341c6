"""Two servers with the bundled model, and the results of every script that ran against them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from luce.engines.load_model import demo_model
from luce.errors import ModelFileError
from tests.clients.facts import KEY, SLOTS, facts
from tests.clients.install import require
from tests.clients.scripts import Script
from tests.e2e.server import ServerProcess, serving

Check = Callable[[Script, str], None]


@pytest.fixture(scope="session")
def model() -> None:
    try:
        demo_model()
    except ModelFileError as error:
        pytest.skip(f"NOT TESTED: {error}")


@pytest.fixture(scope="session")
def server(model: None) -> Iterator[ServerProcess]:
    """Streams have comment lines between most of their events: clients must pass over them."""
    with serving(None, "--slots", str(SLOTS), "--api-key", KEY, "--keep-alive", "0.01") as process:
        yield process


@pytest.fixture(scope="session")
def tight_server(model: None) -> Iterator[ServerProcess]:
    """One request runs, one waits, the third gets 503."""
    flags = ("--slots", "1", "--queue", "1", "--api-key", KEY, "--keep-alive", "0.05")
    with serving(None, *flags) as process:
        yield process


@pytest.fixture(scope="session")
def known(
    server: ServerProcess, tight_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The file of facts."""
    folder = tmp_path_factory.mktemp("clients")
    path = folder / "facts.json"
    path.write_text(json.dumps(facts(server.url, tight_server.url, folder)))
    return path


@pytest.fixture(scope="session")
def passes(known: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Fails the calling test with what the check found; the script runs once, at the first of its checks."""
    ran: dict[Script, Mapping[str, str | None]] = {}

    def checked(script: Script, name: str) -> None:
        group = require(script.group)
        if script not in ran:
            results = tmp_path_factory.mktemp(script.path.stem) / "results.jsonl"
            ran[script] = script.run(group, known, results)
        error = ran[script][name]
        assert error is None, error

    return checked
