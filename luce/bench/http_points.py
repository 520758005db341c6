"""What is measured through HTTP: a server in this process, its clients in another one on the same machine."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import msgspec
import numpy as np
import trio

from luce.actors.flight import StepMetrics
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.bench.client import Answer, Ask, Job
from luce.bench.engine_points import Measured, Plan
from luce.bench.limits import Lane, Work, encode_work, prefill_seconds, step_work
from luce.bench.pictures import png
from luce.bench.points import Point, of_runs
from luce.engines.loaded import LoadedModel
from luce.errors import DeviceError
from luce.http.options import HttpOptions
from luce.http.server import listen, run_server
from luce.text.detokenizer import Detokenizer
from luce.text.tokenizer import Tokenizer
from luce.vision.data_url import data_url

__all__ = ["LONG_TEXT", "Traffic", "http_points"]

LONG_TEXT = 2
"""Times as long as the others are the answers beside which pictures arrive."""
BESIDE = 8
"""Pictures that arrive while texts are streamed."""
BEFORE_BESIDE = 8
"""Pieces that the first of these streams has got by then."""
WARM_PICTURES = 2
"""Times that pictures of a size are asked about before it counts: the first may have kernels to load, launches of the
second are recorded."""

MOST_UNSHOWN = 256
"""Of a tokenizer with more of them most are rare."""


@attrs.frozen
class Traffic:
    """What clients ask for."""

    tokens: int
    """Of each answer."""
    prompt: int
    """Tokens of a text's prompt."""
    streams: tuple[int, ...]
    """Texts at once."""
    pictures: tuple[tuple[int, int], ...]
    """(tokens that a picture takes, side in pixels)."""
    users: tuple[int, ...] = (1, 4)
    """Requests with a picture at once."""


Report = Callable[[Point], None]


def http_points(
    plan: Plan,
    traffic: Traffic,
    measured: Measured,
    model: LoadedModel,
    options: ServiceOptions,
    report: Report,
) -> None:
    """Serve ``model`` and ask it. The engine has no sequences open.

    Raises:
        DeviceError: a request got something else than its answer.
    """
    trio.run(partial(_run, plan, traffic, measured, model, options, report))


async def _run(
    plan: Plan,
    traffic: Traffic,
    measured: Measured,
    model: LoadedModel,
    options: ServiceOptions,
    report: Report,
) -> None:
    async with _serving(model, options) as (address, service):
        unshown = _unshown(model.tokenizer, measured.num_ids)
        bench = _Bench(plan, traffic, measured, model.name, address, service.loop.metrics, unshown)
        for streams in traffic.streams:
            report(await bench.texts(streams))
        if measured.engine.capabilities.images:
            for tokens, side in traffic.pictures:
                for users in traffic.users:
                    report(await bench.picture_requests(users, tokens, side))
            for tokens, side in traffic.pictures:
                report(await bench.pause(tokens, side))


@asynccontextmanager
async def _serving(
    model: LoadedModel, options: ServiceOptions
) -> AsyncIterator[tuple[tuple[str, int], Service]]:
    """The whole server on a free port of the loopback interface, and its actors."""
    http = HttpOptions(port=0)
    listener = listen(http)
    address: list[tuple[str, int]] = []
    services: list[Service] = []
    ready = trio.Event()

    def announce(where: tuple[str, int]) -> None:
        address.append(where)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                run_server,
                model,
                options,
                http,
                listener,
                announce,
                observe=lambda service, _: services.append(service),
            )
        )
        await ready.wait()
        yield address[0], services[0]
        services[0].drain()


