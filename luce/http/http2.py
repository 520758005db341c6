"""HTTP/2, by ALPN over TLS and by prior knowledge without: the h2 library's protocol, Hypercorn's request streams.

Hypercorn's own protocol class is not used. In it every request's task writes to the socket, and one that is cancelled
while it waits for its turn loses bytes that all streams of the connection need; a client that grants no window stalls
its answer where no time-out sees it; data behind an early answer, and a path that is not ASCII, are errors that end the
connection; and PRIORITY frames make a tree grow without end. Here one task writes, and

* a stream whose client grants no window for ``stalled_timeout`` is reset and its request cancelled;
* output is bounded for each stream (`outgoing.py`), and nothing more is read while answers to frames wait;
* streams are bounded, those counted too whose client has reset them and whose task still ends;
* frames that bring nothing on (PING, SETTINGS, RST_STREAM, empty DATA …) are bounded by an :class:`Allowance`, and
  heads by size, number of fields, and frames;
* a fault of one request leaves the connection usable: refusals, resets and stalls are the stream's own. What breaks
  the protocol ends the connection with a GOAWAY that says why.

Priorities are passed over (RFC 9113 §5.3.2): streams that have something to send take turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio
from h2.errors import ErrorCodes
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, InformationalResponse, Request, Response, StreamClosed
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext
from hypercorn.utils import filter_pseudo_headers

from luce.errors import RequestError
from luce.http.allowance import FRAMES, FRAMES_PER_SECOND, SENT_EARNS, Allowance, cost_of
from luce.http.options import HttpOptions
from luce.http.outgoing import Outgoing
from luce.http.refusals import MAX_FIELDS, MAX_HEAD_BYTES, check_head, origin_form, refusal

__all__ = ["Http2Protocol"]

WINDOW = 1 << 20
"""Bytes of bodies that a client may send ahead, on one stream and on the connection."""
AT_ONCE = 64 * 1024
"""Bytes of answers in one write, so that what comes meanwhile is not behind much."""
FIELD_BYTES = 32
"""What HTTP/2 counts for each field beside its bytes."""
_NOT_HERE = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})


class _Connection(h2.connection.H2Connection):
    MAX_CLOSED_STREAMS = 1000


class _Stream(HTTPStream):
    """One request, that tells when its task is over."""

    over: Callable[[int], None]

    async def app_send(self, message: Any) -> None:
        if message is None:
            self.over(self.stream_id)
        await super().app_send(message)


class Http2Protocol:
    """One connection's requests, side by side."""

    refused = False

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        tasks: TaskGroup,
        state: ConnectionState,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        options: HttpOptions,
    ) -> None:
        self._make_stream = (app, config, context, tasks, ssl, client, server, self.stream_send)
        self._state, self._config, self._tasks, self._send, self._options = (
            state,
            config,
            tasks,
            send,
            options,
        )
        self._connection = _Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES + FIELD_BYTES * MAX_FIELDS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
            },
        )
        self._connection.decoder.max_header_list_size = MAX_HEAD_BYTES + FIELD_BYTES * MAX_FIELDS
        self._allowance = Allowance(FRAMES, FRAMES_PER_SECOND, trio.current_time())
        self._streams: dict[int, _Stream] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._tasks_of: set[int] = set()
        """Streams of which a task lives, reset ones too."""
        self._arriving: set[int] = set()
        """Streams of which the request is not whole."""
        self._ready: dict[int, None] = {}
        """Streams with something to send, in the order of their turns."""
        self._silent = 0
        """Bytes read since the last whole frame or head."""
        self._parting = self._closed = False
        self._wake, self._written = trio.Event(), trio.Event()

    # -- the connection -------------------------------------------------------------------------------------------

    async def initiate(self) -> None:
        self._connection.initiate_connection()
        # Announced as a change, so that it binds once the client knows it; until then too many are only refused.
        most: dict[Any, int] = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._options.max_streams}
        self._connection.update_settings(most)
        self._connection.increment_flow_control_window(WINDOW - 65_535)
        self._tasks.spawn(self._write)

    @property
    def unfinished_head(self) -> bool:
        return self._silent > 0 and not self._streams

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData) and event.data:
            await self._receive(event.data)
        elif isinstance(event, Closed):
            await self._end()

    async def part(self) -> None:
        """The server closes the connection: what is begun may end, nothing new begins.

        The GOAWAY comes behind the last answer, as clients take it for the end of all (the h2 library does, and what
        is built on it); until then new streams are refused.
        """
        self._parting = True
        self._wake.set()
        if not self._outgoing and not self._closed:
            await self._give_up(ErrorCodes.NO_ERROR, "")

    async def refuse(self, error: RequestError) -> None:
        """The client has not come to a point in time."""
        self._say_goodbye(ErrorCodes.ENHANCE_YOUR_CALM, "too slow")
        await self._break_off()

    def _say_goodbye(self, code: ErrorCodes, why: str) -> None:
        try:
            self._connection.close_connection(code, why.encode() or None)
        except h2.exceptions.ProtocolError:
            pass  # it is over already

    async def _break_off(self) -> None:
        """Nothing more is taken, but the client gets to read why."""
        await self._flush()
        self.refused = True
        await self._end()

    async def _give_up(self, code: ErrorCodes, why: str) -> None:
        self._say_goodbye(code, why)
        await self._flush()
        await self._send(Closed())

    async def _end(self) -> None:
        self._closed = True
        for stream_id in list(self._streams):
            await self._close(stream_id)
        self._abandon()

    def _abandon(self) -> None:
        """Nothing more can be sent: nobody waits for it."""
        self._closed = True
        for outgoing in self._outgoing.values():
            outgoing.close()
        self._outgoing.clear()
        self._wake.set()
        self._written.set()

    # -- what comes -----------------------------------------------------------------------------------------------

    async def _receive(self, data: bytes) -> None:
        try:
            events = self._connection.receive_data(data)
        except h2.exceptions.ProtocolError:  # the library's GOAWAY says why
            await self._break_off()
            return
        self._silent = 0 if events else self._silent + len(data)
        if self._silent > 2 * MAX_HEAD_BYTES:
            self._say_goodbye(ErrorCodes.ENHANCE_YOUR_CALM, "a head without end")
            await self._break_off()
            return
        for event in events:
            cost = cost_of(event)
            if cost and not self._allowance.spend(cost, trio.current_time()):
                self._say_goodbye(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
                await self._break_off()
                return
            await self._take(event)
        if not self._closed:  # answers to frames are bounded: nothing more is read before they are written
            self._written = trio.Event()
            self._wake.set()
            await self._written.wait()

    async def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            await self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            if event.stream_id in self._streams:
                await self._streams[event.stream_id].handle(Body(event.stream_id, event.data))
            if event.flow_controlled_length:
                self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._arriving.discard(event.stream_id)
            if event.stream_id in self._streams:
                await self._streams[event.stream_id].handle(EndBody(event.stream_id))
        elif isinstance(event, h2.events.StreamReset):
            self._arriving.discard(event.stream_id)
            await self._close(event.stream_id)
            await self._report_idle()
        elif isinstance(event, h2.events.WindowUpdated):
            self._may_send(event.stream_id)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._may_send(0)
        elif isinstance(event, h2.events.ConnectionTerminated):
            await self._send(Closed())

    async def _begin(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        if self._parting or len(self._tasks_of) >= self._options.max_streams:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        fields = dict(event.headers)
        method, target = fields.get(b":method", b""), origin_form(fields.get(b":path", b"*"))
        size = sum(len(name) + len(value) for name, value in event.headers)
        fault = check_head(target, len(event.headers), size)
        if fault is None and not (method.isascii() and method.decode("ascii").isprintable()):
            fault = RequestError("the method is none")
        self._outgoing[stream_id] = Outgoing()
        self._arriving.add(stream_id)
        if fault is not None:
            self._refuse_stream(stream_id, fault, target.partition(b"?")[0].decode("latin-1"))
            return
        stream = self._streams[stream_id] = _Stream(*self._make_stream, stream_id)
        stream.over = self._tasks_of.discard
        self._tasks_of.add(stream_id)
        await self._send(Updated(idle=False))
        if fields.get(b"expect", b"").lower() == b"100-continue" and event.stream_ended is None:
            self._connection.send_headers(stream_id, [(b":status", b"100")])
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(event.headers),
                http_version="2",
                method=method.decode("ascii").upper(),
                raw_path=target,
                state=self._state,
            )
        )

    def _refuse_stream(self, stream_id: int, fault: RequestError, path: str) -> None:
        answer = refusal(fault, path)
        headers = [(b":status", b"%d" % answer.status), *answer.headers, *self._config.response_headers("h2")]
        self._connection.send_headers(stream_id, headers)
        outgoing = self._outgoing[stream_id]
        outgoing.data += answer.body
        outgoing.ended = True
        self._may_send(stream_id)

    # -- what goes ------------------------------------------------------------------------------------------------

    async def stream_send(self, event: Any) -> None:
        """From the request's task: the answer's head, its pieces, its end. What comes after its end is dropped."""
        outgoing = self._outgoing.get(event.stream_id)
        if isinstance(event, StreamClosed):
            await self._close(event.stream_id)
            await self._report_idle()
        elif outgoing is None or outgoing.gone:
            return
        elif isinstance(event, (Response, InformationalResponse)):
            headers = [one for one in event.headers if one[0].lower() not in _NOT_HERE]
            status = (b":status", b"%d" % event.status_code)
            try:
                self._connection.send_headers(
                    event.stream_id, [status, *headers, *self._config.response_headers("h2")]
                )
            except h2.exceptions.ProtocolError:
                await self._close(event.stream_id)
                return
            self._wake.set()
        elif isinstance(event, (Body, EndBody)):
            if isinstance(event, Body):
                outgoing.data += event.data
            else:
                outgoing.ended = True
            self._may_send(event.stream_id)
            wait = outgoing.room if isinstance(event, Body) else outgoing.over
            if not await wait(self._options.stalled_timeout):
                await self._close(event.stream_id, ErrorCodes.CANCEL)

    def _may_send(self, stream_id: int) -> None:
        """Its turn comes, if it has something to send; all of them for 0."""
        for one in (stream_id,) if stream_id else tuple(self._outgoing):
            outgoing = self._outgoing.get(one)
            if outgoing is not None and (outgoing.data or outgoing.ended):
                self._ready[one] = None
        self._wake.set()

    async def _write(self) -> None:
        """The only task that writes, so that the order of frames is that of the library's state."""
        try:
            while not self._closed:
                self._wake = trio.Event()
                await self._flush()
                if self._parting and not self._outgoing:
                    await self._give_up(ErrorCodes.NO_ERROR, "")
                    return
                if not self._wake.is_set():
                    await self._wake.wait()
        finally:
            self._abandon()

    async def _flush(self) -> None:
        while not self._closed:
            self._fill()
            data = self._connection.data_to_send()
            if not data:
                break
            await self._send(RawData(data))
            self._written.set()
        self._written.set()

    def _fill(self) -> None:
        """Give the library the next frames, in turns, as far as the windows go."""
        room = AT_ONCE
        for stream_id in list(self._ready):
            if room <= 0:
                break
            del self._ready[stream_id]
            outgoing = self._outgoing[stream_id]
            try:
                room -= self._frame(stream_id, outgoing, room)
            except h2.exceptions.ProtocolError:  # reset in the meantime
                self._drop(stream_id)

    def _frame(self, stream_id: int, outgoing: Outgoing, room: int) -> int:
        window = self._connection.local_flow_control_window(stream_id) if outgoing.data else 0
        piece = outgoing.take(max(0, min(window, self._connection.max_outbound_frame_size, room)))
        last = outgoing.ended and not outgoing.data
        if piece or last:
            self._connection.send_data(stream_id, piece, end_stream=last)
            self._allowance.earn(SENT_EARNS)
        if last:
            self._drop(stream_id)
            if stream_id in self._arriving:  # nobody reads the rest of its body
                self._reset(stream_id, ErrorCodes.NO_ERROR)
        elif piece and outgoing.data:
            self._ready[stream_id] = None  # behind the others; without window it waits for an update
        return len(piece)

    # -- the end of a stream --------------------------------------------------------------------------------------

    def _drop(self, stream_id: int) -> None:
        self._ready.pop(stream_id, None)
        outgoing = self._outgoing.pop(stream_id, None)
        if outgoing is not None:
            outgoing.close()

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self._connection.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            pass  # it is over
        self._arriving.discard(stream_id)
        self._wake.set()

    async def _close(self, stream_id: int, code: ErrorCodes = ErrorCodes.INTERNAL_ERROR) -> None:
        """The request is over, or its client gone: its task is told, and what is unsent is dropped."""
        stream, unsent = self._streams.pop(stream_id, None), stream_id in self._outgoing
        self._drop(stream_id)
        if stream is None:
            return
        if unsent and not self._closed:  # an answer that breaks off
            self._reset(stream_id, code)
        await stream.handle(StreamClosed(stream_id=stream_id))

    async def _report_idle(self) -> None:
        self._wake.set()
        if not self._streams and not self._closed:
            await self._send(Updated(idle=True))
