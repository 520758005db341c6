"""An answer on a socket on which nothing is served."""

from __future__ import annotations

from http import HTTPStatus

import trio

from luce.http.refusals import refusal

__all__ = ["answer_and_close"]


async def answer_and_close(stream: trio.abc.HalfCloseableStream, error: Exception, seconds: float) -> None:
    """Say ``error`` in HTTP/1.1, and take what the client sends for so many seconds, or closing would reset what it
    has not read. Never waits for the client to read."""
    answer = refusal(error)
    lines = [b"HTTP/1.1 %d %s" % (answer.status, HTTPStatus(answer.status).phrase.encode())]
    lines += [b"%s: %s" % header for header in answer.headers]
    data = b"\r\n".join([*lines, b"connection: close", b"", b""]) + answer.body
    try:
        with trio.move_on_after(seconds):
            await stream.send_all(data)
            await stream.send_eof()
            while await stream.receive_some():
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)
