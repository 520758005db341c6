"""The encoder actor: `statecharts/encoder.scxml`, pictures to rows, in arrival order, off the step loop.

Theory of operation. Requests that hold a slot say `encode`; their pictures are queued in order and encoded one at a
time on a worker thread. Each picture's rows go to its request as they land. `drop` forgets a request's queued
pictures; a picture that is being encoded cannot be interrupted, so its rows are discarded when they come and only
then is `dropped` answered. A picture that fails fails its own request and nothing else.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.actors.mailbox import Mailbox
from luce.actors.messages import EncodeFailed, ImageReady, Plain, ToEncoder
from luce.actors.request import Request
from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Send
from luce.charts.loader import load_chart
from luce.engines.seam import PatchImage
from luce.errors import DeviceError, LuceError
from luce.trace.events import EventStream

__all__ = ["Encode", "Encoder", "on_worker_thread"]

log = logging.getLogger("luce.encoder")


@attrs.frozen(eq=False)
class Job:
    request: Request
    image: int


class EncoderGuards:
    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @guard
    def more(self) -> bool:
        """Another picture is queued."""
        return bool(self._encoder.queue)

    @guard
    def current(self) -> bool:
        """The picture being encoded belongs to the request that the message names."""
        job = self._encoder.job
        return job is not None and job.request is self._encoder.sender


Encode = Callable[[PatchImage], Awaitable[npt.NDArray[np.float32]]]


def on_worker_thread(encode: Callable[[PatchImage], npt.NDArray[np.float32]]) -> Encode:
    """Run a blocking ``encode`` on a thread that no one else uses."""
    limiter = trio.CapacityLimiter(1)

    async def run(image: PatchImage) -> npt.NDArray[np.float32]:
        return await trio.to_thread.run_sync(encode, image, limiter=limiter)

    return run


class Encoder:
    """Args:
    encode: a picture's rows; awaited one picture at a time.
    mailbox: read by this actor alone.
    events: the event stream.
    """

    def __init__(
        self,
        encode: Encode,
        mailbox: Mailbox[ToEncoder],
        events: EventStream,
    ) -> None:
        self._encode = encode
        self.mailbox = mailbox
        self.machine = Machine(load_chart("encoder"), EncoderGuards(self), observer=events.observe)
        self.queue: deque[Job] = deque()
        self.job: Job | None = None
        self.sender: Request | None = None
        self.images_encoded = 0
        self.seconds_encoding = 0.0
        self._result: npt.NDArray[np.float32] | LuceError | None = None
        self.stopped = trio.Event()

    async def run(self) -> None:
        """Serve until the chart is final."""
        self._deliver(self.machine.start())
        async with trio.open_nursery() as nursery:
            while not self.machine.finished:
                message = await self.mailbox.get()
                try:
                    self._handle(message, nursery)
                finally:
                    self.mailbox.handled()
        self.mailbox.close()
        self.stopped.set()

    def _handle(self, message: ToEncoder, nursery: trio.Nursery) -> None:
        self.sender = message.request
        if message.event == "encode":
            assert message.request is not None
            if not message.request.machine.active("ending"):  # its `drop` is on the way
                self.queue.extend(self._jobs(message.request))
        elif message.event == "drop":
            self.queue = deque(job for job in self.queue if job.request is not message.request)
        else:
            # Dead work never starts, also when its `drop` is still behind this message (design-notes I6).
            failed = message.request if message.event == "image.failed" else None
            self.queue = deque(
                job
                for job in self.queue
                if job.request is not failed and not job.request.machine.active("ending")
            )
        busy = self.job is not None and message.event not in ("image.done", "image.failed")
        self._deliver(self.machine.feed(message.event))
        if not busy:
            self._start_next(nursery)

    def _jobs(self, request: Request) -> list[Job]:
        """What the request still needs and has not asked for: it may ask again after it was parked."""
        images = [image for image in request.missing_images if image not in request.asked_images]
        request.asked_images.update(images)
        return [Job(request, image) for image in images]

    def _start_next(self, nursery: trio.Nursery) -> None:
        self.job = self._result = None
        if self.machine.active("encoding"):
            self.job = self.queue.popleft()
            nursery.start_soon(self._run_job, self.job)

    async def _run_job(self, job: Job) -> None:
        image = job.request.submission.images[job.image]
        started = trio.current_time()
        try:
            self._result = await self._encode(image)
            event = "image.done"
        except LuceError as error:
            # Its client may keep the error for long; the frames of a traceback hold the picture.
            self._result, event = error.with_traceback(None), "image.failed"
        except Exception as error:
            log.exception("encoding image %d of request %s failed", job.image, job.request.submission.id)
            self._result = DeviceError(f"encoding image {job.image} failed: {type(error).__name__}")
            event = "image.failed"
        self.images_encoded += 1
        self.seconds_encoding += trio.current_time() - started
        self.mailbox.put(ToEncoder(event, job.request))

    def _deliver(self, sends: tuple[Send, ...]) -> None:
        for send in sends:
            assert send.target == "request", send
            if send.event == "dropped":
                assert self.sender is not None
                self.sender.mailbox.put(Plain("dropped"))
            else:
                assert self.job is not None
                self.job.request.mailbox.put(self._answer(send.event, self.job))

    def _answer(self, event: str, job: Job) -> ImageReady | EncodeFailed:
        if event == "image.ready":
            assert isinstance(self._result, np.ndarray)
            return ImageReady(job.image, self._result)
        assert event == "encode.failed" and isinstance(self._result, LuceError), (event, self._result)
        return EncodeFailed(job.image, self._result)
