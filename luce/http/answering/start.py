"""From a request's body to its running answer: what every endpoint that generates does first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import trio
from quart import Request

from luce.actors.deadline import time_limit
from luce.actors.service import Service
from luce.actors.submission import Handle
from luce.engines.loaded import LoadedModel
from luce.errors import CapacityError, DeadlineError
from luce.http.answering.images import PicturesElsewhere, with_pictures
from luce.http.answering.prepare import Job
from luce.http.asgi import held_body, owned
from luce.http.body import read_json_body
from luce.http.image_sources.sources import ImageSources
from luce.http.options import HttpOptions
from luce.http.request_log import record_of

__all__ = ["Answering", "HasJob"]


class HasJob(Protocol):
    """What an endpoint makes of a body: a job, and how its answer is to be written."""

    @property
    def job(self) -> Job: ...


T = TypeVar("T")
J = TypeVar("J", bound=HasJob)

Prepare = Callable[[bytearray, LoadedModel, HttpOptions], T]
"""Runs on a worker thread; raises RequestError. Runs again when pictures that it wanted have been loaded."""


class Answering:
    """One for the server: all endpoints share its bound on requests that are being prepared."""

    def __init__(self, service: Service, model: LoadedModel, options: HttpOptions) -> None:
        self.service = service
        self.model = model
        self.options = options
        self._workers = trio.CapacityLimiter(options.preparing)
        self._sources = ImageSources(options.image_sources, options.max_image_bytes)

    async def prepared(self, request: Request, prepare: Prepare[T]) -> T:
        """What ``prepare`` makes of the request's body, which is let go then.

        Raises:
            CapacityError: the server is not serving.
            DeadlineError: the time for its answer is over.
            RequestError: what the client got wrong.
        """
        body = await read_json_body(request, self.options.body_timeout)
        if not self.service.ready:
            raise CapacityError(f"the server is {self.service.state}", retry_after=5)
        try:
            done = await self._on_worker(prepare, body)
        except PicturesElsewhere as wanted:
            with with_pictures(await self._loaded(request, wanted)):
                done = await self._on_worker(prepare, body)
        held_body(request).release()
        return done

    async def _loaded(self, request: Request, wanted: PicturesElsewhere) -> Mapping[str, bytes]:
        """Raises DeadlineError: the answer's time is over before its pictures are there."""
        limit = time_limit(wanted.timeout, self.service.options.request_timeout, record_of(request).started)
        with trio.CancelScope(deadline=math.inf if limit is None else limit.due):
            return await self._sources.load(wanted.references, held_body(request))
        assert limit is not None
        raise DeadlineError(f"{limit.passed}: its pictures were still being fetched")

    async def _on_worker(self, prepare: Prepare[T], body: bytearray) -> T:
        return await trio.to_thread.run_sync(prepare, body, self.model, self.options, limiter=self._workers)

    async def start(self, request: Request, prepare: Prepare[J]) -> tuple[J, Handle]:
        """For an API whose requests have one answer: submit what ``prepare`` makes of the body. The answer is cancelled
        when the HTTP request ends."""
        prepared = await self.prepared(request, prepare)
        return prepared, self.submit(request, [prepared.job])[0]

    def submit(self, request: Request, jobs: Sequence[Job]) -> list[Handle]:
        """Submit the jobs of one HTTP request, all choices of all of them or none. Their answers are cancelled when it
        ends.

        Raises:
            CapacityError: there is no room for all of them.
            DeadlineError: the time for the answer of one is over before it can be submitted.
        """
        record = record_of(request)
        record.id = jobs[0].request_id or record.id
        submissions = [submission for job in jobs for submission in job.submissions]
        for submission in submissions:
            limit = time_limit(submission.timeout, self.service.options.request_timeout, record.started)
            if limit is not None and limit.due <= trio.current_time():
                raise DeadlineError(
                    f"{limit.passed}: until then its body was still arriving or being prepared"
                )
        for handle in self.service.submit_all(submissions, record.started):
            owned(request).callback(handle.cancel)
            record.handles.append(handle)
        return record.handles
