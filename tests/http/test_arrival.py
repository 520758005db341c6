"""A request counts from when the system had its head, however late a busy server comes to read it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from luce.actors.submission import Submission
from luce.actors.token_buffer import End
from tests.http.conftest import serving, until
from tests.http.peers import HI, PATH, PROTOCOLS, connect, options_of
from tests.http.stubs import Piece, StubService

pytestmark = pytest.mark.trio

BUSY = 0.2
"""Seconds for which nothing runs here."""
NEAR = 0.1
"""Seconds that a stamp may be off: far less than nothing runs, far more than clocks differ."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_came_while_the_server_was_busy(protocol: str) -> None:
    async with serving(**options_of(protocol)) as server:
        peer = await connect(server, protocol)
        transport: Any = getattr(peer.stream, "transport_stream", peer.stream)
        sent: list[float] = []

        async def send(data: bytes) -> None:
            """The server, in the same thread, cannot look for a while."""
            assert os.write(transport.socket.fileno(), data) == len(data)
            sent.append(trio.current_time())
            time.sleep(BUSY)  # noqa: ASYNC251 - that is what is tried

        usual, transport.send_all = transport.send_all, send
        body = json.dumps({"messages": HI}).encode()
        await peer.begin("POST", PATH, {"content-length": str(len(body))})
        await peer.send_body(body, last=True)
        transport.send_all = usual
        await peer.read_to_end()
        assert peer.status == 200
        (arrived,) = server.service.arrived
        assert arrived is not None
        assert any(abs(arrived - when) < NEAR for when in sent), "when it was sent, not when it was read"


@pytest.mark.parametrize("protocol", ["1.1", "1.1 over TLS"])
@pytest.mark.parametrize("early", [1, 20, None], ids=["a byte", "a line", "all"])
async def test_what_came_behind_another_request_counts_from_its_turn(
    early: int | None, protocol: str
) -> None:
    """Whether all of it was read at once, or the rest lay with the system for as long as the other one took."""
    go = trio.Event()

    async def waits(submission: Submission) -> AsyncIterator[Piece]:
        await go.wait()
        yield End("stop")

    async with serving(StubService(waits), **options_of(protocol)) as server:
        peer = await connect(server, protocol)
        body = json.dumps({"messages": HI}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        one = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        await peer.stream.send_all(one + one[:early])
        await until(lambda: server.service.submissions)
        if early is not None:
            await peer.stream.send_all(one[early:])
        await trio.sleep(0.05)
        answered = trio.current_time()
        go.set()
        await until(lambda: len(server.service.submissions) == 2)
        first, second = server.service.arrived
        assert first is not None and second is not None
        assert first < answered <= second


async def test_after_an_idle_time_a_request_counts_from_its_own_bytes() -> None:
    """That another one was waited for once does not hold for those to come."""
    async with serving() as server:
        peer = await connect(server, "1.1")
        body = json.dumps({"messages": HI}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        one = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        await peer.stream.send_all(one + one)
        await until(lambda: len(server.service.submissions) == 2 and not server.service.running)
        sent = trio.current_time()
        await peer.stream.send_all(one)
        await until(lambda: len(server.service.submissions) == 3)
        third = server.service.arrived[2]
        assert third is not None and third >= sent
