"""A request that is cancelled, wherever it is, on both engines (B42, B43, B45, B133).

It ends at once, holds nothing within a step, and neither its neighbours nor whoever asks next can tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from luce.actors.encoder import Encode
from luce.actors.request import Request
from luce.actors.submission import Handle, Submission
from luce.engines.seam import PatchImage, WorkKind
from luce.trace.events import EventRecord
from tests.actors.harness import Answer, make_prompt, read, settled
from tests.actors.harness import ask as submission
from tests.faults.parking import DROP, SAVE, ParkEveryone
from tests.faults.whole import ENGINES, Live, alone_at_service, ask, live, picture

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("engine", ENGINES)]

TOKENS = 14
STATES = (
    "queued",
    "encoding",
    "staging_wait_rows",
    "staging_chunk",
    "decoding",
    "stalled",
    "parked_saved",
    "parked_dropped",
    "ending_finished",
)


@attrs.define
class Pictures:
    """Takes its time over pictures, so that requests wait; for all but the first until the victim does wait."""

    hold: bool
    waits: trio.Event = attrs.field(factory=trio.Event)
    """The victim waits for rows, or has ended."""

    def see(self, record: EventRecord) -> None:
        if record.id == "r5" and {"staging_wait_rows", "ending"} & set(record.configuration):
            self.waits.set()

    def __call__(self, encode: Encode) -> Encode:
        started = 0

        async def run(image: PatchImage) -> Any:
            nonlocal started
            started += 1
            await trio.sleep(0.003)
            if self.hold and started > 1:
                await self.waits.wait()
            return await encode(image)

        return run


@attrs.frozen
class Scene:
    """Requests that meet: two long ones on two slots, then the one that is cancelled, then its twin."""

    victim: Submission
    others: tuple[Submission, ...]

    @classmethod
    def of(cls, server: Live) -> Scene:
        """The victim's prompt begins with a picture, right behind it comes another one: it waits for each of them."""
        images = server.submission(ask(picture(1), picture(2, 48, 64))).images
        prompt = make_prompt(5, 40, images, gap=0)
        victim = attrs.evolve(submission(5, tokens=TOKENS, logprobs=1), prompt=prompt, images=images)
        busy = tuple(submission(n, rows=30 + n, tokens=TOKENS + 5 * n, logprobs=1) for n in (1, 2))
        twin = attrs.evolve(victim, id="twin")
        after = submission(7, rows=20, tokens=5, logprobs=1)
        return cls(victim, (*busy, twin, after))


_ALONE: dict[tuple[str, str], Answer] = {}


async def answer_alone(asked: Submission, engine: str) -> Answer:
    key = (engine, asked.id)
    if key not in _ALONE:
        _ALONE[key] = await alone_at_service(asked, engine)
    return _ALONE[key]


@attrs.define
class Outcome:
    victim: Answer
    at: tuple[str, ...] | None
    """Its states when it handled the cancel; None: it was gone by then."""
    steps_after: int
    """Launched from there to its very end."""
    waiting: set[WorkKind]
    """Copies to or from its slot that were still to be launched then."""
    flying: set[WorkKind]
    """Those that were being made."""


async def run(server: Live, scene: Scene, engine: str, due: Callable[[EventRecord], bool]) -> Outcome:
    """Everybody asks, and the victim is cancelled by a task of its own once ``due``."""
    service = server.service
    now, cancelled = trio.Event(), trio.Event()
    before: tuple[str, ...] = ()
    at: tuple[str, ...] | None = None
    steps = ended = 0
    order = -1
    waiting: set[WorkKind] = set()
    flying: set[WorkKind] = set()
    memory = service.loop.memory

    def is_victim(request: Request) -> bool:
        return request.order == order

    def look(record: EventRecord) -> None:
        nonlocal before, at, steps, ended
        if record.machine == "request" and record.id == scene.victim.id:
            if record.event == "cancel" and at is None:
                at, steps = before, service.loop.metrics.steps
                waiting.update(item.kind for item, owner in memory.work if is_victim(owner))
                flying.update(copies_in_flight(server, is_victim))
            before = record.configuration
            ended = service.loop.metrics.steps
        if not now.is_set() and due(record):
            now.set()
            if record.machine != "encoder" and handles:
                handles[0].cancel()  # at once: what comes next may come before any other task does

    unlisten = service.events.listen(look)
    handles: list[Handle] = []
    answers: dict[str, Answer] = {}

    async def client(asked: Submission, handle: Handle) -> None:
        answers[asked.id] = await read(handle)

    async def cancel(handle: Handle) -> None:
        await now.wait()
        handle.cancel()
        cancelled.set()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as clients:
            for asked in (*scene.others[:-2], scene.victim, *scene.others[-2:]):
                handle = service.submit(asked)
                if asked is scene.victim:
                    order = max(service.requests)
                    handles.append(handle)
                    nursery.start_soon(cancel, handle)
                    if due is stalled:  # nobody reads before it is cancelled
                        clients.start_soon(_read_late, client, asked, handle, cancelled)
                        continue
                clients.start_soon(client, asked, handle)
        now.set()
    await settled(service)
    unlisten()
    for asked in scene.others:
        assert answers[asked.id].tokens == (await answer_alone(asked, engine)).tokens, asked.id
        assert answers[asked.id].end.reason == "length"
    victim = answers[scene.victim.id]
    expected = (await answer_alone(scene.victim, engine)).tokens
    assert victim.tokens == expected[: len(victim.tokens)]
    assert victim.end.reason == "cancelled" or victim.tokens == expected
    assert len(memory.free_slots) == 2 and memory.saved_bytes == 0 and not memory.work
    memory.check_integrity(())
    service.encoder.cache.check_integrity()
    assert not service.encoder.cache.requests
    return Outcome(victim, at, ended - steps if at is not None else 0, waiting, flying)


