"""What browsers are told about pages of other origins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import serving
from tests.http.test_connections import HI

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example.org"
ALLOW = "access-control-allow-origin"


def preflight(
    origin: str = PAGE, names: str = "authorization, content-type, x-stainless-os"
) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": names,
    }


def told(response: Any) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


async def test_by_default_no_page_is_told_anything() -> None:
    async with serving() as server, server.http() as client:
        assert not told(await client.options(CHAT, headers=preflight()))
        response = await client.post(CHAT, json={"messages": HI}, headers={"origin": PAGE})
        assert response.status_code == 200
        assert not told(response)


@pytest.mark.parametrize("origins", [(PAGE, "http://localhost:3000"), ("*",)])
async def test_a_named_page_may_ask_and_read(origins: tuple[str, ...]) -> None:
    said = PAGE if len(origins) > 1 else "*"
    async with serving(cors_origins=origins, api_keys=("k" * 8,)) as server, server.http() as client:
        asked = await client.options(CHAT, headers=preflight())  # without a key, as browsers do
        assert asked.status_code == 204
        assert not {"content-length", "content-type", "transfer-encoding"} & {*asked.headers}
        assert asked.headers[ALLOW] == said
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
        headers = {"origin": PAGE, "x-api-key": "k" * 8}
        answers = [
            await client.post(CHAT, json={"messages": HI}, headers=headers),
            await client.post(CHAT, json={"messages": HI, "stream": True}, headers=headers),
            await client.post(CHAT, json={"messages": 3}, headers=headers),
            await client.get("/nowhere", headers=headers),
            await client.post(CHAT, json={"messages": HI}, headers={"origin": PAGE}),
        ]
    assert [one.status_code for one in answers] == [200, 200, 400, 404, 401]
    for one in (asked, *answers):
        assert one.headers[ALLOW] == said
        assert "access-control-allow-credentials" not in one.headers
        assert ("origin" in one.headers.get("vary", "").lower()) == (said != "*")
    assert "x-request-id" in answers[0].headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example.org", "null", "http://chat.example.org", PAGE + ":8443", PAGE + ".evil.org", ""],
)
async def test_other_pages_may_not(origin: str) -> None:
    async with serving(cors_origins=(PAGE,)) as server, server.http() as client:
        asked = await client.options(CHAT, headers=preflight(origin))
        answer = await client.get("/v1/models", headers={"origin": origin})
    assert asked.status_code == 403
    assert "--cors-origin" in asked.json()["error"]["message"]
    assert answer.status_code == 200
    for one in (asked, answer):
        assert not told(one)
        assert "origin" in one.headers["vary"].lower(), "or a cache gives it to the page that may"


@pytest.mark.parametrize("names", ["a b", "x" * 3000, "a,,b", "é"])
async def test_header_names_that_are_none_are_not_repeated(names: str) -> None:
    async with serving(cors_origins=("*",)) as server, server.http() as client:
        headers = [(key.encode(), value.encode()) for key, value in preflight(names=names).items()]
        asked = await client.options(CHAT, headers=headers)
    assert asked.status_code == 204
    assert "access-control-allow-headers" not in asked.headers


async def test_options_of_no_browser_says_the_methods() -> None:
    async with serving(cors_origins=("*",)) as server, server.http() as client:
        response = await client.options(CHAT)
    assert response.status_code == 200
    assert "POST" in response.headers["allow"]
