"""The bundled model behind real actors, without HTTP: what the exactness tests ask and compare."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import Delta
from luce.demo import submissions
from luce.demo.case import Case
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, load_model, open_model
from luce.engines.loaded import LoadedModel

__all__ = ["Answer", "opened", "read", "read_all", "serving", "submission"]


_asked = itertools.count(1)


def submission(model: LoadedModel, case: Case, name: str, **sampling: Any) -> Submission:
    """The case with an id that no other request has, as a server gives them."""
    return submissions.submission(model, case, f"{name} {next(_asked)}", **sampling)


@attrs.frozen
class Answer:
    """Everything that must be equal, bit for bit: text, ids, logprobs and the most likely others."""

    text: str
    tokens: tuple[Any, ...]
    reason: str


@functools.cache
def opened(slots: int, block_size: int = 64, blocks: int | None = None, context: int = 1024) -> OpenedModel:
    options = LoadOptions(slots=slots, context=context, block_size=block_size, num_blocks=blocks)
    return open_model(demo_model(), options)


async def read(handle: Handle, until: int | None = None) -> Answer:
    text, tokens = "", []
    while isinstance(item := await handle.next(), Delta):
        text += item.text
        tokens += item.tokens
        if until is not None and len(tokens) >= until:
            handle.cancel()
    assert item.error is None, item.error
    return Answer(text, tuple(tokens), item.reason)


async def read_all(service: Service, submissions: Sequence[Submission]) -> list[Answer]:
    """All at once; answers in the order of the submissions."""
    answers: dict[int, Answer] = {}

    async def one(index: int, handle: Handle) -> None:
        answers[index] = await read(handle)

    async with trio.open_nursery() as nursery:
        for index, asked in enumerate(submissions):
            nursery.start_soon(one, index, service.submit(asked))
    return [answers[index] for index in range(len(submissions))]


@asynccontextmanager
async def serving(
    slots: int, *, block_size: int = 64, blocks: int | None = None, context: int = 1024, **options: Any
) -> AsyncIterator[Service]:
    """A running service on a fresh engine; it must drain and leave nothing behind."""
    service = Service(load_model(opened(slots, block_size, blocks, context)), ServiceOptions(**options))
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        service.drain()
        await service.stopped()
    assert service.requests == {} and not service.loop.running
    service.loop.memory.check_integrity(())
    pool = service.loop.memory.pool
    assert pool.free + pool.cached == pool.num_blocks
