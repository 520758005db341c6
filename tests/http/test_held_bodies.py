"""Request bodies in memory: bounded over all connections, and let go on every way out."""

from __future__ import annotations

import gc
import json
import socket
import struct
import threading
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from luce.errors import CapacityError
from luce.http.held_bodies import BodyBudget, HeldBody
from tests.heap import trim
from tests.http.conftest import Server, serving, until
from tests.http.stubs import StubService, endless, make_model
from tests.http.test_connections import HI, read_to_end, read_until

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
KIB = 1024


def head(length: int, path: str = CHAT, headers: str = "Content-Type: application/json\r\n") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\n\r\n".encode()


def padded(size: int) -> bytes:
    """A request for chat whose body has ``size`` bytes."""
    body = json.dumps({"messages": HI}).encode()
    return head(size) + body[:-1] + b" " * (size - len(body)) + b"}"


async def uploading(server: Server, sent: int, length: int | None = None, **how: Any) -> trio.SocketStream:
    """A client that has sent ``sent`` bytes of a longer body."""
    held = server.bodies.held
    connection = await server.connect()
    await connection.send_all(head(length or sent + 1, **how) + b"x" * sent)
    await until(lambda: server.bodies.held == held + sent)
    return connection


# -- the bound ----------------------------------------------------------------------------------------------------


async def test_bodies_are_bounded_together() -> None:
    limits = {"max_body_bytes": 1024 * KIB, "max_buffered_bytes": 1024 * KIB}
    async with serving(**limits) as server, server.http() as client:
        one = await uploading(server, 500 * KIB)
        two = await uploading(server, 400 * KIB)
        with_length = await client.post(CHAT, content=padded(200 * KIB).partition(b"\r\n\r\n")[2])

        async def pieces() -> Any:
            yield b"x" * 200 * KIB

        without_length = await client.post(CHAT, content=pieces())
        for response in (with_length, without_length):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("server_error", "overloaded")
            assert "--max-buffered-bodies" in error["message"]
        assert server.bodies.held == 900 * KIB, "the refused ones hold nothing"
        small = await client.post(CHAT, json={"messages": HI})
        assert small.status_code == 200, "there is room for it"
        await one.aclose()
        await until(lambda: server.bodies.held == 400 * KIB)
        response = await client.post(CHAT, content=padded(200 * KIB).partition(b"\r\n\r\n")[2])
        assert response.status_code == 200, response.text
        await two.aclose()


async def test_bodies_that_wait_for_a_worker_are_counted() -> None:
    """And let go when their client leaves, or when they are prepared: before the answer is over."""
    go, model = threading.Event(), make_model()
    build = model.preparer.build
    model.preparer.build = lambda *args, **kwargs: (go.wait(10), build(*args, **kwargs))[1]  # type: ignore[method-assign]
    async with serving(StubService(endless), model, preparing=1) as server:
        connections = [await server.connect() for _ in range(3)]
        for number, connection in enumerate(connections):
            await connection.send_all(padded(100 * KIB))
            await until(lambda count=number + 1: server.bodies.held == count * 100 * KIB)
        await connections.pop().aclose()
        await until(lambda: server.bodies.held == 200 * KIB)
        go.set()
        await until(lambda: len(server.service.running) == 2)
        assert server.bodies.held == 0
        for connection in connections:
            await connection.aclose()


# -- the ways out -------------------------------------------------------------------------------------------------


async def leave(server: Server) -> None:
    await (await uploading(server, 300 * KIB)).aclose()


async def reset(server: Server) -> None:
    connection = await uploading(server, 300 * KIB)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await connection.aclose()


async def half_close(server: Server) -> None:
    await (await uploading(server, 300 * KIB)).send_eof()


async def never_finish(server: Server) -> None:
    assert (await read_to_end(await uploading(server, 300 * KIB))).startswith(b"HTTP/1.1 408")


