"""Clients that read slowly or not at all: whom they hold up, and what they lose."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from luce.actors.token_buffer import Delta
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from tests.actors.harness import ask, expected, path_of, read, serving
from tests.http.conftest import until
from tests.http.fake_model import Live, live
from tests.http.test_connections import read_to_end, request
from tests.http.test_service import body, whole

pytestmark = pytest.mark.trio


def engine(slots: int, step: float, mode: Mode = Mode.MANUAL) -> FakeEngine:
    capabilities = fake_capabilities(num_slots=slots, max_context=4096, num_blocks=8192)
    return FakeEngine(capabilities, mode=mode, times=Times(step=step))


# -- the actors, in virtual time ----------------------------------------------------------------------------------


async def test_a_dozen_clients_that_never_read_hold_slots_no_longer_than_others(
    autojump_clock: MockClock,
) -> None:
    """Their answers are generated into their buffers; whoever waits behind them waits for that alone."""
    step, tokens = 0.001, 1200
    async with serving(engine(2, step)) as service:
        unread = [service.submit(ask(number, tokens=tokens)) for number in range(12)]
        started = trio.current_time()
        answer = await read(service.submit(ask(99, tokens=20)))
        assert answer.tokens == tuple(expected(ask(99, tokens=20)))
        waited = trio.current_time() - started
        assert waited < 2 * step * tokens * len(unread) / 2 < service.options.client_timeout
        assert not [record for record in service.events if record.event == "client.full"]
        for number, handle in enumerate(unread):  # and nothing of theirs is lost
            assert (await read(handle)).tokens == tuple(expected(ask(number, tokens=tokens)))


async def test_a_slow_client_that_reads_is_not_cut_off(autojump_clock: MockClock) -> None:
    """From full to half full takes longer than the timeout, but no pause of it does."""
    async with serving(engine(1, 0.01), buffer_limit=8, client_timeout=30.0) as service:
        handle = service.submit(ask(0, tokens=40))
        tokens = []
        while isinstance(item := await handle.next(), Delta):
            tokens += item.tokens
            await trio.sleep(20)
        assert (item.reason, tuple(tokens)) == ("length", tuple(expected(ask(0, tokens=40))))
        assert [record for record in service.events if record.event == "client.full"]


@pytest.mark.parametrize("reads", [0, 3])
async def test_a_client_that_stops_reading_is_cut_off_after_its_last_read(
    autojump_clock: MockClock, reads: int
) -> None:
    async with serving(engine(1, 0.01), buffer_limit=8, client_timeout=30.0) as service:
        handle = service.submit(ask(0, tokens=40))
        for _ in range(reads):
            await trio.sleep(20)
            await handle.next()
        last = trio.current_time()
        while service.requests:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)
        assert trio.current_time() - last == pytest.approx(30, abs=1)
        assert path_of(service, "r0")[-1] == "cancelled"


# -- over sockets -------------------------------------------------------------------------------------------------


async def never_reading(server: Live, asked: dict[str, Any]) -> trio.socket.SocketType:
    """A client with a small window."""
    connection = trio.socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await connection.connect(("127.0.0.1", server.server.port))
    await connection.send(request(asked | {"stream": True}, headers="Connection: close\r\n"))
    return connection


async def test_connections_that_are_not_read_hold_no_slot_once_their_answer_is_generated() -> None:
    """One slot, and a client that reads behind two that do not; nothing is lost for those who wake up."""
    asked = body("long", max_tokens=2000, stream_options={"include_usage": True})
    async with live(engine(1, 0.0, Mode.THREAD), client_timeout=60) as server, server.server.http() as client:
        unread = []
        for _ in range(2):
            unread.append(await never_reading(server, asked))
            await until(lambda: server.service.requests)
        with trio.fail_after(20):
            answer = await whole(client, body("long", max_tokens=2000))
        await until(lambda: not server.service.requests)
        for connection in unread:
            data = await read_to_end(trio.SocketStream(connection), 10)
            events = [json.loads(one) for one in re.findall(rb"data: ({.*})", data)]
            pieces = [one["choices"][0]["delta"].get("content", "") for one in events if one["choices"]]
            assert "".join(pieces) == answer["choices"][0]["message"]["content"]
            assert events[-1]["usage"]["completion_tokens"] == 2000
            assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
