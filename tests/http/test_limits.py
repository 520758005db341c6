"""Bounds on heads and connections, and what HTTP/1 leaves open, decided."""

from __future__ import annotations

import json
import logging
import resource
from typing import Any

import pytest
import trio

from luce.http.descriptors import SPARE, room_for
from luce.http.refusals import MAX_FIELDS, MAX_HEAD_BYTES, origin_form
from tests.http.conftest import Server, serving, until
from tests.http.stubs import StubService, silent
from tests.http.test_connections import HI, read_to_end, read_until, request

pytestmark = pytest.mark.trio


async def answer(server: Server, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """Status and body of what comes for these bytes, sent one after the other."""
    async with await server.connect() as connection:
        for piece in pieces:
            await connection.send_all(piece)
            await trio.sleep(0.01)
        data = await read_to_end(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)


def head_of(size: int, extra: str = "") -> bytes:
    """A request whose head has so many bytes."""
    start, end = f"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{extra}X-Fill: ", "\r\n\r\n"
    return (start + "y" * (size - len(start) - len(end)) + end).encode()


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1, 60_000, 200_000])
@pytest.mark.parametrize("cut", ["whole", "halves", "pieces"])
async def test_the_limit_of_heads_is_the_same_however_they_arrive(size: int, cut: str) -> None:
    data = head_of(size)
    step = {"whole": len(data), "halves": len(data) // 2, "pieces": 8000}[cut]
    async with serving() as server:
        status, said = await answer(
            server, *(data[start : start + step] for start in range(0, len(data), step))
        )
    assert status == (200 if size <= MAX_HEAD_BYTES else 431)
    assert status == 200 or str(MAX_HEAD_BYTES) in said["error"]["message"]


@pytest.mark.parametrize(("fields", "status"), [(MAX_FIELDS, 200), (MAX_FIELDS + 1, 431)])
async def test_the_number_of_headers_is_bounded(fields: int, status: int) -> None:
    extra = "".join(f"X-{number}: y\r\n" for number in range(fields - 3))
    async with serving() as server:
        assert (await answer(server, head_of(12_000, extra)))[0] == status


CHUNKED = "Transfer-Encoding: chunked\r\n"
HEAD = "POST /v1/chat/completions HTTP/{}\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "data",
    [
        HEAD.format("1.1") + CHUNKED + "Content-Length: 5\r\n\r\n0\r\n\r\n",
        HEAD.format("1.1") + "Content-Length: 5\r\n" + CHUNKED + "\r\n0\r\n\r\n",
        HEAD.format("1.0") + CHUNKED + "\r\n0\r\n\r\n",
        HEAD.format("1.1") + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD.format("1.1") + "Content-Length: -1\r\n\r\n",
        HEAD.format("1.1") + "X Y: z\r\n\r\n",
        HEAD.format("1.1") + "X-Y : z\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n",
        "nonsense\r\n\r\n",
    ],
)
async def test_requests_that_two_servers_may_read_differently_are_400(data: str) -> None:
    async with serving() as server:
        status, said = await answer(server, data.encode())
        assert status == 400
        assert said["error"]["type"] == "invalid_request_error"
        assert not server.service.submissions


async def test_what_is_wrong_below_the_framework_has_the_shape_of_its_address() -> None:
    async with serving() as server:
        long = head_of(20_000).replace(b"/health", b"/v1/messages")
        status, said = await answer(server, long)
    assert status == 431 and said["type"] == "error" and said["request_id"]


async def test_a_body_that_is_no_chunks_ends_the_request_with_400() -> None:
    async with serving() as server:
        status, _ = await answer(server, (HEAD.format("1.1") + CHUNKED + "\r\nnonsense\r\n").encode())
        assert status == 400
        await until(lambda: server.bodies.held == 0)


@pytest.mark.parametrize("version", ["1.2", "1.9"])
async def test_a_higher_minor_version_is_answered_as_1_1(version: str) -> None:
    """RFC 9110 §2.5."""
    async with serving() as server, await server.connect() as connection:
        for _ in range(2):
            await connection.send_all(request(path="/health", version=version))
            assert (await read_until(connection, b'"ok"}')).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("target", "form"),
    [
        ("/health", "/health"),
        ("http://x/health", "/health"),
        ("HTTPS://x:80/health?a=b", "/health?a=b"),
        ("http://x", "/"),
        ("http://x?a=/b", "/?a=/b"),
        ("*", "*"),
        ("ftp://x/health", "ftp://x/health"),
        ("/a?b=http://c/d", "/a?b=http://c/d"),
    ],
)
async def test_targets_with_scheme_and_host_are_taken(target: str, form: str) -> None:
    assert origin_form(target.encode()) == form.encode()


async def test_absolute_targets_reach_their_address() -> None:
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(request(path="http://elsewhere/health"))
        assert (await read_until(connection, b'"ok"}')).startswith(b"HTTP/1.1 200 ")


# -- connections --------------------------------------------------------------------------------------------------


async def test_connections_are_bounded_and_the_next_one_is_told() -> None:
    service = StubService(silent)
    async with serving(service, max_connections=2) as server:
        held = [await server.connect() for _ in range(2)]
        await held[0].send_all(request({"messages": HI, "stream": True}))
        await read_until(held[0], b'"role":"assistant"')
        for _ in range(3):
            async with server.http() as client:
                response = await client.get("/health")
            assert response.status_code == 503 and response.headers["retry-after"]
            assert "--max-connections" in response.json()["error"]["message"]
        await held[1].aclose()
        async with server.http() as client:
            with trio.fail_after(3):
                while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110
                    await trio.sleep(0.01)
        await held[0].aclose()
        await until(lambda: not service.running)


async def test_refused_clients_that_stay_hold_nothing() -> None:
    """Neither those that send on nor those that read nothing, and not the end either."""
    async with serving(max_connections=1) as server:
        first = await server.connect()
        others = [await server.connect() for _ in range(100)]
        for other in others[:50]:
            await other.send_all(b"x" * 100)
        for other in others:
            try:
                with trio.fail_after(5):
                    while await other.receive_some():
                        pass
            except trio.BrokenResourceError:
                pass
        await first.aclose()
        for other in others:
            await other.aclose()
        async with server.http() as client:
            assert (await client.get("/health")).status_code == 200


async def test_room_for_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda what, new: limits.__setitem__(0, new[0]))
    assert room_for(100) == 100 and limits[0] == 256
    assert room_for(1000) == 1000 and limits[0] == 1000 + SPARE
    assert room_for(10_000) == 4096 - SPARE and limits[0] == 4096
    assert caplog.records[-1].levelno == logging.WARNING