async def grow_too_large(server: Server) -> None:
    connection = await server.connect()
    await connection.send_all(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    for _ in range(20):
        await connection.send_all(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    await connection.send_all(b"0\r\n\r\n")
    assert (await read_until(connection, b"}}")).startswith(b"HTTP/1.1 413")


async def send_nonsense(server: Server) -> None:
    connection = await server.connect()
    await connection.send_all(head(300 * KIB) + b"x" * 300 * KIB)
    assert (await read_until(connection, b"}}")).startswith(b"HTTP/1.1 400")


async def chunk_wrongly(server: Server) -> None:
    connection = await server.connect()
    await connection.send_all(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n".encode()
        + b"x" * 16
        + b"\r\n"
    )
    await until(lambda: server.bodies.held == 16)
    await connection.send_all(b"zz\r\n")
    await read_to_end(connection)


async def be_answered(server: Server) -> None:
    connection = await server.connect()
    await connection.send_all(padded(300 * KIB))
    assert (await read_until(connection, b'"chat.completion"')).startswith(b"HTTP/1.1 200")


async def break_the_preparation(server: Server) -> None:
    server.model.preparer.build = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    connection = await server.connect()
    await connection.send_all(padded(300 * KIB))
    assert (await read_until(connection, b"}}")).startswith(b"HTTP/1.1 500")


async def stop_the_server(server: Server) -> None:
    await uploading(server, 300 * KIB)
    server.stop.set()
    await server.ended.wait()


WAYS = [
    leave,
    reset,
    half_close,
    never_finish,
    grow_too_large,
    send_nonsense,
    chunk_wrongly,
    be_answered,
    break_the_preparation,
    stop_the_server,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_way_out_lets_go(way: Any) -> None:
    async with serving(body_timeout=0.5, max_body_bytes=1024 * KIB, exit_grace=0.2) as server:
        await way(server)
        await until(lambda: server.bodies.held == 0)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/nope", "", 404),
        ("/v1/models", "", 405),
        (CHAT, "Content-Type: text/plain\r\n", 415),
        (f"{CHAT}?x=1", "", 400),
        (CHAT, "Expect: x\r\n", 417),
    ],
)
async def test_bodies_that_nobody_reads_are_not_held(path: str, headers: str, status: int) -> None:
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(head(600 * KIB, path, headers))
        await trio.testing.wait_all_tasks_blocked(0.05)
        await connection.send_all(b"x" * 500 * KIB)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert server.bodies.held == 0
        await connection.send_all(b"x" * 100 * KIB)
        assert (await read_until(connection, b"}}")).startswith(f"HTTP/1.1 {status}".encode())


async def test_uploads_that_break_off_leave_no_memory_behind() -> None:
    """A cancelled request stays in reference cycles until the collector runs; its body must not stay with it."""
    process, size = psutil.Process(), 8 << 20
    async with serving() as server:
        await (await uploading(server, size)).aclose()
        await until(lambda: server.bodies.held == 0)
        gc.collect()
        gc.disable()
        try:
            trim()  # before and after: what other tests left takes nothing in, and holes of these bodies do not count
            before = process.memory_info().rss
            for _ in range(12):
                await (await uploading(server, size)).aclose()
                await until(lambda: server.bodies.held == 0)
            trim()
            assert process.memory_info().rss - before < 3 * size
        finally:
            gc.enable()


# -- one body -----------------------------------------------------------------------------------------------------


async def test_a_body_is_handed_out_without_a_copy_and_cleared_where_it_stands() -> None:
    budget = BodyBudget(100)
    body = HeldBody(budget, None, 50)
    body.append(b"ab")
    body.append(b"cd")
    body.set_complete()
    whole = await body.whole(1)
    assert (bytes(whole), budget.held) == (b"abcd", 4)
    body.release()
    assert (bytes(whole), budget.held) == (b"", 0)
    body.release()
    body.drop_rest()
    body.append(b"late")
    assert budget.held == 0


async def test_a_body_past_the_bound_is_refused_at_the_byte() -> None:
    budget = BodyBudget(100)
    first, second = HeldBody(budget, None, 100), HeldBody(budget, 40, 100)
    first.append(b"x" * 60)
    second.append(b"x" * 40)
    assert budget.held == 100
    second.append(b"x")
    with pytest.raises(CapacityError, match="100 at most"):
        await second.whole(1)
    assert budget.held == 60
    with pytest.raises(CapacityError):
        await HeldBody(budget, 41, 100).whole(1)
    fits = HeldBody(budget, 40, 100)
    fits.append(b"x" * 40)
    fits.set_complete()
    assert len(await fits.whole(1)) == 40
