"""schemathesis against a real server with the bundled model, by the document that the server itself serves.

No 5xx, no status, header or content type that is not documented, answers and events that fit their schemas, data that
the document forbids refused, other methods 405 with `Allow`, no address without its key. The same cases every time;
`LUCE_SCHEMATHESIS_EXAMPLES=500` tries more for each operation (30 without it), `LUCE_SCHEMATHESIS_SEED=7` other ones.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.facts import KEY
from tests.clients.install import require
from tests.e2e.server import ServerProcess, serving, until

EXAMPLES = int(os.environ.get("LUCE_SCHEMATHESIS_EXAMPLES", "30"))
SEED = os.environ.get("LUCE_SCHEMATHESIS_SEED", "1")
UNKNOWABLE = "positive_data_acceptance"
"""A prompt that fits its schema may be too long, and a name one that is not served."""


@pytest.fixture(scope="module")
def small_server(model: None) -> Iterator[ServerProcess]:
    """Its context is small, so that answers without a limit are short."""
    with serving(None, "--slots", "4", "--context", "64", "--api-key", KEY) as process:
        yield process


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phases", ["examples,coverage", "fuzzing"])
def test_the_server_is_what_its_document_says(
    small_server: ServerProcess, tmp_path: Path, phases: str
) -> None:
    server = small_server
    group = require("schemathesis")
    command = [str(group.directory / "bin/st"), "run", f"{server.url}/openapi.json", "--no-color"]
    command += ["--header", f"Authorization: Bearer {KEY}", "--seed", SEED, "--max-examples", str(EXAMPLES)]
    command += ["--phases", phases, "--exclude-checks", UNKNOWABLE, "--generation-database", "none"]
    command += ["--request-timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    selected = re.search(r"Operations: +(\d+) selected / (\d+) total", done.stdout)
    assert selected is not None
    assert selected[1] == selected[2]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases is not None
    assert int(cases[1]) > 300, "it has hardly tested anything"
    _is_well(server)


def _is_well(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        until(lambda: client.get("/slots").json()["requests"] == [], 20)
        slots = client.get("/slots").json()
        assert slots["free"] == slots["slots"]
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
