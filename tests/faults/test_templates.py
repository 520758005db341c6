"""Histories and roles as clients send them, through the family's template over HTTP (B109, B110): never a 500."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.whole import CHAT, ask, live, picture, same_part, turn

pytestmark = pytest.mark.trio

ARGUMENTS: list[tuple[Any, Any, int]] = [
    ('{"a": 1, "b": [true, null], "c": {"d": "é"}}', {"a": 1, "b": [True, None], "c": {"d": "é"}}, 200),
    ("{}", {}, 200),
    ("", {}, 200),
    (None, {}, 200),
    ('{"a": "\\u00e9 \\ud83d\\ude00 \\"x\\""}', {"a": 'é 😀 "x"'}, 200),
    (' {"z": 1, "a": 2} ', {"z": 1, "a": 2}, 200),
    ("{", None, 400),
    ("[1]", None, 400),
    ("null", None, 400),
    ('"x"', None, 400),
    ('{"a": NaN}', None, 400),
    ("{'a': 1}", None, 400),
    ('{"a": "\\ud800"}', None, 400),
    ("[" * 5000, None, 400),
    ('{"a":' * 200 + "1" + "}" * 200, None, 400),
    (5, None, 400),
    ([1], None, 400),
]


def history(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        turn("call it"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]


@pytest.mark.parametrize(("given", "plain", "status"), ARGUMENTS, ids=lambda value: str(value)[:30])
async def test_b109_arguments_as_text_render_as_the_object_does(given: Any, plain: Any, status: int) -> None:
    async with live() as server:
        response = await server.post(ask() | {"messages": history(given)})
        assert response.status_code == status, response.text
        if status == 400:
            assert response.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
            return
        (answer,) = await server.all([ask() | {"messages": history(plain)}])
        assert same_part(response.json()) == answer
        (other,) = await server.all([ask() | {"messages": history({"other": 7})}])
        assert answer["usage"] != other["usage"], "the trap: arguments are in the prompt"
        assert (await server.post(ask("Hi", max_tokens=1))).status_code == 200


SYSTEM, DEVELOPER = ({"role": role, "content": "Be brief."} for role in ("system", "developer"))
USER, EMPTY = turn("Hi"), {"role": "assistant", "content": None}

ORDERS: list[tuple[str, list[Any], int, str | None]] = [
    ("system", [SYSTEM, USER], 200, None),
    ("developer", [DEVELOPER, USER], 200, None),
    ("late system", [USER, SYSTEM, USER], 400, "A system message must come first."),
    ("late developer", [USER, DEVELOPER, USER], 400, "A system message must come first."),
    ("two systems", [SYSTEM, SYSTEM, USER], 400, "A system message must come first."),
    ("system and developer", [SYSTEM, DEVELOPER, USER], 400, "A system message must come first."),
    ("system alone", [SYSTEM], 400, "There is no question of a user."),
    ("assistant alone", [{"role": "assistant", "content": "Hi"}], 400, "There is no question of a user."),
    ("tool alone", [{"role": "tool", "content": "x"}], 400, None),
    ("none", [], 400, "messages"),
    ("unknown role", [{"role": "wizard", "content": "x"}], 400, "messages[0].role"),
    ("no role", [{"content": "x"}], 400, "messages[0].role"),
    ("null content of a user", [{"role": "user", "content": None}], 400, "messages[0].content"),
    ("null content of an assistant", [USER, EMPTY, USER], 200, None),
    ("no content of an assistant", [USER, {"role": "assistant"}, USER], 200, None),
    ("text parts", [turn("a", "b")], 200, None),
    ("no parts", [{"role": "user", "content": []}], 200, None),
    ("tool first", [{"role": "tool", "content": "x"}, USER], 400, None),
    ("tool result of parts", [USER, turn("x", role="tool"), USER], 200, None),
    ("system of parts", [turn("a", "b", role="system"), USER], 200, None),
    (
        "picture of a system",
        [turn(picture(1), role="system"), USER],
        400,
        "A system message cannot hold images.",
    ),
]


@pytest.mark.parametrize(("name", "messages", "status", "reason"), ORDERS, ids=[row[0] for row in ORDERS])
async def test_b110_every_order_of_roles_is_answered_or_a_400_with_its_reason(
    name: str, messages: list[Any], status: int, reason: str | None
) -> None:
    async with live() as server:
        for stream in (False, True):
            body = ask(max_tokens=2) | {"messages": messages, "stream": stream}
            response = await server.client.post(CHAT, json=body)
            assert response.status_code == status, (name, response.text)
            if status == 400:
                error = response.json()["error"]
                assert reason is None or reason in (error["message"], error["param"]), error
        assert (await server.post(ask("Hi", max_tokens=1))).status_code == 200


async def test_b110_mapped_roles_and_joined_parts_are_in_the_prompt() -> None:
    """Arms the 200s above: nothing was dropped to get them."""

    async def prompt(*messages: Any) -> str:
        async with live() as server:
            (answer,) = await server.all([ask(max_tokens=3) | {"messages": list(messages)}])
            return json.dumps(answer)

    assert await prompt(DEVELOPER, USER) == await prompt(SYSTEM, USER) != await prompt(USER)
    assert await prompt(turn("a", "b")) == await prompt(turn("ab")) != await prompt(turn("a"))
    assert await prompt(USER, EMPTY, USER) != await prompt(USER, USER)
