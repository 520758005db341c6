"""What it takes to read a request, in calls of Python functions: the same on every machine, however busy it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from luce.engines.fake.engine import FakeEngine
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.http.anthropic.prepare import prepare_messages
from luce.http.openai.prepare import prepare_chat
from luce.http.openai.prepare_completion import prepare_completion
from luce.http.openai.responses.prepare import prepare_response
from luce.http.options import HttpOptions
from tests.actors.harness import ByteTokenizer
from tests.http.fake_model import FakePreparer

MOST = 500
"""Of about 240. Evaluating a type's annotations for every request took 1,000 more in two of them."""

MODEL = LoadedModel(
    name="fake",
    engine=FakeEngine(),
    tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
    preparer=FakePreparer(),
    eos_token_ids=(),
    defaults=GenerationDefaults(),
    created=0,
)
CHAT = {"messages": [{"role": "user", "content": "x" * 1000}], "max_tokens": 1}

TOOLS = [
    {
        "type": "function",
        "function": {"name": f"tool{i}", "parameters": {"properties": {"a": {"type": "string"}}}},
    }
    for i in range(8)
]


@pytest.mark.parametrize(
    ("prepare", "body"),
    [
        (prepare_chat, CHAT),
        (prepare_chat, {**CHAT, "tools": TOOLS}),
        (prepare_messages, {**CHAT, "model": "fake"}),
        (prepare_completion, {"prompt": "x" * 1000, "max_tokens": 1}),
        (prepare_response, {"input": "x" * 1000}),
    ],
    ids=["chat", "tools", "messages", "completions", "responses"],
)
def test_what_is_fixed_is_not_worked_out_for_every_request(
    prepare: Callable[..., Any], body: dict[str, Any]
) -> None:
    model, options = MODEL, HttpOptions()
    data = bytearray(json.dumps(body).encode())
    prepare(data, model, options)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        prepare(data, model, options)
    finally:
        sys.setprofile(before)
    assert 50 < calls < MOST, calls
