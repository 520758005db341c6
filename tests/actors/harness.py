"""Real actors on the fake engine: what a test asks, and what came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.actors.free_memory import FreeMemory, machine_memory
from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import Delta, End
from luce.engines.fake.engine import FakeEngine, Mode
from luce.engines.fake.pictures import make_picture
from luce.engines.fake.reference import Script, encoded_rows, reference_answer
from luce.engines.loaded import GenerationDefaults, LoadedModel
from luce.engines.seam import ImageSpan, PatchImage, SampledToken, SlotSpec
from luce.sampling.parameters import SamplingParams
from luce.scheduling.plan import plan
from luce.scheduling.state import Policy
from luce.trace.recorder import Recorder


class ByteTokenizer:
    """Ids are bytes. Enough of a tokenizer for the text side of a request."""

    num_token_ids = 256
    vocab_size = 256

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def encode_prompt(self, text: str, *, field: str | None = None) -> list[int]:
        return list(text.encode())

    encode_text = encode_prompt

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")


@attrs.frozen(eq=False)
class Prompt:
    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int
    spans: tuple[ImageSpan, ...]
    turn_ends: tuple[int, ...] = ()
    starts_in_thinking: bool = False

    @property
    def answer_start(self) -> int:
        return len(self.token_ids)


def make_prompt(name: int, rows: int, images: Sequence[PatchImage] = (), gap: int = 2) -> Prompt:
    """``rows`` rows of text, different for every ``name``, with the pictures' spans ``gap`` rows apart."""
    spans: list[ImageSpan] = []
    at = gap
    for index, image in enumerate(images):
        spans.append(ImageSpan(at, image.num_tokens, index))
        at += image.num_tokens + gap
    total = max(rows, at)
    ids = ((np.arange(total) * 7 + name * 31) % 250).astype(np.int32)
    for span in spans:
        ids[span.start : span.start + span.length] = 251
    positions = np.tile(np.arange(total, dtype=np.int32), (3, 1))
    return Prompt(ids, positions, -3 if images else 0, tuple(spans))


def ask(
    name: int,
    rows: int = 10,
    tokens: int = 8,
    images: int = 0,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    **sampling: Any,
) -> Submission:
    pictures = tuple(make_picture(f"{name}/{index}".encode()) for index in range(images))
    params = SamplingParams(**({"temperature": 0.0, "seed": name, "max_tokens": tokens} | sampling))
    return Submission(
        f"r{name}", make_prompt(name, rows, pictures), pictures, params, stop=stop, include_stop=include_stop
    )


def expected(
    submission: Submission, count: int | None = None, *, hidden: int = 8, script: Script | None = None
) -> list[SampledToken]:
    """What the request must produce, or the first ``count`` tokens of it, computed alone and row by row."""
    prompt = submission.prompt
    spec = SlotSpec(
        prompt.token_ids,
        prompt.positions,
        prompt.rope_delta,
        submission.params,
        submission.params.max_tokens or 1,
        prompt.spans,
        [encoded_rows(image, hidden) for image in submission.images],
    )
    constraint = submission.constraint.fork() if submission.constraint is not None else None
    return reference_answer(
        spec, spec.max_tokens if count is None else count, script=script, constraint=constraint
    )


@attrs.frozen
class Answer:
    text: str
    tokens: tuple[SampledToken, ...]
    end: End
    pieces: tuple[str, ...]


async def read(handle: Handle, until: int | None = None) -> Answer:
    """Read to the end, or for ``until`` pieces and then cancel."""
    pieces: list[str] = []
    tokens: list[SampledToken] = []
    while isinstance(item := await handle.next(), Delta):
        pieces.append(item.text)
        tokens.extend(item.tokens)
        if until is not None and len(pieces) >= until:
            handle.cancel()
    return Answer("".join(pieces), tuple(tokens), item, tuple(pieces))


