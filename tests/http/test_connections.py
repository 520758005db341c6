"""What happens to connections: clients that leave, stall, half-close or send too much, and the server's end."""

from __future__ import annotations

import json
import random
import socket
import struct
from typing import Any

import httpx
import psutil
import pytest
import trio

from luce.errors import ConfigError
from luce.http.options import HttpOptions
from luce.http.server import listen
from tests.http.conftest import Server, serving, until
from tests.http.stubs import StubService, endless, saying, silent, torrent

pytestmark = pytest.mark.trio

HI = [{"role": "user", "content": "Hi"}]


def request(
    body: Any = None, *, path: str = "/v1/chat/completions", version: str = "1.1", headers: str = ""
) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def read_until(stream: trio.abc.ReceiveStream, mark: bytes) -> bytes:
    data = b""
    with trio.fail_after(20):
        while mark not in data:
            piece = await stream.receive_some()
            assert piece, f"the connection ended before {mark!r}: {data!r}"
            data += piece
    return data


async def read_to_end(stream: trio.abc.ReceiveStream, seconds: float = 20) -> bytes:
    data = b""
    with trio.fail_after(seconds):
        async for piece in stream:
            data += piece
    return data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("version", "headers"), [("1.0", ""), ("1.1", "Connection: close\r\n")], ids=["1.0", "close"]
)
async def test_connection_ends_when_it_should(stream: bool, version: str, headers: str) -> None:
    """Hypercorn's disconnect inside the last send used to leave such connections open for ever."""
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(
            request({"messages": HI, "stream": stream}, version=version, headers=headers)
        )
        data = await read_to_end(connection)
    assert b" 200 " in data.splitlines()[0]
    assert (b"[DONE]" if stream else "Hello, wörld!".encode()) in data


async def test_connection_is_used_again_and_closed_when_idle() -> None:
    async with serving(idle_timeout=0.3) as server, await server.connect() as connection:
        for _ in range(3):
            await connection.send_all(request({"messages": HI}))
            await read_until(connection, b'"chat.completion"')
        assert await read_to_end(connection) == b""
        assert len(server.service.submissions) == 3


@pytest.mark.parametrize("pieces", [[b"\r\n"], [b"\n\r\n"], [b"\r", b"\n"], [b"\r\n\r\n\r\n", b"\r"]])
@pytest.mark.parametrize("when", ["first", "behind", "later"])
async def test_empty_lines_before_a_request_are_passed_over(pieces: list[bytes], when: str) -> None:
    async with serving() as server, await server.connect() as connection:
        if when != "first":
            behind = pieces[0] if when == "behind" else b""
            await connection.send_all(request({"messages": HI}) + behind)
            await read_until(connection, b'"chat.completion"')
            pieces = pieces[1:] if behind else pieces
        for piece in pieces:
            await connection.send_all(piece)
            await trio.sleep(0.02)
        await connection.send_all(
            (b"\n" if pieces and pieces[-1] == b"\r" else b"") + request({"messages": HI})
        )
        assert b" 200 " in (await read_until(connection, b'"chat.completion"')).partition(b"\r\n")[0]
        assert len(server.service.submissions) == 1 + (when != "first")


async def test_a_carriage_return_alone_is_no_empty_line() -> None:
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(b"\r\n\r" + request({"messages": HI}))
        assert b" 400 " in (await read_to_end(connection)).partition(b"\r\n")[0]


async def test_a_client_that_sends_only_empty_lines_is_idle() -> None:
    async with serving(idle_timeout=0.3) as server, await server.connect() as connection:
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await connection.send_all(b"\r\n" * 10)
                await trio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "extra",
    [b"", b"\r\n", request(path="/health"), b"GET /health"],
    ids=["plain", "crlf", "pipelined", "half"],
)
@pytest.mark.parametrize("script", [silent, endless], ids=["silent", "talking"])
@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
async def test_client_that_leaves_frees_its_slot(stream: bool, extra: bytes, script: Any, leave: str) -> None:
    service = StubService(script)
    async with serving(service, exit_grace=PATIENT) as server:
        connection = await server.connect()
        await connection.send_all(request({"messages": HI, "stream": stream, "max_tokens": 50}) + extra)
        await until(lambda: service.running)
        if stream:
            await read_until(connection, b'"role":"assistant"')
        if leave == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if leave == "half-close":
            await connection.send_eof()
        else:
            await connection.aclose()
        await until(lambda: not service.running)
        assert len(service.cancelled) == 1
        await connection.aclose()
        await stops(server)  # no task of the connection is left behind


