"""Mirrors `luce.actors.encoder`; the cache is the real one."""

from __future__ import annotations

from typing import Any

from luce.actors.encoder import EncoderGuards
from luce.charts.explorer import Violation
from luce.composition.actor import Actor
from luce.composition.pictures import freeze_cache, thaw_cache
from luce.composition.world import Request
from luce.scheduling.image_cache import Asked, ImageCache

__all__ = ["EncoderActor"]


class EncoderActor(Actor):
    def image_ends(self, event: str) -> None:
        encoder = self.world.encoder
        assert encoder.encoding is not None
        encoder.answered = True
        encoder.mailbox += ((event, None),)

    def handles(self) -> None:
        encoder = self.world.encoder
        place = self.world.next_for_encoder()
        message = encoder.mailbox[place]
        encoder.mailbox = encoder.mailbox[:place] + encoder.mailbox[place + 1 :]
        event, number = message
        encoder.thawed = thaw_cache(encoder.pictures, self.world.options.kept_images)
        answers = self._update_cache(event, number)
        if "dead-encode" not in self.planted:
            self._leave_dead_work(encoder.cache)
        encoder.here, sends = self.feed("encoder", encoder.here, event, EncoderGuards(encoder))  # type: ignore[arg-type]
        if answers and not sends:
            raise Violation(f"the encoder's {answers[0][1]} is sent by no transition for {event}")
        for receiver, answer, *carried in answers:
            assert {send.event for send in sends} == {answer}
            self.post(self.world.requests[receiver], answer, *carried)
        if encoder.encoding is None and "encoding" in encoder.here.active:
            self._start_next(encoder.cache)
        encoder.cache.check_integrity()
        encoder.pictures = freeze_cache(encoder.cache)

    def _update_cache(self, event: str, number: int) -> list[tuple[Any, ...]]:
        """What is said to whom; the chart says when."""
        encoder, requests = self.world.encoder, self.world.requests
        cache = encoder.cache
        answers: list[tuple[Any, ...]] = []
        if event == "encode":
            request = requests[number]
            dead = request.active("ending") and "dead-encode" not in self.planted
            for image in [] if dead else request.missing_images:
                digest = request.digest(image)
                if not cache.holds(digest, number) and cache.ask(digest, number) is Asked.READY:
                    answers += self._ready(number, digest)
        elif event == "drop":
            for digest in cache.queue if "take-along" in self.planted else ():
                if cache.holds(digest, number):
                    for holder in cache.waiting(digest):
                        cache.release(digest, holder)
            cache.leave(number)
            deaf = "deaf-encoder" in self.planted and encoder.encoding is not None
            answers = [] if deaf else [(number, "dropped")]
        elif event in ("image.done", "image.failed"):
            done = encoder.encoding
            assert done is not None
            encoder.encoding, encoder.answered = None, False
            if event == "image.done":
                waiting = cache.encoded(done, done, 1).waiting
                for holder in waiting[:1] if "first-only" in self.planted else waiting:
                    answers += self._ready(holder, done)
            else:
                for waits in cache.failed(done):
                    cache.leave(waits)
                    assert isinstance(waits, int)
                    answers.append((waits, "encode.failed", requests[waits].pictures(done)[0]))
        return answers

    def _ready(self, number: Any, digest: bytes) -> list[tuple[Any, ...]]:
        return [(number, "image.ready", image) for image in self.world.requests[number].pictures(digest)]

    def _leave_dead_work(self, cache: ImageCache) -> None:
        while cache.more:
            waiting: tuple[Any, ...] = cache.waiting(cache.queue[0])
            if not all(self.world.requests[number].active("ending") for number in waiting):
                return
            for number in waiting:
                cache.leave(number)

    def _start_next(self, cache: ImageCache) -> None:
        encoder = self.world.encoder
        digest = cache.next_encode()
        if digest is None:
            raise Violation("the encoder has nothing to start")
        encoder.encoding = digest
        waiting: list[Request] = [self.world.requests[number] for number in cache.waiting(digest)]  # type: ignore[call-overload]
        alive = [request for request in waiting if not request.active("ending") and not request.final]
        if not alive:
            dead = ", ".join(str(request.number) for request in waiting)
            raise Violation(f"the encoder starts a picture of request {dead}, which has ended")
        if not any(r.slot is not None or r.active("parked_dropped") for r in alive):
            raise Violation(f"the encoder starts a picture of request {alive[0].number}, which holds no slot")
        for request in self.world.requests:
            if request.here is None or request.final or request.active("ending"):
                continue
            if any(message[0] == "encode.failed" for message in request.mailbox):
                continue  # it ends, and has left the cache for that
            if any(request.arrived[image] for image in request.pictures(digest)):
                raise Violation(f"a picture that request {request.number} has rows of is encoded again")
