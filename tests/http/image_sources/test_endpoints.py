"""Pictures from elsewhere through every endpoint that takes pictures, each with its own names and errors."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from luce.http.image_sources.hosts import HostRule
from luce.http.image_sources.options import ImageSourceOptions
from tests.http.conftest import serving
from tests.http.image_sources.picture_host import PICTURE, answer, hosting

pytestmark = pytest.mark.trio

DATA = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"


def chat(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


def messages(url: str) -> dict[str, Any]:
    picture = {"type": "image", "source": {"type": "url", "url": url}}
    return {"max_tokens": 5, "messages": [{"role": "user", "content": [picture]}]}


def count(url: str) -> dict[str, Any]:
    return {"messages": messages(url)["messages"]}


def responses(url: str) -> dict[str, Any]:
    return {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
    }


ENDPOINTS = [
    ("/v1/chat/completions", chat, "messages[0].content[0].image_url.url"),
    ("/v1/messages", messages, "messages[0].content[0].source.url"),
    ("/v1/messages/count_tokens", count, "messages[0].content[0].source.url"),
    ("/v1/responses", responses, "input[0].content[0].image_url"),
    ("/tokenize", chat, "messages[0].content[0].image_url.url"),
]


@pytest.mark.parametrize(("path", "body", "field"), ENDPOINTS, ids=[path for path, *_ in ENDPOINTS])
async def test_pictures_from_a_host(path: str, body: Callable[[str], dict[str, Any]], field: str) -> None:
    async with hosting({"/a": answer()}) as host:
        options = ImageSourceOptions(hosts=(HostRule("127.0.0.1", host.port),), private=True)
        async with serving(image_sources=options) as server, server.http() as client:
            given = await client.post(path, json=body(DATA))
            fetched = await client.post(path, json=body(f"{host.url}/a"))
            assert given.status_code == fetched.status_code == 200, fetched.text
            assert len(host.asked) == 1 and server.bodies.held == 0
            for url, said in (
                ("http://evil.test/a", "fetches nothing from evil.test"),
                (f"{host.url}/b", "status 404"),
            ):
                response = await client.post(path, json=body(url))
                message = response.json()["error"]["message"]
                assert response.status_code == 400 and message.startswith(f"{field}: ") and said in message
        async with serving() as server, server.http() as client:
            response = await client.post(path, json=body(f"{host.url}/a"))
            assert (
                response.status_code == 400 and "fetches no pictures" in response.json()["error"]["message"]
            )
        assert len(host.asked) == 2
