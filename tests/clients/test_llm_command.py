"""The `llm` command line: a person's way to a server, with nothing but a model's entry in a file of settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.facts import KEY
from tests.clients.install import require
from tests.clients.scripts import environment
from tests.e2e.server import ServerProcess

pytestmark = pytest.mark.timeout(400)

SETTINGS = """
- model_id: luce
  model_name: luce-demo
  api_base: {url}/v1
  api_key_name: luce
  vision: true
  supports_tools: true
  supports_schema: true
"""
Llm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def told(known: Path) -> dict[str, Any]:
    return json.loads(known.read_text())


@pytest.fixture
def llm(server: ServerProcess, tmp_path: Path) -> Iterator[Llm]:
    program = require("sdk").directory / "bin/llm"
    (tmp_path / "extra-openai-models.yaml").write_text(SETTINGS.format(url=server.url))
    (tmp_path / "keys.json").write_text(json.dumps({"luce": KEY}))

    def run(*arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment(LLM_USER_PATH=str(tmp_path)),
        )
        assert bool(done.returncode) is fails, done
        return done

    return run


GREEDY = ("-m", "luce", "-o", "temperature", "0")


def test_lists_the_model(llm: Llm) -> None:
    assert "luce" in llm("models").stdout


@pytest.mark.parametrize("stream", [True, False])
def test_answers(llm: Llm, told: dict[str, Any], stream: bool) -> None:
    done = llm(*GREEDY, *(() if stream else ("--no-stream",)), "--usage", told["count"]["question"])
    assert done.stdout.strip() == told["count"]["answer"]
    # the usage of a stream comes in a chunk of its own, which it asks for
    assert "Token usage: 23 input, 92 output" in done.stderr


def test_attaches_a_picture_and_goes_on(llm: Llm, told: dict[str, Any]) -> None:
    chart = told["chart"]
    assert llm(*GREEDY, "-a", chart["file"], chart["question"]).stdout.strip() == chart["answer"]
    assert llm("-c", "-o", "temperature", "0", "What is the title?").stdout.strip() == chart["title"]


def test_runs_a_function(llm: Llm, told: dict[str, Any], tmp_path: Path) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text(
        'def multiply(a: int, b: int) -> int:\n    "Product of two numbers"\n    return a * b\n'
    )
    done = llm(*GREEDY, "--functions", str(functions), "--tools-debug", told["product"]["question"])
    assert done.stdout.strip() == told["product"]["answer"]
    assert "multiply({'a': 12, 'b': 34})" in done.stderr


def test_prints_what_is_wrong(llm: Llm, told: dict[str, Any]) -> None:
    done = llm(*GREEDY, told["too_long"], fails=True)
    assert "prompt is too long: the prompt has 6015 tokens" in done.stderr
    done = llm(*GREEDY, "--key", "wrong", "Hello!", fails=True)
    assert "401" in done.stderr


def test_holds_an_answer_to_a_schema(llm: Llm, told: dict[str, Any]) -> None:
    done = llm(*GREEDY, "--schema", "name, age int", told["record"]["question"])
    assert json.loads(done.stdout) == told["record"]["value"]
