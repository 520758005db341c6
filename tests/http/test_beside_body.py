"""What requests say beside their bodies: HTTP versions, upgrades, expectations, character sets, query parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import quoted
from tests.http.conftest import Server, serving
from tests.http.test_connections import HI, read_to_end, read_until, request

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
CLOSE = "Connection: close\r\n"


async def refusal(
    server: Server, path: str, headers: dict[str, str] | None = None, method: str = "POST"
) -> Any:
    async with server.http() as client:
        content = json.dumps({"messages": HI}).encode() if method == "POST" else None
        given = {"content-type": "application/json"} | (headers or {})
        raw = {name.encode(): value.encode("latin1") for name, value in given.items()}
        response = await client.request(method, path, content=content, headers=raw)
    assert response.headers["content-type"] == "application/json"
    assert not server.service.submissions, "it was taken"
    return response.status_code, response.json()["error"]


# -- HTTP versions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opening",
    [
        b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/0.9\r\n\r\n",
    ],
    ids=["2.0", "0.9"],
)
async def test_other_versions_of_http_are_refused_and_the_connection_ends(opening: bytes) -> None:
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(opening)
        data = await read_to_end(connection)
    assert data.startswith(b"HTTP/1.1 505 ")
    assert b"HTTP/1.0, HTTP/1.1 and HTTP/2 are served" in data


H2C = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13\r\n"
)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/nope", 404)])
async def test_offers_to_upgrade_are_passed_over(offer: str, path: str, status: int) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\n{offer}\r\n"
    async with serving() as server, await server.connect() as connection:
        for _ in range(2):  # and the connection is used again
            await connection.send_all(head.encode())
            assert (await read_until(connection, b"}")).startswith(f"HTTP/1.1 {status} ".encode())


# -- Expect -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
async def test_expect_100_continue_is_met_before_the_body_is_sent(value: str) -> None:
    head, _, body = request({"messages": HI}, headers=f"Expect: {value}\r\n{CLOSE}").partition(b"\r\n\r\n")
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(head + b"\r\n\r\n")
        assert (await read_until(connection, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await connection.send_all(body)
        answer = await read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ") and b'"chat.completion"' in answer


@pytest.mark.parametrize("value", ["200-ok", "100-continue, 200-ok", "", "x" * 5000])
async def test_other_expectations_are_417(value: str) -> None:
    async with serving() as server:
        status, error = await refusal(server, CHAT, {"expect": value})
    assert (status, error["param"]) == (417, "expect")
    assert "only 100-continue is" in error["message"] and len(error["message"]) < 300


# -- charset ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "application/json; charset=utf-16",
        "application/json;charset=ISO-8859-1",
        'application/json; Charset="UTF-16LE"',
        "application/json; charset=",
        "application/json; charset=\x80\x85",
        "application/json; charset=" + "x" * 5000,
    ],
    ids=lambda value: value[17:50],
)
async def test_other_character_sets_are_415_by_name(kind: str) -> None:
    async with serving() as server:
        status, error = await refusal(server, CHAT, {"content-type": kind})
    assert (status, error["param"]) == (415, "content-type")
    assert "charset" in error["message"] and "UTF-8" in error["message"]
    assert error["message"].isprintable() and len(error["message"]) < 300


@pytest.mark.parametrize(
    "kind",
    [
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; charset=utf8",
        "application/problem+json",
    ],
)
async def test_utf_8_is_taken(kind: str) -> None:
    async with serving() as server, server.http() as client:
        body = json.dumps({"messages": HI}).encode()
        response = await client.post(CHAT, content=body, headers={"content-type": kind})
    assert response.status_code == 200, response.text


# -- the query ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "param", "message"),
    [
        (
            "POST",
            f"{CHAT}?stream=true",
            "stream",
            f"stream is not a query parameter of {CHAT}, which takes none; what is asked for goes into the body",
        ),
        ("POST", f"{CHAT}?a=1&stream=true", "a", None),
        ("POST", f"{CHAT}?stream", "stream", None),
        ("POST", f"{CHAT}?=x", "", None),
        ("POST", f"{CHAT}?%1b[31m=x", "\\x1b[31m", None),
        ("POST", f"{CHAT}?{'x' * 3000}=1", quoted("x" * 3000)[1:-1], None),
        (
            "GET",
            "/v1/models?limit=2",
            "limit",
            "limit is not a query parameter of /v1/models, which takes none",
        ),
        ("GET", "/v1/models/stub?x=1", "x", None),
        ("GET", "/health?x=1", "x", None),
    ],
)
async def test_query_parameters_are_refused_by_name(
    method: str, path: str, param: str, message: str | None
) -> None:
    async with serving() as server:
        status, error = await refusal(server, path, method=method)
    assert (status, error["param"], error["code"]) == (400, param, "unknown_parameter")
    assert error["message"] == message if message else len(error["message"]) < 300


async def test_an_address_that_is_not_there_stays_404_with_a_query() -> None:
    async with serving() as server:
        assert (await refusal(server, "/nope?x=1", method="GET"))[0] == 404


async def test_an_empty_query_is_none() -> None:
    async with serving() as server, server.http() as client:
        assert (await client.post(f"{CHAT}?", json={"messages": HI})).status_code == 200


async def test_a_query_parameter_that_is_given_twice_is_refused() -> None:
    """As names within a body are: one of them would be ignored."""
    async with serving() as server:
        status, error = await refusal(server, "/v1/messages?beta=true&beta=false")
    assert (status, error["message"]) == (400, "beta is given twice")