async def read_choices(choices: Sequence[Handle], until: int | None = None) -> list[Answer]:
    """Read all of one client's choices as they come, to the end, or for ``until`` pieces together and then cancel."""
    pieces: list[list[Delta]] = [[] for _ in choices]
    while True:
        came = 0
        for handle, mine in zip(choices, pieces, strict=True):
            while isinstance(item := handle.take(), Delta):
                mine.append(item)
                came += 1
        if until is not None and sum(map(len, pieces)) >= until:
            for handle in choices:
                handle.cancel()
        if all(handle.take() is not None for handle in choices):
            break
        if not came:
            await choices[0].arrival()
    answers = []
    for handle, mine in zip(choices, pieces, strict=True):
        texts, tokens = tuple(piece.text for piece in mine), [t for piece in mine for t in piece.tokens]
        assert handle.end is not None
        answers.append(Answer("".join(texts), tuple(tokens), handle.end, texts))
    return answers


async def read_all(service: Service, submissions: Sequence[Submission]) -> list[Answer]:
    """All at once; answers in the order of the submissions."""
    answers: dict[int, Answer] = {}

    async def one(index: int, handle: Handle) -> None:
        answers[index] = await read(handle)

    async with trio.open_nursery() as nursery:
        for index, submission in enumerate(submissions):
            nursery.start_soon(one, index, service.submit(submission))
    return [answers[index] for index in range(len(submissions))]


def make_service(
    engine: FakeEngine,
    policy: Policy = plan,
    free_memory: FreeMemory = machine_memory,
    recorder: Recorder | None = None,
    **options: Any,
) -> Service:
    """On an engine that is driven on trio's clock, pictures are encoded on that clock, too."""
    model = LoadedModel(
        name="fake",
        engine=engine,
        tokenizer=ByteTokenizer(),  # type: ignore[arg-type]
        preparer=None,  # type: ignore[arg-type]
        eos_token_ids=(),
        defaults=GenerationDefaults(),
        created=0,
    )
    encode = engine.encode_async if engine._mode is Mode.MANUAL else None
    compute = compute_on_clock if engine._mode is Mode.MANUAL else None
    return Service(model, ServiceOptions(**options), encode, policy, free_memory, compute, recorder)


async def compute_on_clock(function: Callable[[], None]) -> None:
    """A mask without a thread: a clock that jumps whenever every task waits cannot see that one is busy."""
    await trio.sleep(0.0007)
    function()


@asynccontextmanager
async def serving(engine: FakeEngine, **options: Any) -> AsyncIterator[Service]:
    """A running service; on the way out it must drain and leave nothing behind."""
    service = make_service(engine, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        if engine._mode is Mode.MANUAL:
            nursery.start_soon(engine.drive)
        yield service
        service.drain()
        await service.stopped()
        nursery.cancel_scope.cancel()
    check_clean(service, engine)


async def settled(service: Service) -> None:
    """Until every request is gone."""
    while service.requests:
        await service._forgotten.park()


def check_clean(service: Service, engine: FakeEngine) -> None:
    assert service.requests == {} and service.arrivals == {}
    assert not engine.open_slots
    loop = service.loop
    assert not loop.running and not loop.waiting and not loop.parked and not loop.flights
    loop.memory.check_integrity(())
    pool = loop.memory.pool
    assert pool.free + pool.cached == pool.num_blocks
    assert loop.memory.saved_bytes == 0 and not loop.memory.work
    assert engine.stored_bytes == loop.memory.cache.index.device_bytes
    assert service._wiring.turn.pending == 0
    encoder = service.encoder
    encoder.cache.check_integrity()
    assert not encoder.cache.queue and not encoder.cache.requests and encoder.encoding is None


def path_of(service: Service, request: str) -> list[str]:
    """The phases that a request went through, in order."""
    known = (
        "following", "queued", "encoding", "staging_chunk", "staging_wait_rows", "staging_ready",
        "staging_in_pass", "staging_importing", "decoding", "parked_saved", "parked_dropped",
        "ending_finished", "ending_failed", "ending_cancelled", "finished", "failed", "cancelled",
    )  # fmt: skip
    path: list[str] = []
    for record in service.events:
        if record.machine == "request" and record.id == request:
            phase = next(state for state in record.configuration if state in known)
            if not path or path[-1] != phase:
                path.append(phase)
    return path
