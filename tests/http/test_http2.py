"""HTTP/2 beyond what all protocols share: streams side by side, windows, resets, floods, and faults of one stream."""

from __future__ import annotations

import json
from typing import Any, cast

import h2.events
import pytest
import trio
from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.http.conftest import Server, serving, until
from tests.http.peers import HI, PATH, Peer2, connect
from tests.http.stubs import StubService, endless, saying, silent
from tests.http.test_connections import PATIENT, read_to_end, read_until, stops

pytestmark = pytest.mark.trio

ASKED = {"messages": HI, "stream": True}


async def peer2(server: Server, **options: Any) -> Peer2:
    return cast(Peer2, await connect(server, "2", **options))


async def still_usable(peer: Peer2) -> bool:
    peer.grants = True
    await peer.begin("GET", "/health", {}, last=True)
    return b'"ok"' in await peer.read_to_end()


async def test_what_the_server_announces() -> None:
    async with serving(max_streams=7) as server:
        peer = await peer2(server)
        await peer.until(lambda: len(peer.seen(h2.events.RemoteSettingsChanged)) == 2)
        settings = peer.connection.remote_settings
        assert settings.max_concurrent_streams == 7
        assert settings.max_header_list_size is not None and settings.max_header_list_size <= 1 << 15
        assert settings.enable_push == 0 and settings.enable_connect_protocol == 0


async def test_many_streams_side_by_side_are_not_mixed_up() -> None:
    async def script(submission: Any) -> Any:
        async for piece in saying("".join(map(chr, submission.prompt.token_ids)) * 20, pause=0.001)(
            submission
        ):
            yield piece

    async with serving(StubService(script)) as server, server.http(http1=False, http2=True) as client:
        answers: dict[str, str] = {}

        async def one(name: str) -> None:
            asked = {"messages": [{"role": "user", "content": name}]}
            response = await client.post(PATH, json=asked)
            answers[name] = response.json()["choices"][0]["message"]["content"]

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, f"n{number}")
        assert answers == {f"n{number}": f"n{number}" * 20 for number in range(50)}


async def test_a_reset_cancels_its_request_and_no_other() -> None:
    service = StubService(endless)
    async with serving(service) as server:
        peer = await peer2(server)
        await peer.ask(ASKED)
        await until(lambda: len(service.running) == 1)
        kept, first = set(service.running), peer.stream_id
        await peer.ask(ASKED)
        await until(lambda: len(service.running) == 2)
        peer.connection.reset_stream(peer.stream_id, ErrorCodes.CANCEL)
        await peer.flush()
        await until(lambda: set(service.running) == kept)
        peer.stream_id, peer.data = first, b""
        await peer.read_until(b"xxxx")
        assert await still_usable(peer)
        await peer.leave()
        await until(lambda: not service.running)


async def test_a_stalled_stream_is_reset_and_the_connection_goes_on() -> None:
    service = StubService(endless)
    async with serving(service, stalled_timeout=0.3) as server:
        peer = await peer2(server, grants=False)
        await peer.ask(ASKED)
        await peer.read_to_end()  # all of its window, then the reset
        (reset,) = peer.seen(h2.events.StreamReset)
        assert reset.error_code == ErrorCodes.CANCEL
        assert 60_000 < len(peer.data) <= 65_535
        await until(lambda: not service.running)
        peer.connection.increment_flow_control_window(1 << 20)
        await peer.flush()
        assert await still_usable(peer)


async def test_a_finished_answer_without_window_holds_nothing_for_ever() -> None:
    """Its request is over when its last byte is sent, or given up."""
    async with serving(stalled_timeout=0.3) as server:
        peer = await peer2(server, settings={"INITIAL_WINDOW_SIZE": 10}, grants=False)
        await peer.ask({"messages": HI})
        await peer.read_to_end()
        assert len(peer.data) <= 10 and peer.seen(h2.events.StreamReset)
        assert await still_usable(peer)


async def test_a_window_that_grows_little_by_little_loses_nothing() -> None:
    async with serving(stalled_timeout=2.0) as server:
        peer = await peer2(server, settings={"INITIAL_WINDOW_SIZE": 1}, grants=False)
        await peer.ask({"messages": HI})
        while not peer.over:
            await peer.receive()
            if not peer.over:
                peer.connection.increment_flow_control_window(7, peer.stream_id)
                await peer.flush()
        assert json.loads(peer.data)["choices"][0]["message"]["content"] == "Hello, wörld!"


