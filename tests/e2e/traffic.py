"""Rows of a trace as requests to the bundled model, and a day of them served on its real engine.

Text is made from names, so that equal names are equal rows. Pictures are charts drawn from the request's number; their
rows are their own, whatever the trace says of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import shake_128
from random import Random

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.actors.submission import Submission
from luce.demo.drawing import draw, random_chart
from luce.demo.submissions import png
from luce.engines.loaded import LoadedModel
from luce.errors import LuceError
from luce.sampling.parameters import SamplingParams
from luce.scheduling.prefix_index import PrefixStats
from luce.trace.traffic.request import TrafficRequest
from tests.e2e.demo_service import Answer, read, serving
from tests.sim.requests import GAP, places_of
from tests.sim.watch import Watch

__all__ = ["LENGTHS", "MOST_TOKENS", "Day", "Machine", "answers_alone", "serve", "submissions_of"]

LENGTHS = 32
"""What lengths of the trace's prompts are divided by."""
MOST_TOKENS = 32
"""Of an answer, which is as long as the trace's otherwise: divided, too, hardly any would outgrow its first block."""


@attrs.frozen
class Machine:
    """A server that is full now and then, and on which memory is short."""

    slots: int = 8
    block_size: int = 8
    blocks: int = 264
    context: int = 2048
    prefill: int = 64
    depth: int = 1
    park_bytes: int = 20_000_000

    def tight_for(self, submissions: Sequence[Submission]) -> Machine:
        """The same with a context as long as the longest that fits now, and memory for one such or for half of what as
        many of them as there are slots take in the mean, whichever is more: answers outgrow what was promised them, and
        requests give way."""
        rows = [_rows(one) for one in submissions if not self.refuses(one)]
        least = max(max(rows), sum(rows) * self.slots // (2 * len(rows)))
        return attrs.evolve(self, context=max(rows), blocks=-(-least // self.block_size))

    def refuses(self, submission: Submission) -> bool:
        """The one rule: prompt and answer do not fit into the context."""
        return _rows(submission) > self.context


def _rows(submission: Submission) -> int:
    return len(submission.prompt.token_ids) + (submission.params.max_tokens or 0)


@attrs.define
class Day:
    """What came of it."""

    answers: dict[int, Answer]
    refused: dict[int, LuceError]
    seconds: float
    """By the wall, from the first arrival to the last end."""
    prefixes: PrefixStats
    saves: int
    drops: int
    steps: int
    lanes: float
    """Requests in a step, in the mean."""
    pictures: int
    """That were encoded."""

    @property
    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers.values())


def submissions_of(model: LoadedModel, requests: Iterable[TrafficRequest]) -> list[Submission]:
    """The trace's requests with shorter lengths; every other one is greedy, all others sample."""
    words = _Words(model)
    return [
        _submission(model, words, request.scaled(LENGTHS), min(request.output_tokens, MOST_TOKENS), number)
        for number, request in enumerate(requests)
    ]


class _Words:
    """Texts of ordinary tokens."""

    def __init__(self, model: LoadedModel) -> None:
        tokenizer = model.tokenizer
        ids = [index for index in range(tokenizer.num_token_ids) if not tokenizer.is_special(index)]
        self._ids = np.array(ids, np.int32)

    def __call__(self, name: str, rows: int) -> npt.NDArray[np.int32]:
        """[rows]; more rows of one name begin with fewer ones."""
        drawn = np.frombuffer(shake_128(name.encode()).digest(2 * rows), "<u2")
        return self._ids[drawn % len(self._ids)]


def _submission(
    model: LoadedModel, words: _Words, request: TrafficRequest, tokens: int, number: int
) -> Submission:
    rng = Random(f"charts {number}")
    images = tuple(
        model.preparer.prepare_image(png(draw(random_chart(rng, test=True))), field="messages")
        for _ in request.images
    )
    rows = max(request.prompt_tokens - sum(request.images), 1)
    text, turn_ends, answer_start = places_of(request, rows, f"request {number}", words)
    pad = model.tokenizer.id_of("<|image_pad|>")
    ids = [int(one) for one in text[:GAP]] + [pad] * len(images) + [int(one) for one in text[GAP:]]
    prompt = model.preparer.from_ids(ids, images)  # type: ignore[attr-defined]
    wider = len(prompt.token_ids) - len(text)
    if request.prefix_blocks:
        ends = tuple(end + wider for end in turn_ends if GAP < end < answer_start)
        prompt = attrs.evolve(prompt, turn_ends=ends, answer_start=answer_start + wider)
    params = SamplingParams(
        temperature=float(number % 2),
        seed=number,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=2,
        eos_token_ids=model.eos_token_ids,
    )
    return Submission(f"r{number}", prompt, images, params)


async def serve(machine: Machine, submissions: Sequence[Submission], arrivals: Sequence[float]) -> Day:
    """All of them on a fresh server, each at its time in seconds. Looks on while they run: rules that must hold at
    every step, one end for each, nothing held afterwards."""
    answers: dict[int, Answer] = {}
    refused: dict[int, LuceError] = {}
    async with serving(
        machine.slots,
        block_size=machine.block_size,
        blocks=machine.blocks,
        context=machine.context,
        prefill_budget=machine.prefill,
        depth=machine.depth,
        max_queued=len(submissions),
        max_queued_tokens=1 << 40,
        park_bytes=machine.park_bytes,
        prefix_bytes=200_000_000,
        image_bytes=1 << 20,
    ) as service:
        watch = Watch(service)
        began = trio.current_time()

        async def client(number: int) -> None:
            try:
                handle = service.submit(submissions[number])
            except LuceError as error:
                refused[number] = error
            else:
                answers[number] = await read(handle)

        async with trio.open_nursery() as crowd:
            for number, arrival in enumerate(arrivals):
                await trio.sleep_until(began + arrival)
                crowd.start_soon(client, number)
        seconds = trio.current_time() - began
        while service.requests:
            await service._forgotten.park()
        assert len(service.timers) == 0
        service.encoder.cache.check_integrity()
        assert not service.encoder.cache.queue and not service.encoder.cache.requests
        memory, metrics = service.loop.memory, service.loop.metrics
        assert memory.saved_bytes == 0 and not memory.work
        pictures = service.encoder.images_encoded
    assert not watch.broken, watch.broken[:5]
    assert not watch.live and len(watch.ended) == len(answers)
    return Day(
        answers,
        refused,
        seconds,
        memory.cache.index.stats,
        metrics.saves,
        metrics.drops,
        metrics.steps,
        metrics.lanes / metrics.steps,
        pictures,
    )


async def answers_alone(machine: Machine, submissions: Sequence[Submission]) -> list[Answer]:
    """Each by itself on its own fresh server, its prompt in one plan."""
    answers = []
    for submission in submissions:
        async with serving(
            1, block_size=machine.block_size, context=machine.context, prefill_budget=None
        ) as service:
            answers.append(await read(service.submit(submission)))
    return answers