async def _read_late(client: Any, asked: Submission, handle: Handle, cancelled: trio.Event) -> None:
    await cancelled.wait()
    await client(asked, handle)


def stalled(record: EventRecord) -> bool:
    return record.id == "r5" and "stalled" in record.configuration


def entering(state: str) -> Callable[[EventRecord], bool]:
    if state == "stalled":
        return stalled
    return lambda record: record.id == "r5" and state in record.configuration


@asynccontextmanager
async def serving(engine: str, state: str, depth: int) -> AsyncIterator[Live]:
    """Two slots, small chunks; everybody is saved and dropped once. ``state``: where the victim is cancelled, or ""."""
    pictures = Pictures(hold=state != "")
    async with live(
        engine=engine,
        slots=2,
        prefill_budget=5,
        depth=depth,
        encode=pictures,
        image_bytes=0,
        policy=ParkEveryone((SAVE, 3), (DROP, 7)),
        buffer_limit=2 if state == "stalled" else 1000,
    ) as server:
        server.service.events.listen(pictures.see)
        yield server


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b45_b133_cancelled_in_every_state(engine: str, state: str, depth: int) -> None:
    async with serving(engine, state, depth) as server:
        scene = Scene.of(server)
        outcome = await run(server, scene, engine, entering(state))
        assert outcome.at is not None and state in outcome.at, f"the trap: cancelled in {outcome.at}"
        assert outcome.victim.end.reason == ("length" if state == "ending_finished" else "cancelled")
        assert outcome.steps_after <= depth, "it goes on for nobody"
        again = await read(server.service.submit(scene.victim))
        assert again.tokens == (await answer_alone(scene.victim, engine)).tokens
        policy = server.service.loop.policy
        assert isinstance(policy, ParkEveryone) and policy.parked[SAVE] and policy.parked[DROP]


@pytest.mark.parametrize("kind", [kind for kind in WorkKind if kind is not WorkKind.IMPORT])
@pytest.mark.parametrize("depth", [1, 2])
async def test_b45_cancelled_while_a_copy_is_made(engine: str, kind: WorkKind, depth: int) -> None:
    """Of its state to host memory and back, for the prefix cache and from there."""
    async with serving(engine, "", depth) as server:
        scene = Scene.of(server)
        if kind is WorkKind.ADOPT:
            await read(server.service.submit(attrs.evolve(scene.victim, id="before")))

        def due(_: EventRecord) -> bool:
            return kind in copies_in_flight(server, lambda owner: owner.submission.id == "r5")

        outcome = await run(server, scene, engine, due)
        assert kind in outcome.flying, "the trap: it was being made"
        assert outcome.victim.end.reason == "cancelled" and outcome.steps_after <= depth
        again = await read(server.service.submit(scene.victim))
        assert again.tokens == (await answer_alone(scene.victim, engine)).tokens


def copies_in_flight(server: Live, whose: Callable[[Request], bool]) -> set[WorkKind]:
    return {
        work.kind
        for flight in server.service.loop.flights
        for work, owner in zip(flight.plan.work, flight.moving, strict=True)
        if whose(owner)
    }


@pytest.mark.parametrize("first", range(2))
async def test_b45_cancelled_at_any_event(engine: str, first: int) -> None:
    """Not at the entry of a state alone: while copies wait, are made, or fill a slot; while rows are in flight."""
    reached: set[str] = set()
    async with serving(engine, "", 1 + first % 2) as server:
        scene = Scene.of(server)
        service = server.service
        number, done = first, False
        while not done:
            left = number

            def due(_: EventRecord) -> bool:
                nonlocal left
                left -= 1
                return left < 0

            outcome = await run(server, scene, engine, due)
            reached.update(outcome.at or ())
            done = outcome.at is None or outcome.victim.end.reason == "length"
            number += 29
        assert number > 150 and {"decoding", "parked"} <= reached, "the trap: it was well under way"
        kinds = service.loop.metrics
        assert kinds.saves and kinds.drops


@pytest.mark.parametrize("first", range(4))
async def test_b45_cancelled_as_each_message_comes(engine: str, first: int) -> None:
    """While a copy that it was to get, or that was to be made of it, has not been launched: at each fourth of its own
    events, with nothing in the prefix cache, then with what that left there."""
    reached: set[WorkKind] = set()
    async with serving(engine, "", 1 + first % 2) as server:
        plain = Scene.of(server)
        number, done = first, False
        while not done:
            salt = str(number).encode()  # nothing of the rounds before is found
            victim, *others = (
                attrs.evolve(asked, cache_salt=salt) for asked in (plain.victim, *plain.others[2:3])
            )
            scene = Scene(victim, tuple(others))
            for _ in range(2):
                left = number

                def due(record: EventRecord) -> bool:
                    nonlocal left
                    left -= record.machine == "request" and record.id == "r5"
                    return left < 0

                outcome = await run(server, scene, engine, due)
                reached |= outcome.waiting
                done = outcome.at is None or outcome.victim.end.reason == "length"
            number += 4
    assert number > 20 and reached, "the trap: copies were waiting"