async def test_streams_over_the_limit_are_refused_unbegun() -> None:
    """Those count too that the client has reset while their tasks end."""
    service = StubService(silent)
    async with serving(service, max_streams=3) as server:
        peer = await peer2(server)
        peer.connection.remote_settings.acknowledge()
        for _ in range(5):
            await peer.ask(ASKED)
        await peer.until(lambda: len(peer.seen(h2.events.StreamReset)) == 2)
        assert {one.error_code for one in peer.seen(h2.events.StreamReset)} == {ErrorCodes.REFUSED_STREAM}
        await until(lambda: len(service.running) == 3)
        assert len(service.submissions) == 3
        await peer.leave()


async def test_rapid_reset_is_bounded() -> None:
    """CVE-2023-44487: streams that are reset at once end the connection, and no request of theirs goes on."""
    service = StubService(silent)
    async with serving(service) as server:
        peer = await peer2(server)
        for _ in range(40):
            for _ in range(10):
                await peer.begin("GET", "/health", {}, last=True)
                peer.connection.reset_stream(peer.stream_id)
            try:
                await peer.flush()
            except trio.BrokenResourceError:
                break
        await ends_calmly(peer)
        assert await still_served(server)


def ping() -> bytes:
    return PingFrame(0, opaque_data=b"12345678").serialize()


def settings() -> bytes:
    return SettingsFrame(0, settings={3: 100}).serialize()


def priority() -> bytes:
    return PriorityFrame(1001, depends_on=0, stream_weight=1).serialize()


def window() -> bytes:
    return WindowUpdateFrame(0, window_increment=1).serialize()


@pytest.mark.parametrize("frame", [ping, settings, priority, window])
async def test_floods_of_frames_end_the_connection(frame: Any) -> None:
    async with serving() as server:
        peer = await peer2(server)
        await peer.until(lambda: peer.seen(h2.events.RemoteSettingsChanged))
        with trio.move_on_after(5):
            try:
                for _ in range(100):
                    await peer.stream.send_all(frame() * 100)
            except trio.BrokenResourceError:
                pass
        await ends_calmly(peer)
        assert await still_served(server)


async def test_a_flood_of_empty_data_ends_the_connection() -> None:
    async with serving() as server:
        peer = await peer2(server)
        await peer.begin("POST", PATH, {})
        try:
            for _ in range(40):
                await peer.stream.send_all(DataFrame(peer.stream_id, data=b"").serialize() * 100)
        except trio.BrokenResourceError:
            pass
        await ends_calmly(peer)


async def test_a_client_that_reads_no_answers_to_pings_is_not_read_on() -> None:
    """Answers wait in bounded memory."""
    async with serving(stalled_timeout=1.0) as server:
        peer = await peer2(server)
        sent = 0
        with trio.move_on_after(3):
            try:
                while sent < 20_000:
                    await peer.stream.send_all(ping() * 100)
                    sent += 100
            except trio.BrokenResourceError:
                pass
        assert await still_served(server)


