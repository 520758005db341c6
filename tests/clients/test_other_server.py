"""`luce replay load` at a server that is not luce: llama.cpp's, on the same bundled model, tower included."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from luce.cli.demo import chat_body
from luce.demo.tasks import make_case
from tests.clients.install import HERE, require
from tests.clients.scripts import environment
from tests.e2e.server import LUCE
from tests.sim.files import DATA
from tools.demo_model.export import SHIPPED

CONTEXT = 1536
"""Tokens of a slot: most requests of ServeGen's client have more in their pictures alone."""
REQUESTS = 9
SLICES = {
    "azure_conversation.csv": 32,
    "azure_code.csv": 32,
    "mooncake_conversation.jsonl": 128,
    "servegen_image_client20.trace.csv": 8,
}
"""What their prompts are divided by."""


@pytest.fixture(scope="module")
def other(model: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    program = [require("llamacpp").python, HERE / "llama_cpp_server.py"]
    files = [SHIPPED / "luce-demo.gguf", SHIPPED / "mmproj-luce-demo.gguf"]
    log = tmp_path_factory.mktemp("llamacpp") / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*program, *files, "--context", str(CONTEXT), "--slots", "4"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
        )
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), log.read_text()[-2000:]
            yield url
        finally:
            process.kill()


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_traces_are_sent_and_both_count_the_same(name: str, other: str, tmp_path: Path) -> None:
    flags = ["--requests", str(REQUESTS), "--lengths", str(SLICES[name]), "--most-tokens", "8", "--rate", "8"]
    report = tmp_path / "r.json"
    done = subprocess.run(
        [*LUCE, "replay", "load", other, str(DATA / name), "--json", str(report), *flags],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert report.is_file(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    requests, whole = found["requests"], found["whole_answers"]
    assert found["arrivals"]["late_seconds"]["count"] == requests["all"] == REQUESTS
    assert requests["finished"] + requests["refused"] == REQUESTS, found["errors"]
    assert requests["finished"] > 0
    assert (requests["refused"] > 0) == (done.returncode == 1) == name.startswith("servegen"), found["errors"]
    if requests["refused"]:
        ((error, count),) = found["errors"].items()
        assert error.startswith("HTTP 400: request (") and "exceeds the available context size" in error
        assert count == requests["refused"]
    assert whole["output_tokens"] == whole["output_tokens_wanted"] > 0
    assert whole["prompt_tokens"] == pytest.approx(whole["prompt_tokens_wanted"], rel=0.25)
    beside = {one["name"]: one for one in found["server"]}
    for quantity in ("prompt tokens, not cached", "output tokens"):
        assert beside[quantity]["clients"] == beside[quantity]["server"] > 0, quantity
    assert beside["time per token, of all"]["server"] > 0


@pytest.mark.parametrize("task", ["describe", "value", "many_which", "count"])
def test_it_answers_as_luce_does(task: str, other: str) -> None:
    """The bundled model's files are what others take them for: weights, tokenizer, template and tower."""
    for number in range(3):
        case = make_case(task, number, test=True)
        body = chat_body(case)
        answer = httpx.post(f"{other}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == case.answer
