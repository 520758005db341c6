"""API keys over a real socket: who is let in, what the others get, and that keys stay secret."""

from __future__ import annotations

import logging
from typing import Any

import openai
import pytest

from luce.http.keys import ApiKeys
from luce.http.options import HttpOptions
from tests.http.conftest import serving
from tests.http.test_connections import HI

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
KEYS = ("first-key-of-two", "Second+Key/==")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("form", ["bearer", "lower", "x-api-key", "both"])
async def test_each_key_opens_by_either_header(key: str, form: str) -> None:
    headers = {
        "bearer": {"authorization": f"Bearer {key}"},
        "lower": {"authorization": f"bearer  {key}"},
        "x-api-key": {"x-api-key": key},
        "both": {"authorization": "Bearer of-another-service", "x-api-key": key},
    }[form]
    async with serving(api_keys=KEYS) as server, server.http() as client:
        response = await client.post(CHAT, json={"messages": HI}, headers=headers)
        assert response.status_code == 200
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


WRONG: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer , x"},
    {"authorization": KEYS[0]},
    {"authorization": f"Basic {KEYS[0]}"},
    {"authorization": f"Bearer {KEYS[0]}x"},
    {"authorization": f"Bearer {KEYS[0][:-1]}"},
    {"authorization": f"Bearer {KEYS[0].upper()}"},
    {"authorization": f"Bearer {KEYS[0]} {KEYS[1]}"},
    {"x-api-key": ""},
    {"x-api-key": f"Bearer {KEYS[0]}"},
    {"api-key": KEYS[0]},
]


@pytest.mark.parametrize("headers", WRONG)
async def test_no_key_or_a_wrong_one_is_401(headers: dict[str, str]) -> None:
    async with serving(api_keys=KEYS) as server, server.http() as client:
        response = await client.post(CHAT, json={"messages": HI}, headers=headers)
        assert not server.service.submissions
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert "x-api-key" in error["message"]


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/stub"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/ready?x=/health"),
        ("DELETE", CHAT),
        ("OPTIONS", CHAT),
        ("POST", "/v1/responses"),
    ],
)
async def test_every_address_but_probes_wants_a_key(method: str, path: str) -> None:
    async with serving(api_keys=KEYS) as server, server.http() as client:
        status = (await client.request(method, path)).status_code
        with_key = (await client.request(method, path, headers={"x-api-key": KEYS[1]})).status_code
    if path.startswith("/ready"):
        assert status == 400, "a probe, with a query that it does not take"
    else:
        assert status == 401
    assert with_key != 401


async def test_probes_want_none() -> None:
    async with serving(api_keys=KEYS) as server, server.http() as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.head("/ready")).status_code == 200


async def test_an_open_server_asks_for_none() -> None:
    async with serving() as server, server.http() as client:
        response = await client.get("/v1/models", headers={"authorization": "Bearer anything"})
        assert response.status_code == 200


async def test_a_refused_body_is_not_kept() -> None:
    async with serving(api_keys=KEYS) as server, server.http() as client:
        response = await client.post(CHAT, content=b"x" * 3_000_000, headers={"content-type": "text/plain"})
        assert response.status_code == 401, "before what is wrong with the request"
        assert server.bodies.held == 0


async def test_openai_client_gets_its_own_error() -> None:
    async with serving(api_keys=KEYS) as server:
        async with server.openai() as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
        assert refused.value.code == "invalid_api_key"
        async with server.openai().with_options(api_key=KEYS[0]) as client:
            assert [model.id async for model in client.models.list()] == ["stub"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_anthropic_addresses_answer_in_their_shape(path: str) -> None:
    async with serving(api_keys=KEYS) as server, server.http() as client:
        refused = await client.post(path, json={})
        missing = await client.post(path, json={}, headers={"x-api-key": KEYS[0]})
        other = await client.post("/v1/messages_of_others", json={}, headers={"x-api-key": KEYS[0]})
    assert refused.status_code == 401
    assert "www-authenticate" in refused.headers
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "authentication_error"
    assert "x-api-key" in refused.json()["error"]["message"]
    assert missing.status_code == 400
    assert missing.json()["error"]["type"] == "invalid_request_error"
    assert other.json().keys() == {"error"}


async def test_keys_and_guesses_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guess = "a-guess-at-the-key"
    async with serving(api_keys=KEYS) as server, server.http() as client:
        said = ""
        for key in (KEYS[0], guess):
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                said += (await client.get("/v1/models", headers=headers)).text
    said += "".join(f"{vars(one)} {one.getMessage()}" for one in _ours(caplog.records))
    assert "luce.requests" in said
    for secret in (*KEYS, guess):
        assert secret not in said


def _ours(records: list[logging.LogRecord]) -> list[logging.LogRecord]:
    """Not those of the tests' own client."""
    return [one for one in records if not one.name.startswith(("httpx", "httpcore"))]


async def test_options_do_not_show_them() -> None:
    assert KEYS[0] not in repr(HttpOptions(api_keys=KEYS))


async def test_every_key_is_compared_whatever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return known == given

    monkeypatch.setattr("luce.http.keys.hmac.compare_digest", compare)
    keys = ApiKeys(KEYS)
    assert keys.hold(KEYS[0]) and keys.hold(KEYS[1]) and not keys.hold("k" * 1000)
    assert len(compared) == 6
    assert {len(side) for pair in compared for side in pair} == {32}, "nothing of a key's length"
