"""Reported faults in answers that are held to a form: B105, B106, B108."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from luce.constraints.wish import ConstraintWish, TextForm, TextKind
from tests.constraints.models import constrainer, opened, text_of, written
from tests.faults.whole import ENGINES, ask, live

pytestmark = pytest.mark.trio

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "on": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["colour", "on", "sizes"],
    "additionalProperties": False,
}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def form(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


# -- B105: blanks between the parts of JSON ---------------------------------------------------------------------------


def blanks(server: Any) -> dict[str, float]:
    """+50 on every token that is nothing but blanks."""
    tokenizer = server.model.tokenizer
    found = [
        i
        for i in range(tokenizer.num_token_ids)
        if tokenizer.token_bytes(i) and not tokenizer.token_bytes(i).strip()
    ]
    assert {b"\n", b" "} <= {tokenizer.token_bytes(i) for i in found}
    return {str(i): 50.0 for i in found}


@pytest.mark.parametrize("engine", ENGINES)
async def test_b105_a_model_that_wants_blanks_finishes(engine: str) -> None:
    async with live(engine=engine) as server:
        wanted = {"logit_bias": blanks(server), "max_tokens": 300, "ignore_eos": False, **NO_THINKING}
        free = (await server.post(ask("A point.", **wanted))).json()["choices"][0]
        if engine == "qwen35":  # the fake one draws by hash, whatever the bias
            assert free["finish_reason"] == "length" and not free["message"]["content"].strip(), "the trap"
        body = ask("A point.", response_format=form(POINT), **wanted)
        answer = (await server.post(body)).json()
    choice, text = answer["choices"][0], answer["choices"][0]["message"]["content"]
    assert choice["finish_reason"] == "stop"
    Draft202012Validator(POINT).validate(json.loads(text))
    assert answer["usage"]["completion_tokens"] < 300
    gaps = re.findall(r"\s+", re.sub(r'"[^"]*"', '""', text))
    assert all(re.fullmatch(r" |\n {0,16}", gap) for gap in gaps)
    if engine == "qwen35":
        assert len(gaps) > 5, "the trap: it did want them"


# -- B106: reasoning is free, the answer is held ----------------------------------------------------------------------


def scripted_close(server: Any, thought: str) -> Any:
    """The model closes its thought by itself after this text."""
    ids = [*server.model.tokenizer.encode_text(thought), server.model.tokenizer.special_ids["</think>"]]
    return lambda spec, index: ids[index] if index < len(ids) else None


# Random weights close no thought by themselves; the fake engine can be told to.
@pytest.mark.parametrize(
    ("engine", "thinking"),
    [*((engine, thinking) for engine in ENGINES for thinking in ("off", "budget")), ("fake", "own close")],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_b106_the_answer_is_json_and_the_thought_is_not(
    engine: str, stream: bool, depth: int, kind: str, thinking: str
) -> None:
    wanted = {"type": "json_object", "schema": POINT} if kind == "json_object" else form(POINT)
    thought = "so: {1, [2"
    body = ask("A point.", response_format=wanted, max_tokens=300, ignore_eos=False, reasoning_format="auto")
    if thinking == "off":
        body |= NO_THINKING
    elif thinking == "budget":
        body |= {"thinking_token_budget": 12}
    async with live(engine=engine, depth=depth) as server:
        if thinking == "own close":
            server.model.engine._model._script = scripted_close(server, thought)  # type: ignore[attr-defined]
        reasoning, content, finish = await _parts(server, body, stream)
    assert finish == "stop"
    Draft202012Validator(POINT).validate(json.loads(content))
    assert content == content.strip()
    if thinking == "off":
        assert reasoning == ""
    else:
        assert reasoning and "</think>" not in reasoning + content
        with pytest.raises(json.JSONDecodeError):
            json.loads(reasoning)
    if thinking == "own close":
        assert reasoning == thought, "the trap: brackets in a thought hold nothing up"


async def _parts(server: Any, body: dict[str, Any], stream: bool) -> tuple[str, str, str]:
    if not stream:
        choice = (await server.post(body)).json()["choices"][0]
        message = choice["message"]
        return message.get("reasoning_content") or "", message["content"], choice["finish_reason"]
    *events, done = await server.events(body)
    assert done == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    reasoning = "".join(choice["delta"].get("reasoning_content") or "" for choice in choices)
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    return reasoning, content, choices[-1]["finish_reason"]


# -- B108: references mean what they refer to -------------------------------------------------------------------------

COLOURS = {"enum": ["red", "green", "blue"]}
TREE = {
    "type": "object",
    "properties": {
        "v": {"enum": [1, 2]},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
    "required": ["v", "kids"],
    "additionalProperties": False,
}


def obj(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an enum behind a reference": (
        obj(c=COLOURS),
        obj(c={"$ref": "#/$defs/colour"}) | {"$defs": {"colour": COLOURS}},
    ),
    "a reference into the items of an array": (
        obj(a={"type": "array", "items": COLOURS, "maxItems": 2}, b=COLOURS),
        obj(a={"type": "array", "items": COLOURS, "maxItems": 2}, b={"$ref": "#/properties/a/items"}),
    ),
    "a reference into a list": (
        obj(a={"anyOf": [COLOURS, {"type": "null"}]}, b={"type": "null"}),
        obj(a={"anyOf": [COLOURS, {"type": "null"}]}, b={"$ref": "#/properties/a/anyOf/1"}),
    ),
    "anyOf enums": (
        obj(c={"enum": ["red", "green", "blue", "up", "down"]}),
        obj(c={"anyOf": [COLOURS, {"$ref": "#/$defs/way"}]}) | {"$defs": {"way": {"enum": ["up", "down"]}}},
    ),
    "references behind references": (
        obj(c=COLOURS),
        obj(c={"$ref": "#/$defs/a"})
        | {"$defs": {"a": {"$ref": "#/definitions/b"}}, "definitions": {"b": COLOURS}},
    ),
    "a tree": (
        TREE | {"$defs": {"tree": TREE}},
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    ),
}


def samples(schema: Mapping[str, Any], count: int) -> list[Any]:
    """What a model with random weights writes, as values."""
    found = []
    for seed in range(count):
        wish = ConstraintWish(text=TextForm(TextKind.JSON_SCHEMA, schema))
        constraint = constrainer().constraint(wish, thinking=False)
        assert constraint is not None
        ids = written(constraint, random.Random(seed), most=3000, steer=0.7)
        assert constraint.complete, text_of(ids)
        found.append(
            json.loads(text_of([index for index in ids if index not in opened().config.eos_token_ids]))
        )
    return found


@pytest.mark.parametrize("name", PAIRS)
async def test_b108_references_hold_like_what_they_refer_to(name: str) -> None:
    inline, referring = PAIRS[name]
    seen: list[set[str]] = []
    for schema in (inline, referring):
        validators = [Draft202012Validator(one) for one in (inline, referring)]
        values = samples(schema, 200)
        for value in values:
            for validator in validators:
                validator.validate(value)
        seen.append({json.dumps(value, sort_keys=True) for value in values})
    assert all(len(found) > 2 for found in seen), "the trap: there is something to choose"
    if name != "a tree":
        assert seen[0] == seen[1], "one allows what the other does not"
    else:
        depth = max(text.count("kids") for found in seen for text in found)
        assert depth > 3, "the trap: trees in trees"


@pytest.mark.parametrize("engine", ENGINES)
async def test_b108_through_the_server(engine: str) -> None:
    _, referring = PAIRS["anyOf enums"]
    async with live(engine=engine) as server:
        for seed in range(8):
            body = ask(
                "A way.",
                response_format=form(referring),
                temperature=2.0,
                seed=seed,
                ignore_eos=False,
                max_tokens=60,
                **NO_THINKING,
            )
            answer = (await server.post(body)).json()["choices"][0]
            assert answer["finish_reason"] == "stop"
            Draft202012Validator(referring).validate(json.loads(answer["message"]["content"]))