@attrs.define
class _Bench:
    plan: Plan
    traffic: Traffic
    measured: Measured
    name: str
    address: tuple[str, int]
    metrics: StepMetrics
    """Of the server."""
    unshown: tuple[int, ...] = ()
    """Tokens that clients hear nothing of at once."""
    _seeds: itertools.count[int] = attrs.field(factory=itertools.count)
    """Every prompt and picture is a new one, which no cache knows."""

    async def texts(self, streams: int) -> Point:
        """The rate while all of them stream: between the last one's first piece and the first one's last."""
        runs, firsts = [], []
        for _ in range(self.plan.runs):
            answers = await self._answers([self._text() for _ in range(streams)])
            runs.append(_rate_together(answers))
            firsts += [answer.pieces[0] - answer.asked for answer in answers]
        middle = Lane(self.traffic.prompt + self.traffic.tokens // 2)
        work = self._step([middle] * streams)
        speeds = self.measured.speeds
        return of_runs(
            f"HTTP: {streams} text{'s' if streams > 1 else ''}, prompts of {self.traffic.prompt:,}, "
            f"{self.traffic.tokens:,} tokens each",
            "tok/s",
            runs,
            streams / work.seconds(speeds),
            work.bound(speeds),
            first_token_ms=1000 * statistics.median(firsts),
        )

    async def picture_requests(self, users: int, tokens: int, side: int) -> Point:
        """Tokens of whole answers over the time from the first request to the last answer's end."""
        runs = []
        for _ in range(WARM_PICTURES):
            await self._answers([self._picture(side, tokens=8) for _ in range(users)])
        for _ in range(self.plan.runs):
            answers = await self._answers([self._picture(side) for _ in range(users)])
            taken = max(answer.ended for answer in answers) - min(answer.asked for answer in answers)
            runs.append(sum(answer.tokens for answer in answers) / taken)
        name = f"HTTP: {users} request{'s' if users > 1 else ''} with a picture of {tokens:,} tokens"
        return of_runs(
            f"{name}, {self.traffic.tokens:,} tokens each",
            "tok/s",
            runs,
            users * self.traffic.tokens / self._least(users, tokens),
        )

    async def pause(self, tokens: int, side: int) -> Point:
        """The longest wait between two pieces of any text while pictures arrive, are encoded and computed. Each token
        is a piece: else waits for two would count as one."""
        streams = max(1, min(4, self.measured.engine.capabilities.num_slots // 2))
        runs: list[float] = []
        waits: list[float] = []
        self.metrics.longest_mixed = 0.0
        for _ in range(self.plan.runs):
            texts = [self._text(factor=LONG_TEXT, shown=True) for _ in range(streams)]
            pictures = [
                msgspec.structs.replace(self._picture(side, tokens=8), behind=(0, BEFORE_BESIDE))
                for _ in range(BESIDE)
            ]
            answers = await self._answers([*texts, *pictures])
            start = min(answer.asked for answer in answers[streams:])
            end = max(answer.pieces[0] for answer in answers[streams:])
            inside = [_waits(answer.pieces, start, end) for answer in answers[:streams]]
            runs.append(1000 * max(map(max, inside)))
            waits += [1000 * wait for stream in inside for wait in stream]
        return Point(
            f"HTTP: longest pause of {streams} texts beside {BESIDE} new pictures of {tokens:,} tokens",
            "ms",
            max(runs),
            None,
            runs=tuple(runs),
            details={
                "median_ms": statistics.median(waits),
                "p99_ms": float(np.percentile(waits, 99)),
                "longest_mixed_step_ms": 1000 * self.metrics.longest_mixed,
            },
        )

    def _least(self, users: int, tokens: int) -> float:
        """Seconds that so many picture requests take at least: encoding, prompts, and their answers together."""
        measured, vision = self.measured, self.measured.config.vision
        assert vision is not None, "only models with pictures are asked about them"
        work = encode_work(measured.config, tokens * vision.merge_size**2, value_bytes=measured.vision_bytes)
        prefill = prefill_seconds(
            measured.config.text,
            measured.weights,
            users * tokens,
            measured.speeds,
            kv_bytes=measured.kv_bytes,
        )
        step = self._step([Lane(tokens + self.traffic.tokens // 2)] * users).seconds(measured.speeds)
        return users * work.seconds(measured.speeds) + prefill + self.traffic.tokens * step

    def _step(self, lanes: Sequence[Lane]) -> Work:
        measured = self.measured
        return step_work(measured.config.text, measured.weights, lanes, kv_bytes=measured.kv_bytes)

    def _text(self, factor: int = 1, *, shown: bool = False) -> Ask:
        """``shown``: no token of the answer is one of those that clients hear nothing of at once."""
        generator = np.random.default_rng(next(self._seeds))
        ids = generator.integers(0, self.measured.num_ids, self.traffic.prompt).tolist()
        fields = self._fields(factor * self.traffic.tokens) | {"prompt": ids}
        if shown and self.unshown:
            fields["logit_bias"] = {str(token): -100 for token in self.unshown}
        return _asked("/v1/completions", fields)

    def _picture(self, side: int, tokens: int | None = None) -> Ask:
        url = data_url(png(side, side, next(self._seeds)))
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        fields = self._fields(tokens or self.traffic.tokens)
        return _asked("/v1/chat/completions", fields | {"messages": [{"role": "user", "content": content}]})

    def _fields(self, tokens: int) -> dict[str, Any]:
        return {
            "model": self.name,
            "temperature": self.plan.temperature,
            "seed": next(self._seeds),
            "max_tokens": tokens,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _answers(self, asks: list[Ask]) -> list[Answer]:
        """Of a new client process. Raises DeviceError where one is no answer."""
        job = msgspec.json.encode(Job(*self.address, asks))
        command = [sys.executable, "-m", "luce.bench.client"]
        done = await trio.run_process(command, stdin=job, capture_stdout=True)
        answers = msgspec.json.decode(done.stdout, type=list[Answer])
        for answer in answers:
            if answer.error is not None or not answer.pieces:
                raise DeviceError(f"a request of the benchmark got no answer: {answer.error or 'no text'}")
        return answers


def _unshown(tokenizer: Tokenizer, num_ids: int) -> tuple[int, ...]:
    """Of the ids below ``num_ids`` those that end in the middle of a character: it is shown with the next token, which
    then has no text of its own."""
    found = []
    for token in range(num_ids):
        detokenizer = Detokenizer(tokenizer, skip_special=False)
        if not detokenizer.feed(token) or detokenizer.pending:
            found.append(token)
    return tuple(found[:MOST_UNSHOWN])


def _asked(path: str, body: dict[str, Any]) -> Ask:
    return Ask(path, msgspec.Raw(msgspec.json.encode(body)))


def _rate_together(answers: Sequence[Answer]) -> float:
    """Tokens a second of all, while all of them stream. A piece counts for as many tokens as its answer's have on
    average."""
    start = max(answer.pieces[0] for answer in answers)
    end = min(answer.pieces[-1] for answer in answers)
    if end <= start:
        raise DeviceError(
            "the answers of the benchmark never streamed together; give more --tokens, or fewer --rows"
        )
    counted = 0.0
    for answer in answers:
        inside = sum(start < when <= end for when in answer.pieces)
        counted += inside * answer.tokens / len(answer.pieces)
    return counted / (end - start)


def _waits(pieces: Sequence[float], start: float, end: float) -> list[float]:
    """The waits between two pieces of which some part lies between ``start`` and ``end``."""
    waits = [after - before for before, after in itertools.pairwise(pieces) if after > start and before < end]
    if not waits:
        raise DeviceError("the texts of the benchmark had ended before the pictures came; give more --tokens")
    return waits
