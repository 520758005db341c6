"""Clients with habits, real actors, a fake device and faults, all in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import attrs
import trio

from luce.actors.choices import choices_of
from luce.actors.flight import StepMetrics
from luce.actors.mailbox import Mailbox
from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import End
from luce.engines.fake.engine import Mode
from luce.engines.fake.times import Times
from luce.engines.seam import Capabilities, SampledToken, WorkKind
from luce.errors import CapacityError, DeadlineError, DeviceError, LuceError, RequestError
from luce.scheduling.prefix_index import PrefixStats
from tests.actors.harness import check_clean, expected, make_service, settled
from tests.sim.virtual_time import run_seeded
from tests.sim.watch import Watch, WatchedEngine, watched_mailboxes, watched_plan
from tests.trace.recording import StepRecorder

__all__ = ["Client", "Faults", "Report", "Result", "check_results", "simulate"]


@attrs.frozen
class Client:
    """Who asks, when, and how well behaved."""

    arrival: float
    submission: Submission
    choices: int = 1
    """Answers that it asks for."""
    leaves_after: int | None = None
    """Pieces after which it goes away."""
    patience: float = inf
    """Seconds after which it goes away, whatever it has got."""
    pauses_after: int | None = None
    """Pieces after which it takes nothing for :attr:`pause` seconds."""
    pause: float = 0.0

    @property
    def stays(self) -> bool:
        return self.leaves_after is None and self.patience == inf


@attrs.frozen
class Faults:
    """How often things fail, a second; 0 is never."""

    rows: float = 0.0
    steps: float = 0.0
    copies: float = 0.0
    pictures: frozenset[bytes] = frozenset()
    """Digests of those that cannot be encoded."""


@attrs.define
class Result:
    """What a client got."""

    client: Client
    submission: Submission
    others: list[Result] = attrs.field(factory=list)
    """Of its further choices, once they were taken."""
    refused: LuceError | None = None
    tokens: list[SampledToken] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)
    """When each piece came, in virtual seconds."""
    end: End | None = None
    cached: int = 0


@attrs.frozen
class Report:
    """What came of a run."""

    results: Sequence[Result]
    log: str
    """Digest of all events of all machines, in order, and of all plans. Clock times are no part of it."""
    events: Counter[str]
    longest: Mapping[str, int]
    """Mailboxes."""
    metrics: StepMetrics
    prefixes: PrefixStats
    seconds: float
    """Of virtual time."""
    pictures: Counter[bytes]

    def count(self, reason: str) -> int:
        return sum(result.end is not None and result.end.reason == reason for result in self.results)

    @property
    def refused(self) -> int:
        return sum(result.refused is not None for result in self.results)


def simulate(
    seed: int,
    clients: Sequence[Client],
    capabilities: Capabilities,
    times: Times,
    faults: Faults | None = None,
    trace: Path | None = None,
    **options: Any,
) -> Report:
    """Serve the clients, in order of arrival, and look on.

    ``trace``: record it there.

    ``options`` are those of the server. Those of host memory have to be among them: left out, they depend on how
    much of it is free.
    """
    assert {"park_bytes", "prefix_bytes", "image_bytes"} <= options.keys()
    engine = WatchedEngine(capabilities, times=times, mode=Mode.MANUAL)
    recorder = None if trace is None else StepRecorder(trace)
    return run_seeded(
        seed, lambda: _run(engine, clients, faults or Faults(), random.Random(seed), recorder, options)
    )


async def _run(
    engine: WatchedEngine,
    clients: Sequence[Client],
    faults: Faults,
    rng: random.Random,
    recorder: StepRecorder | None,
    options: Mapping[str, Any],
) -> Report:
    service = make_service(engine, watched_plan, recorder=recorder, **options)
    wiring, watch = service._wiring, Watch(service)
    results = [Result(client, client.submission) for client in clients]

    def kind_of(mailbox: Mailbox[Any]) -> str:
        return "loop" if mailbox is wiring.loop else "encoder" if mailbox is wiring.encoder else "request"

    for digest in sorted(faults.pictures):
        engine.fail_encode(digest)
    with watched_mailboxes(kind_of) as longest:
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            nursery.start_soon(engine.drive)
            nursery.start_soon(_break_things, service, engine, faults, rng)
            async with trio.open_nursery() as crowd:
                for result in results:
                    await trio.sleep_until(result.client.arrival)
                    crowd.start_soon(_ask, service, result)
            await settled(service)
            seconds = trio.current_time()
            await trio.sleep(
                1.0
            )  # a picture that was begun is finished, whether anybody is left who wants it or not
            check_clean(service, engine)
            service.drain()
            await service.stopped()
            nursery.cancel_scope.cancel()
    check_clean(service, engine)
    results = [one for result in results for one in (result, *result.others)]
    assert not watch.broken, watch.broken[:5]
    assert not watch.live and len(watch.ended) == sum(result.refused is None for result in results)
    return Report(
        results,
        watch.events.hexdigest() + engine.plans.hexdigest(),
        watch.counts,
        dict(longest),
        service.loop.metrics,
        service.loop.memory.cache.index.stats,
        seconds,
        engine.pictures,
    )


async def _ask(service: Service, result: Result) -> None:
    client = result.client
    submissions = choices_of(client.submission, client.choices)
    try:
        handles = service.submit_all([unused(submission) for submission in submissions])
    except LuceError as error:
        result.refused = error
        return
    result.others = [Result(client, submission) for submission in submissions[1:]]
    results = [result, *result.others]
    with trio.move_on_after(client.patience) as scope:
        await _read(client, handles, results)
    if scope.cancelled_caught:
        for handle in handles:
            handle.cancel()
        await _read(client, handles, results)
    for handle, one in zip(handles, results, strict=True):
        one.cached = handle.usage.cached_tokens
        assert await handle.next() is one.end  # there is one, and it stays


async def _read(client: Client, handles: Sequence[Handle], results: Sequence[Result]) -> None:
    """Whichever has something, to all ends."""
    pieces = 0
    while any(result.end is None for result in results):
        came = False
        for handle, result in zip(handles, results, strict=True):
            item = handle.take() if result.end is None else None
            if isinstance(item, End):
                result.end = item
            elif item is not None:
                result.tokens += item.tokens
                result.times.append(trio.current_time())
                pieces += 1
                if pieces == client.leaves_after:
                    for one in handles:
                        one.cancel()
                if pieces == client.pauses_after:
                    await trio.sleep(client.pause)
            came = came or item is not None
        if not came:
            await handles[0].arrival()


async def _break_things(service: Service, engine: WatchedEngine, faults: Faults, rng: random.Random) -> None:
    kinds = {"rows": faults.rows, "steps": faults.steps, "copies": faults.copies}
    total = sum(kinds.values())
    if not total:
        return
    while True:
        await trio.sleep(rng.expovariate(total))
        [kind] = rng.choices(list(kinds), list(kinds.values()))
        if kind == "steps":
            engine.fail_step(service.loop._number + 1)
        elif kind == "copies":
            kinds_of_copies = [kind for kind in WorkKind if engine.does(kind)]
            engine.fail_work(rng.choice(kinds_of_copies))
        elif engine.open_slots:
            engine.fail_row(rng.choice(sorted(engine.open_slots)))


# -- judging ----------------------------------------------------------------------------------------------------------


def check_results(results: Sequence[Result], faults: Faults, *, every: int = 1) -> int:
    """Each client was refused by a rule or got one end that fits what it did; of every ``every``-th one, each token is
    that of the request alone. Returns how many answers were compared.
    """
    compared = 0
    for number, result in enumerate(results):
        client, end = result.client, result.end
        name, asked = result.submission.id, result.submission.params.max_tokens
        if result.refused is not None:
            assert isinstance(result.refused, CapacityError | RequestError), (name, result.refused)
            assert end is None and not result.tokens
            continue
        assert end is not None, name
        if end.reason == "length":
            assert len(result.tokens) == asked, name
        elif end.reason == "cancelled":
            assert not client.stays or client.pause, name
        else:
            assert end.reason == "error" and end.error is not None and stated(end.error, faults), (name, end)
        if number % every == 0:
            assert result.tokens == alone(result.submission, len(result.tokens)), (
                f"{name}: other tokens than alone"
            )
            compared += 1
    return compared


def stated(error: LuceError, faults: Faults) -> bool:
    """Is it one of the reasons for which a request may fail?"""
    said = str(error)
    if isinstance(error, DeviceError):
        return "injected" in said and faults != Faults()
    if isinstance(error, DeadlineError):
        return "(timeout)" in said
    return isinstance(error, CapacityError) and ("waited" in said or "nothing else can give way" in said)


def unused(submission: Submission) -> Submission:
    """The same with a constraint of its own: what is compared with later is not what a request has used."""
    constraint = submission.constraint
    return submission if constraint is None else attrs.evolve(submission, constraint=constraint.fork())


def alone(submission: Submission, count: int) -> list[SampledToken]:
    """The first ``count`` tokens of a request, computed alone and row by row."""
    return expected(submission, count) if count else []
