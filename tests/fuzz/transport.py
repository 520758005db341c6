"""How a case reaches the server, and what comes back."""

from __future__ import annotations

from random import Random

import attrs
import h11
import httpx
import trio

from tests.fuzz.cases import Case

__all__ = ["Reply", "send"]

LIMIT = 60.0
"""Seconds until a case counts as hanging; most take some milliseconds."""


@attrs.frozen
class Reply:
    status: int
    kind: str
    """Its content type."""
    headers: dict[str, str]
    body: bytes
    whole: bool = True


async def send(case: Case, port: int, client: httpx.AsyncClient) -> Reply | None:
    """The reply; None when the client left before there was one.

    Raises:
        trio.TooSlowError: nothing came for :data:`LIMIT` seconds.
    """
    with trio.fail_after(LIMIT):
        if case.way == "asgi":
            response = await client.request(case.method, case.path, headers=case.headers, content=case.body)
            kind = response.headers.get("content-type", "")
            return Reply(response.status_code, kind, dict(response.headers), response.content)
        return await _over_socket(case, port)


async def _over_socket(case: Case, port: int) -> Reply | None:
    random = Random(case.name)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        connection = h11.Connection(h11.CLIENT)
        headers = [
            ("host", "x"),
            ("content-length", str(len(case.body))),
            ("connection", "close"),
            *case.headers,
        ]
        data = connection.send(h11.Request(method=case.method, target=case.path, headers=headers)) or b""
        data += connection.send(h11.Data(case.body)) or b""
        data += connection.send(h11.EndOfMessage()) or b""
        until = random.randrange(len(data)) if case.way == "leave" and random.random() < 0.3 else len(data)
        try:
            await _write(stream, data[:until], case, random)
            if until < len(data):
                return None
            return await _read(stream, connection, case, random)
        except trio.BrokenResourceError:
            return None  # a refusal, and the connection closed before the body was sent


async def _write(stream: trio.SocketStream, data: bytes, case: Case, random: Random) -> None:
    if case.way != "pieces":
        await stream.send_all(data)
        return
    if len(data) <= 400 and random.random() < 0.3:
        cuts = list(range(1, len(data)))
    else:
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((1, 3, 20))))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        await stream.send_all(data[start:end])
        await trio.sleep(random.choice((0, 0, 0, 0.001, 0.01)))


async def _read(
    stream: trio.SocketStream, connection: h11.Connection, case: Case, random: Random
) -> Reply | None:
    leaves_after = random.randrange(3000) if case.way == "leave" else None
    response, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            size = random.choice((1, 7, 4096)) if case.way == "pieces" else 65536
            if case.way == "pieces" and random.random() < 0.05:
                await trio.sleep(0.01)
            connection.receive_data(await stream.receive_some(size))
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += event.data
            if leaves_after is not None and len(body) > leaves_after:
                return None
        elif isinstance(event, h11.EndOfMessage):
            assert response is not None
            headers = {name.decode(): value.decode("latin-1") for name, value in response.headers}
            return Reply(response.status_code, headers.get("content-type", ""), headers, body)