async def test_client_that_leaves_before_its_body_is_whole() -> None:
    async with serving() as server:
        connection = await server.connect()
        await connection.send_all(request({"messages": HI})[:-4])
        await trio.sleep(0.05)
        await connection.aclose()
        async with server.http() as client:
            assert (await client.post("/v1/chat/completions", json={"messages": HI})).status_code == 200
        assert len(server.service.submissions) == 1


async def test_client_library_that_breaks_off() -> None:
    service = StubService(endless)
    async with serving(service) as server, server.openai() as client:
        stream = await client.chat.completions.create(model="stub", messages=HI, stream=True)  # type: ignore[arg-type]
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await until(lambda: not service.running)


async def test_many_clients_leave() -> None:
    service = StubService(endless)
    async with serving(service) as server:

        async def come_and_go(number: int) -> None:
            async with await server.connect() as connection:
                await connection.send_all(request({"messages": HI, "stream": number % 2 == 0}))
                await trio.sleep(0.01 * (number % 5))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(come_and_go, number)
        await until(lambda: not service.running)


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_break_off_anywhere_do_no_harm(seed: int) -> None:
    """Requests cut at random bytes, left at random moments: no error escapes a connection, nothing is left behind."""
    rng = random.Random(seed)
    service = StubService(endless)
    whole = request({"messages": HI, "stream": True})

    async def come_and_go(server: Server) -> None:
        connection = await server.connect()
        if rng.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        data = whole * rng.choice([1, 1, 2]) + rng.choice([b"", b"\r\n", b"\xff"])
        cut = rng.randrange(len(data)) if rng.random() < 0.5 else len(data)
        await connection.send_all(data[:cut])
        await trio.sleep(rng.choice([0, 0, 0.001, 0.02]))
        await connection.aclose()

    async with serving(service, exit_grace=PATIENT) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(80):
                nursery.start_soon(come_and_go, server)
        await until(lambda: not service.running)
        service.script = saying("still here")
        async with server.http() as client:
            assert "still here" in (await client.post("/v1/chat/completions", json={"messages": HI})).text
        await stops(server)


async def test_headers_come_before_the_first_token_and_silence_is_commented() -> None:
    async with serving(StubService(silent), keep_alive=0.1) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI, "stream": True}))
        data = await read_until(connection, b": keep-alive\n\n")
        assert data.startswith(b"HTTP/1.1 200")
        assert data.index(b'"role":"assistant"') < data.index(b": keep-alive")
        await read_until(connection, b": keep-alive\n\n")


async def test_comments_do_not_disturb_clients_or_lose_tokens() -> None:
    text = "slow but whole"
    async with (
        serving(StubService(saying(text, pause=0.03)), keep_alive=0.01) as server,
        server.openai() as client,
    ):
        stream = await client.chat.completions.create(model="stub", messages=HI, stream=True)  # type: ignore[arg-type]
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == text


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
async def test_body_over_the_limit(declared: bool) -> None:
    """The answer must arrive although the client is still sending, and reads only when it has sent all."""
    piece = b"x" * 65536
    head = "Content-Length: 4194304" if declared else "Transfer-Encoding: chunked"
    async with serving(max_body_bytes=1 << 20) as server, await server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await connection.send_all(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        for _ in range(64):
            await connection.send_all(piece if declared else b"10000\r\n" + piece + b"\r\n")
            await trio.sleep(0.002)
        if not declared:
            await connection.send_all(b"0\r\n\r\n")
        data = await read_until(connection, b"invalid_request_error")
        assert data.startswith(b"HTTP/1.1 413")
        async with server.http() as client:
            assert (await client.get("/health")).status_code == 200


async def test_body_that_does_not_arrive() -> None:
    async with serving(body_timeout=0.2) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI})[:-4])
        data = await read_to_end(connection)
    assert data.startswith(b"HTTP/1.1 408")
    assert b'"the request body did not arrive in time"' in data