@pytest.mark.parametrize("size", [16_000, 100])
async def test_heads_without_end_are_cut_off(size: int) -> None:
    async with serving() as server:
        peer = await peer2(server)
        frames = HeadersFrame(1, data=b"\0" * size).serialize()
        frames += ContinuationFrame(1, data=b"\0" * size).serialize() * (200_000 // size)
        try:
            await peer.stream.send_all(frames)
        except trio.BrokenResourceError:
            pass
        await ends_calmly(peer, {ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.PROTOCOL_ERROR})
        assert await still_served(server)


async def test_a_head_that_unpacks_to_megabytes_is_cut_off() -> None:
    """An HPACK bomb: one large field in the table, then its index, one byte each, thousands of times."""
    async with serving() as server:
        peer = await peer2(server)
        encoder = peer.connection.encoder
        block = encoder.encode([("x-bomb", "y" * 3000)])
        again = encoder.encode([("x-bomb", "y" * 3000)])
        assert len(again) <= 2
        frame = HeadersFrame(1, data=block + again * 10_000, flags=["END_HEADERS", "END_STREAM"])
        await peer.stream.send_all(frame.serialize())
        await ends_calmly(peer)
        assert await still_served(server)


async def ends_calmly(peer: Peer2, codes: frozenset[ErrorCodes] | set[ErrorCodes] | None = None) -> None:
    """The server says goodbye with a reason, and closes; the reason may be lost to a client that goes on sending."""
    try:
        await peer.until(lambda: peer.seen(h2.events.ConnectionTerminated))
    except trio.BrokenResourceError:
        return
    (end,) = peer.seen(h2.events.ConnectionTerminated)
    assert end.error_code in (codes or {ErrorCodes.ENHANCE_YOUR_CALM})


async def still_served(server: Server) -> bool:
    async with server.http() as client:
        return (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("path", ["/\xe9", "/a b", "/\x7f"])
async def test_a_path_that_is_none_is_that_stream_s_fault(path: str) -> None:
    async with serving() as server:
        peer = await peer2(server)
        peer.connection.config.validate_outbound_headers = False
        await peer.begin("GET", path, {}, last=True)
        assert b"characters that no URL has" in await peer.read_to_end() and peer.status == 400
        assert await still_usable(peer)


async def test_data_behind_an_early_answer_is_taken_and_dropped() -> None:
    """Hypercorn looks for the stream's request, which is gone, and fails with all others on the connection."""
    service = StubService(endless)
    async with serving(service, body_timeout=0.1) as server:
        peer = await peer2(server)
        await peer.ask(ASKED)
        await until(lambda: service.running)
        running = peer.stream_id
        await peer.begin("POST", PATH, {})
        late = peer.stream_id
        await peer.read_to_end()
        assert peer.status == 408
        for _ in range(5):
            await peer.stream.send_all(DataFrame(late, data=b"x" * 1000).serialize())
        peer.stream_id, peer.data, peer.over = running, b"", False
        await peer.read_until(b"xxxx")
        await peer.leave()


async def test_an_expectation_is_met() -> None:
    async with serving() as server:
        peer = await peer2(server)
        body = json.dumps({"messages": HI}).encode()
        await peer.begin("POST", PATH, {"expect": "100-continue", "content-length": str(len(body))})
        await peer.until(lambda: peer.seen(h2.events.InformationalResponseReceived))
        await peer.send_body(body, last=True)
        await peer.read_to_end()
        assert peer.status == 200


async def test_an_answer_that_breaks_off_ends_with_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as if it were whole."""

    async def broken(self: Any) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr("luce.http.sse.EventBody.__anext__", broken)
    async with serving() as server:
        peer = await peer2(server)
        await peer.ask(ASKED)
        await peer.read_to_end()
        (reset,) = peer.seen(h2.events.StreamReset)
        assert peer.status == 200 and reset.error_code == ErrorCodes.INTERNAL_ERROR
        assert await still_usable(peer)


async def test_the_end_refuses_what_is_new_and_says_goodbye() -> None:
    service = StubService(saying("finished", pause=0.05))
    async with serving(service, exit_grace=5) as server:
        peer = await peer2(server)
        await peer.ask(ASKED)
        await peer.read_until(b'"content":"f"')
        running = peer.stream_id
        server.stop.set()
        await trio.sleep(0.05)
        await peer.begin("GET", "/health", {}, last=True)
        refused = peer.stream_id
        await peer.until(lambda: peer.seen(h2.events.StreamReset))
        (reset,) = peer.seen(h2.events.StreamReset)
        assert (reset.stream_id, reset.error_code) == (refused, ErrorCodes.REFUSED_STREAM)
        peer.stream_id, peer.over = running, False
        assert b"[DONE]" in await peer.read_to_end()
        await peer.until(lambda: peer.seen(h2.events.ConnectionTerminated))
        (end,) = peer.seen(h2.events.ConnectionTerminated)
        assert end.error_code == ErrorCodes.NO_ERROR
        with trio.fail_after(3):
            await server.ended.wait()


async def test_prior_knowledge_in_pieces_and_not_behind_a_request() -> None:
    async with serving(exit_grace=PATIENT) as server:
        async with await server.connect() as connection:
            await connection.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await read_until(connection, b'"ok"}')
            await connection.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert (await read_to_end(connection)).startswith(b"HTTP/1.1 505 ")
        async with await server.connect() as connection:
            for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize():
                await connection.send_all(bytes([byte]))
            assert (await connection.receive_some())[3] == 4, "a SETTINGS frame"
        await stops(server)
