"""Bodies of the Messages and the Responses API with anything in any place: prepared or refused by name, never a bug."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.errors import RequestError
from luce.http.anthropic.prepare import count_messages, prepare_messages
from luce.http.openai.responses.prepare import prepare_response
from luce.http.options import HttpOptions
from tests.faults.test_dialects import in_messages, in_responses
from tests.http.stubs import StubEngine, make_model

Prepare = Callable[..., Any]


def _model() -> Any:
    engine = StubEngine()
    object.__setattr__(engine.capabilities, "max_context", 4096)
    return make_model(engine=engine)


MODEL = _model()
MESSAGES = in_messages(True, 9, True) | {
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "stream": True,
    "temperature": 1,
    "top_p": 0.5,
    "top_k": 3,
    "seed": 5,
}
RESPONSES = in_responses(True, 9, True) | {
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "text"}},
    "metadata": {"a": "b"},
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "top_logprobs": 2,
}
CASES: list[tuple[Prepare, dict[str, Any]]] = [
    (prepare_messages, MESSAGES),
    (count_messages, MESSAGES),
    (prepare_response, RESPONSES),
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _put(body: Any, path: tuple[Any, ...], value: Any, drop: bool) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(body)
    inside: Any = found
    for key in path[:-1]:
        inside = inside[key]
    if drop:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return found


words = st.sampled_from(
    [
        "",
        "x",
        "user",
        "assistant",
        "system",
        "text",
        "image",
        "tool_use",
        "function",
        "auto",
        "type",
        "role",
        "\0",
        "é",
    ]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("prepare", "body"), CASES, ids=["messages", "count", "responses"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_anything_anywhere(prepare: Prepare, body: dict[str, Any], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(_places(body))), label="place")
    changed = _put(body, path, data.draw(values, label="value"), data.draw(st.booleans(), label="drop"))
    try:
        prepare(json.dumps(changed).encode(), MODEL, HttpOptions())
    except RequestError as error:
        assert 400 <= error.status < 500
        assert re.fullmatch(r"[^\n]+", error.message), "one line"
        assert error.field is not None and ".function." not in error.field
        assert not error.field.startswith("messages" if body is RESPONSES else "input"), error


@pytest.mark.parametrize(("prepare", "body"), CASES, ids=["messages", "count", "responses"])
def test_the_bodies_are_good(prepare: Prepare, body: dict[str, Any]) -> None:
    prepare(json.dumps(body).encode(), MODEL, HttpOptions())