async def test_stalled_reader_is_cut_off_and_frees_its_slot() -> None:
    service = StubService(endless)
    async with serving(service, stalled_timeout=1.0) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI, "stream": True}))
        await until(lambda: service.running)
        # read nothing: the kernel's buffers fill, then the write blocks, then TCP_USER_TIMEOUT ends it
        await until(lambda: not service.running, 30)


PATIENT = 60
"""Seconds that a server may give its connections at the end, where none of them should need any."""


async def stops(server: Server) -> None:
    server.stop.set()
    with trio.fail_after(PATIENT / 2):
        await server.ended.wait()


async def test_idle_connections_do_not_hold_up_the_end() -> None:
    async with serving(exit_grace=PATIENT) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI}))
        await read_until(connection, b'"chat.completion"')
        await stops(server)


async def test_stalled_reader_does_not_hold_up_the_end() -> None:
    service = StubService(torrent)
    async with serving(service, exit_grace=0.3) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI, "stream": True}))
        await until(lambda: service.running)
        await trio.sleep(1.5)  # long enough for the buffers to fill
        await stops(server)
        assert not service.running


async def test_running_stream_is_finished_before_the_end() -> None:
    service = StubService(saying("finished", pause=0.05))
    async with serving(service, exit_grace=5) as server, await server.connect() as connection:
        await connection.send_all(request({"messages": HI, "stream": True}))
        await read_until(connection, b'"content":"f"')
        server.stop.set()
        assert b"[DONE]" in await read_to_end(connection)


async def test_two_requests_in_one_write_are_both_answered() -> None:
    async with serving() as server, await server.connect() as connection:
        await connection.send_all(
            request({"messages": HI}) + request(path="/health", headers="Connection: close\r\n")
        )
        data = await read_to_end(connection)
    assert data.count(b"HTTP/1.1 200") == 2
    assert b'{"status":"ok"}' in data


async def test_port_in_use_is_one_clear_error() -> None:
    taken = listen(HttpOptions(port=0))
    taken.listen()
    try:
        with pytest.raises(ConfigError, match=r"--port: cannot listen on 127\.0\.0\.1:"):
            listen(HttpOptions(port=taken.getsockname()[1]))
    finally:
        taken.close()
    with pytest.raises(ConfigError, match="--host"):
        listen(HttpOptions(host="no.such.host.invalid", port=0))


async def test_other_library_sees_plain_http() -> None:
    """HTTP/1.1 with httpx, one connection, every status in turn."""
    limits = httpx.Limits(max_connections=1)
    async with (
        serving() as server,
        httpx.AsyncClient(base_url=server.url, limits=limits, verify=False) as client,
    ):
        for _ in range(3):
            assert (await client.get("/nope")).status_code == 404
            assert (await client.post("/v1/chat/completions", json={})).status_code == 400
            assert (await client.post("/v1/chat/completions", json={"messages": HI})).status_code == 200


@pytest.mark.parametrize(
    "nonsense",
    [
        b"X\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=["garbage", "TLS", "no host", "two lengths"],
)
async def test_what_is_not_http_holds_nothing_once_its_connection_is_closed(nonsense: bytes) -> None:
    """Its idle task and its watch used to stay for the keep-alive time: a few hundred of them locked everyone out."""
    process = psutil.Process()
    async with serving() as server:
        async with await server.connect() as connection:
            await connection.send_all(nonsense)
            await read_to_end(connection)
        await trio.sleep(0.1)
        open_files, tasks = process.num_fds(), trio.lowlevel.current_statistics().tasks_living
        for _ in range(20):
            async with await server.connect() as connection:
                await connection.send_all(nonsense)
                await read_to_end(connection)
        await until(lambda: process.num_fds() <= open_files + 2)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks + 2)
