"""What does not fit: prompts and answers against the context, and bodies that no context holds."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from luce.http import json_body
from tests.http.conftest import serving
from tests.http.stubs import make_model
from tests.http.test_bad_requests import PICTURE, URL, check, pictured

pytestmark = pytest.mark.trio


CONTEXT = 64


@pytest.mark.parametrize("prompt", [CONTEXT - 1, CONTEXT, CONTEXT + 1])
@pytest.mark.parametrize("wanted", [0, 1, 2, 10**9, None])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("with_picture", [False, True])
async def test_prompt_and_answer_against_the_context(
    prompt: int, wanted: int | None, name: str, with_picture: bool
) -> None:
    """The table: an answer of up to the rest of the context, or 400 with the numbers. Nothing is cut."""
    if with_picture:
        content: Any = pictured(PICTURE)["messages"][0]["content"] + [
            {"type": "text", "text": "x" * (prompt - 4)}
        ]
    else:
        content = "x" * prompt
    body = {"messages": [{"role": "user", "content": content}], name: wanted}
    async with serving() as server:
        if wanted == 0:
            error = await check(server, json.dumps(body).encode(), name)
            assert "at least 1" in error["message"]
        elif prompt >= CONTEXT:
            error = await check(server, json.dumps(body).encode(), "messages")
            assert error["code"] == "context_length_exceeded"
            assert str(prompt) in error["message"]
            assert "64" in error["message"]
            # by these words litellm, langchain and agents know what to do about it
            assert "prompt is too long" in error["message"]
            assert "this model's maximum context length is" in error["message"]
        elif wanted is None or wanted == 1:
            async with server.http() as client:
                response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200
            assert server.service.submissions[0].params.max_tokens == 1
        else:
            error = await check(server, json.dumps(body).encode(), name)
            assert error["code"] == "context_length_exceeded"
            for number in (wanted, prompt, CONTEXT, 1):
                assert str(number) in error["message"]
            assert "this model's maximum context length is" in error["message"]


USER = {"role": "user", "content": "Hi"}
CALL = {
    "type": "function",
    "id": "1",
    "function": {"name": "f", "arguments": json.dumps({"a": "x" * 200_000})},
}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


HEAVY: dict[str, dict[str, Any]] = {
    "assistant text": {"messages": [USER, {"role": "assistant", "content": "a " * 200_000}, USER]},
    "arguments": {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]},
    "a tool": {"messages": [USER], "tools": [tool("f", "d" * 200_000)]},
    "many tools": {"messages": [USER], "tools": [tool(f"f{number}") for number in range(5_000)]},
}


@pytest.mark.parametrize("name", HEAVY)
async def test_text_that_no_context_holds_is_refused_before_it_is_worked_on(name: str) -> None:
    """One such body would otherwise hold a worker for minutes."""
    async with serving() as server:
        error = await check(server, json.dumps(HEAVY[name]).encode(), "messages")
        assert "characters of text" in error["message"] and error["code"] == "context_length_exceeded"


BEFORE_PARSING: dict[str, tuple[str, bytes]] = {
    "lists": ("over 100064 values", b'{"a": [' + b"[]," * 101_000 + b"1]}"),
    "objects": ("over 100064 values", b'{"a": [' + b'{"b":1},' * 51_000 + b"1]}"),
    "numbers": ("over 100064 values", b"[" + b"1," * 101_000 + b"1]"),
    "names": ("over 100064 values", b"{" + b'"":1,' * 101_000 + b"}"),
    "brackets": ("over 100064 values", b"[" * 8_000_000),
    "strings without anything between": ("over 100064 values", b'""' * 300_000),
    "text": ("bytes beside its pictures", b'{"a": "' + b"x" * 8_000_000 + b'"}'),
    "escapes": ("bytes beside its pictures", b'{"a": "' + b"\\u4e00" * 1_300_000 + b'"}'),
    "quotes": ("bytes beside its pictures", b'{"a": "' + b'\\"' * 4_000_000 + b'"}'),
    "a picture with quotes": ("bytes beside its pictures", b'{"a": "data:\\"' + b"x" * 8_000_000 + b'"}'),
    "a string without an end": ("bytes beside its pictures", b'{"a": "' + b"x" * 8_000_000),
    "blanks": ("bytes beside its pictures", b"{" + b" " * 8_000_000 + b"}"),
    "digits": ("bytes beside its pictures", b'{"a": 1.' + b"1" * 8_000_000 + b"}"),
    "long numbers": ("over 309 digits", b'{"a": [' + b"9" * 4300 + b"]}" + b" " * (1 << 20)),
}


@pytest.mark.parametrize("name", BEFORE_PARSING)
async def test_hostile_bodies_are_refused_before_they_are_parsed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser holds the interpreter's lock: while it works no stream goes on."""
    said, body = BEFORE_PARSING[name]
    parsed: list[Any] = []
    real = msgspec.json.decode

    def decode(data: Any) -> Any:
        parsed.append(data)
        return real(data)

    monkeypatch.setattr(json_body.msgspec.json, "decode", decode)
    async with serving() as server:
        assert said in (await check(server, body, None))["message"]
    assert [len(data) < 1000 for data in parsed] == [True], "the request that follows, and nothing else"


async def test_text_is_not_counted_as_values_and_pictures_not_as_text() -> None:
    commas = {"messages": [USER | {"content": "," * 18_000}]}
    spaced = {"messages": [USER], "metadata": "[{," * 60_000}
    large = pictured("data:image/bmp;base64," + base64.b64encode(b"BM" + bytes(3_000_000)).decode())
    async with serving() as server:
        error = await check(server, json.dumps(commas).encode(), "messages")
        assert "at least" in error["message"]  # the context's refusal, after parsing
        async with server.http() as client:
            assert (await client.post("/v1/chat/completions", json=spaced)).status_code == 200
        for form in (
            large,
            {"messages": json.loads(json.dumps(large["messages"]).replace("data:", " Data:"))},
        ):
            error = await check(server, json.dumps(form).encode(), URL)
            assert "not a picture" in error["message"]  # the decoder's refusal


async def test_hopelessly_long_text_is_not_tokenized() -> None:
    model = make_model()
    model.preparer.build = lambda *args, **kwargs: pytest.fail("it was built")  # type: ignore[method-assign]
    async with serving(model=model) as server, server.http() as client:
        # a token is one byte, normalisation may make one of three
        for text in ("x" * 192, "é" * 96):
            response = await client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]}
            )
            assert response.status_code == 400
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
            assert "at least 64 tokens" in error["message"]
    async with serving() as server, server.http() as client:
        for text in (" " * 10_000, "\n" * 10_000 + "Hi"):
            response = await client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]}
            )
            assert "at least 64" not in response.text
