"""POST /tokenize, /detokenize and /apply-template in vLLM's form and in llama.cpp's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import serving
from tests.http.stubs import CONTEXT, END_ID, NUM_IDS, StubPreparer, StubService, make_model

pytestmark = pytest.mark.trio


async def post(server: Any, path: str, body: Any) -> Any:
    async with server.http() as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("field", ["prompt", "content"])
@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        ("ab<end>", {}, [97, 98, END_ID]),
        ("ab<end>", {"parse_special": True, "add_special_tokens": False}, [97, 98, END_ID]),
        ("<end>", {"parse_special": False, "add_special": True}, [*b"<end>"]),
        ("", {"model": "stub"}, []),
        ("x" * 200, {}, [120] * 200),  # longer than the context: to know how much is to be cut
    ],
)
async def test_tokens_of_a_text(prefix: str, field: str, text: str, options: Any, tokens: list[int]) -> None:
    async with serving() as server:
        response = await post(server, f"{prefix}/tokenize", {field: text} | options)
        assert response.json() == {"count": len(tokens), "max_model_len": CONTEXT, "tokens": tokens}
        assert not server.service.submissions


async def test_texts_of_tokens() -> None:
    async with serving() as server:
        response = await post(server, "/tokenize", {"prompt": "aé", "return_token_strs": True})
    assert response.json()["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]


async def test_tokens_of_messages(picture: str) -> None:
    preparer = StubPreparer()
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "ab"}]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with serving(model=make_model(preparer=preparer)) as server:
        response = await post(server, "/tokenize", body)
        assert response.json()["tokens"] == [*b"####ab"]
        body |= {
            "add_generation_prompt": False,
            "tools": tools,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        response = await post(server, "/tokenize", body)
        assert response.json()["tokens"] == [*b"####ab."]
    assert preparer.seen[-1]["tools"] == tools
    assert preparer.seen[-1]["template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_text_of_tokens(prefix: str) -> None:
    async with serving() as server:
        response = await post(server, f"{prefix}/detokenize", {"tokens": [97, END_ID, *"é".encode(), 0xFF]})
        assert response.json() == {"prompt": "a<end>é�", "content": "a<end>é�"}
        assert (await post(server, "/detokenize", {"tokens": []})).json()["prompt"] == ""


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_the_template_applied(prefix: str, user: Any) -> None:
    async with serving() as server:
        response = await post(server, f"{prefix}/apply-template", {"messages": user})
        assert response.json() == {"prompt": "Hi"}
        body = {"messages": user, "add_generation_prompt": False, "tools": None}
        assert (await post(server, "/apply-template", body)).json() == {"prompt": "Hi."}


USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": None}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "content"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"content": "a", "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "model": "gpt-9"}, "model"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1.0]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, NUM_IDS]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": "a"}, "messages"),
        ("/apply-template", {"messages": USER, "chat_template": "x"}, "chat_template"),
        ("/apply-template", {"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_bad_requests(path: str, body: Any, param: str) -> None:
    async with serving() as server:
        response = await post(server, path, body)
        assert response.status_code == (404 if param == "model" else 400), response.text
        assert response.json()["error"]["param"] == param, response.text


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
async def test_not_while_the_server_stops(path: str) -> None:
    service = StubService()
    service.state = "draining"
    async with serving(service) as server:
        assert (await post(server, path, {})).status_code == 503


async def test_as_many_ids_as_a_context_holds() -> None:
    """A body is looked at before it is parsed; that must not refuse what could be served."""
    model = make_model()
    async with serving(model=model) as server:
        many = 100_000 + CONTEXT - 10
        response = await post(server, "/detokenize", {"tokens": [97] * many})
        assert len(response.json()["prompt"]) == many
        response = await post(server, "/detokenize", {"tokens": [97] * (many + 20)})
        assert response.status_code == 400
