"""Bytes count as there when the system had them."""

from __future__ import annotations

import socket
import time

import pytest
import trio

from luce.stamped_stream import MOST_AGE, OPTION, STAMP, StampedStream, _age, ask_for_stamps

pytestmark = pytest.mark.trio

NEAR = 0.05
"""Seconds that two clocks may differ; nobody looks for twice as long."""


async def pair(listener_asks: bool) -> tuple[StampedStream, socket.socket]:
    """A connection that was accepted, and the other end of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    if listener_asks:
        ask_for_stamps(listener)
    other = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    listener.close()
    accepted.setblocking(False)
    if not listener_asks:
        ask_for_stamps(accepted)
    return StampedStream(trio.SocketStream(trio.socket.from_stdlib_socket(accepted))), other


@pytest.mark.parametrize("listener_asks", [True, False])
async def test_what_is_read_late_was_there_before(listener_asks: bool) -> None:
    stream, other = await pair(listener_asks)
    async with stream:
        with other:
            for data in (b"one", b"two"):
                other.sendall(data)
                await trio.sleep(0.1)
                looked = trio.current_time()
                before = stream.received
                assert await stream.receive_some() == data
                assert before - NEAR < stream.received < looked
        ended = trio.current_time()
        assert await stream.receive_some() == b""
        assert stream.received >= ended, "no stamp is on an end"


async def test_errors_are_trio_s() -> None:
    stream, other = await pair(True)
    other.close()
    await stream.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        for _ in range(100):
            await stream.receive_some()
            await stream.send_all(b"x")
            await trio.sleep(0.01)
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_stamps_that_cannot_be_count_as_now() -> None:
    def stamp(age: float) -> tuple[int, int, bytes]:
        when = time.time() - age
        return socket.SOL_SOCKET, OPTION, STAMP.pack(int(when), int(when % 1 * 1e9))

    assert 5.0 <= _age([stamp(5.0)]) <= MOST_AGE
    assert _age([]) == _age([stamp(-3600.0)]) == _age([stamp(3 * MOST_AGE)]) == 0.0
    level, _, content = stamp(5.0)
    assert _age([(level, OPTION + 1, content)]) == 0.0
    assert _age([(level, OPTION, content[:8])]) == 0.0
