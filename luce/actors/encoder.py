"""The encoder actor: `statecharts/encoder.scxml`, pictures to rows, in arrival order, off the step loop.

Theory of operation. Requests that hold a slot say `encode`; what they need and nobody has asked for is queued, and
encoded one picture at a time on a worker thread. A picture is known by the digest of its pixels, so however many
requests ask for it, while it waits, while it is encoded or afterwards, it is encoded once and its rows go to each of
them as they land. Who waits, who may still need rows, and which rows make room is kept by
:class:`luce.scheduling.image_cache.ImageCache`; nothing else is kept here. Patches stay with the requests: the worker
takes them from whichever request waits first.

`drop` takes a request out and is answered at once: no picture is anybody's in particular. One that nobody waits for any
more is not begun; one that was begun is finished, and kept within the budget. A picture that fails fails the requests
that wait for it; whoever asks later has it tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import trio

from luce.actors.mailbox import Mailbox
from luce.actors.messages import EncodeFailed, ImageReady, Plain, ToEncoder
from luce.actors.request import Request
from luce.actors.tracing import encoded
from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Send
from luce.charts.loader import load_chart
from luce.engines.seam import PatchImage
from luce.errors import DeviceError, LuceError
from luce.scheduling.image_cache import Asked, ImageCache
from luce.trace.events import EventStream

__all__ = ["Encode", "Encoder", "on_worker_thread"]

log = logging.getLogger("luce.encoder")

Rows = npt.NDArray[np.float32]
Encode = Callable[[PatchImage], Awaitable[Rows]]


class EncoderGuards:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @guard
    def more(self) -> bool:
        """A picture is queued."""
        return self._encoder.cache.more


def on_worker_thread(encode: Callable[[PatchImage], Rows]) -> Encode:
    """Run a blocking ``encode`` on a thread that no one else uses."""
    limiter = trio.CapacityLimiter(1)

    async def run(image: PatchImage) -> Rows:
        # A server that ends at once does not wait for a picture; its rows are dropped when they are done.
        return await trio.to_thread.run_sync(encode, image, limiter=limiter, abandon_on_cancel=True)

    return run


class Encoder:
    """Args:
    encode: a picture's rows; awaited one picture at a time.
    mailbox: read by this actor alone.
    events: the event stream.
    image_bytes: rows that are kept beyond what requests need.
    """

    def __init__(
        self, encode: Encode, mailbox: Mailbox[ToEncoder], events: EventStream, image_bytes: int = 0
    ) -> None:
        self._encode = encode
        self.mailbox = mailbox
        self.machine = Machine(load_chart("encoder"), EncoderGuards(self), observer=events.observe)
        self.cache = ImageCache(image_bytes)
        self._events = events
        self.encoding: bytes | None = None
        """Digest of the picture that the worker has."""
        self.seconds_encoding = 0.0
        self._result: Rows | Exception | None = None
        """Of that picture, until its `image.done` or `image.failed` is handled."""
        self.stopped = trio.Event()

    @property
    def images_encoded(self) -> int:
        """Pictures that went through the tower, those that failed included."""
        return self.cache.stats.encoded + self.cache.stats.failed

    @property
    def hits(self) -> int:
        """Times that a request found the rows of a picture that it asked for."""
        return self.cache.stats.hits

    @property
    def joins(self) -> int:
        """Times that a request asked for a picture that another one had asked for and that was not done."""
        return self.cache.stats.joins

    async def run(self) -> None:
        """Serve until the chart is final."""
        self._deliver(self.machine.start(), [])
        async with trio.open_nursery() as nursery:
            while not self.machine.finished:
                for message in await self._messages():
                    try:
                        self._handle(message, nursery)
                    finally:
                        self.mailbox.handled()
        self.mailbox.close()
        self.stopped.set()

    async def _messages(self) -> list[ToEncoder]:
        """All that are there, questions first, in the order in which their requests arrived. Requests that get their
        slots from one plan ask in whatever order trio runs their tasks."""
        while not self.mailbox:
            await self.mailbox.arrival()
        messages = []
        while (message := self.mailbox.pop()) is not None:
            messages.append(message)
        return sorted(messages, key=_precedence)

    def _handle(self, message: ToEncoder, nursery: trio.Nursery) -> None:
        request = message.request
        answers: list[tuple[Request, Plain | ImageReady | EncodeFailed]] = []
        if message.event == "encode":
            assert request is not None
            if not request.machine.active("ending"):  # its `drop` is on the way
                answers = [(request, ready) for ready in self._ask(request)]
        elif message.event == "drop":
            assert request is not None
            self.cache.leave(request)
            answers = [(request, Plain("dropped"))]
        elif message.event == "image.done":
            answers = list(self._take_rows())
        elif message.event == "image.failed":
            answers = list(self._take_failure())
        self._leave_dead_work()
        self._deliver(self.machine.feed(message.event), answers)
        if self.encoding is None and self.machine.active("encoding"):
            self._start_next(nursery)

    def _ask(self, request: Request) -> Iterable[ImageReady]:
        """Ask for what the request still needs and has not asked for: it may ask again after it was parked."""
        found: list[ImageReady] = []
        for image in request.missing_images:
            digest = request.submission.images[image].digest
            if self.cache.holds(digest, request):
                continue
            if self.cache.ask(digest, request) is Asked.READY:
                found += _ready(request, digest, cast(Rows, self.cache.rows(digest)))
        return found

    def _take_rows(self) -> Iterable[tuple[Request, ImageReady]]:
        """The worker's rows, for everyone who waits for them."""
        digest, rows = self._worker_result()
        assert isinstance(rows, np.ndarray)
        for holder in self.cache.encoded(digest, rows, rows.nbytes).waiting:
            request = cast(Request, holder)
            for ready in _ready(request, digest, rows):
                yield request, ready

    def _take_failure(self) -> Iterable[tuple[Request, EncodeFailed]]:
        """The worker's error, for everyone who waits. They fail: what else they asked for is not begun."""
        digest, error = self._worker_result()
        assert isinstance(error, Exception)
        for holder in self.cache.failed(digest):
            request = cast(Request, holder)
            self.cache.leave(request)
            image = request.pictures(digest)[0]
            yield request, EncodeFailed(image, _error_for_client(error, image))

    def _worker_result(self) -> tuple[bytes, Rows | Exception | None]:
        digest, result = self.encoding, self._result
        assert digest is not None
        self.encoding = self._result = None
        return digest, result

    def _leave_dead_work(self) -> None:
        """Dead work never starts, also when its `drop` is still on the way (design-notes I6)."""
        cache = self.cache
        while cache.more:
            waiting = [cast(Request, request) for request in cache.waiting(cache.queue[0])]
            if not all(request.machine.active("ending") for request in waiting):
                return
            for request in waiting:
                cache.leave(request)

    def _start_next(self, nursery: trio.Nursery) -> None:
        digest = self.cache.next_encode()
        assert digest is not None
        request = next(
            request
            for holder in self.cache.waiting(digest)
            if not (request := cast(Request, holder)).machine.active("ending")
        )
        self.encoding = digest
        picture = request.submission.images[request.pictures(digest)[0]]
        nursery.start_soon(self._run_job, picture, request.submission.id)

    async def _run_job(self, picture: PatchImage, request: str) -> None:
        """``request``: whom to name in the log."""
        started = trio.current_time()
        try:
            rows = await self._encode(picture)
            rows.setflags(write=False)  # from now on many share them
            self._result = rows
            event, outcome, count, nbytes = "image.done", f"{len(rows)} rows", len(rows), rows.nbytes
        except Exception as error:
            if not isinstance(error, LuceError):
                log.exception("encoding a picture of request %s failed", request)
            self._result = error.with_traceback(None)  # its frames hold the picture
            event, outcome, count, nbytes = "image.failed", "failed", 0, 0
        seconds = trio.current_time() - started
        self.seconds_encoding += seconds
        self._events.detail(encoded, request, picture.digest, seconds, count, nbytes)
        log.debug("a picture of request %s: %s, %.1f ms", request, outcome, seconds * 1e3)
        self.mailbox.put(ToEncoder(event))

    def _deliver(
        self,
        sends: tuple[Send, ...],
        answers: Sequence[tuple[Request, Plain | ImageReady | EncodeFailed]],
    ) -> None:
        """The chart says what is sent, ``answers`` to whom and what it carries."""
        assert sends or not answers, answers
        for send in sends:
            for request, answer in answers:
                assert answer.event == send.event, (answer.event, send)
                request.mailbox.put(answer)


def _precedence(message: ToEncoder) -> tuple[bool, int]:
    """No request asks after its `drop`, so this puts none of its own messages out of order."""
    if message.event != "encode" or message.request is None:
        return (True, 0)
    return (False, message.request.order)


def _ready(request: Request, digest: bytes, rows: Rows) -> list[ImageReady]:
    """Rows of a picture, for every place in the request's prompt that shows it."""
    return [ImageReady(image, rows) for image in request.pictures(digest)]


def _error_for_client(error: Exception, image: int) -> LuceError:
    """What one of the requests that wait is told. Each has its own: a client may keep it for long and raise it."""
    if not isinstance(error, LuceError):
        return DeviceError(f"encoding image {image} failed: {type(error).__name__}")
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin
