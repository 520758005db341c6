"""Requests that give way and come back, on both engines: no answer shows it.

The reports name preemption as what most of their faults need besides (their arming rule counts it), so its rows are
run here once more with every request parked: positions (B16, B63), recurrent state (B47), pictures (B12, B38), options
(B71) and counts (B76). Parked is by a policy that needs no pressure, so that every request is, at places that
are chosen; then by a pool that is too small.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.harness import read, settled
from tests.faults.parking import DROP, SAVE, ParkEveryone
from tests.faults.test_serving import option_bodies, same_stream
from tests.faults.whole import ENGINES, alone, ask, live, picture, turn

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("engine", ENGINES)]

WAYS = {
    "saved": ((SAVE, 2), (SAVE, 5)),
    "dropped": ((DROP, -9), (DROP, 2), (DROP, 5)),
    "both": ((DROP, 1), (SAVE, 3), (DROP, 6)),
}
WIDE, TALL = (32, 160), (160, 32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b71_options_mean_the_same_after_parking(engine: str, way: str, depth: int) -> None:
    """Seeds, penalties, bias, stops, minimum lengths and log-probabilities of an answer in two or three pieces."""
    bodies = option_bodies()
    references = await alone(bodies, engine)
    policy = ParkEveryone(*WAYS[way])
    async with live(engine=engine, policy=policy, depth=depth, prefill_budget=20, snapshots=0) as server:
        assert await server.all(bodies) == references
        metrics = server.service.loop.metrics
    assert metrics.resumes == metrics.saves + metrics.drops > 1.5 * len(bodies), "the trap: they are parked"
    kinds = {kind for kind, _ in WAYS[way]}
    assert (metrics.saves >= 20) == (SAVE in kinds) and (metrics.drops >= 20) == (DROP in kinds), metrics


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("snapshots", [0, 32])
async def test_b12_b16_b63_positions_and_pictures_after_parking(
    engine: str, way: str, snapshots: int
) -> None:
    """Prompts of different lengths with wide, tall and several pictures: deltas, rows and states are their own; a
    request that is dropped is computed again without its pictures being encoded again."""
    bodies = [
        ask(picture(1, *WIDE), "What?", max_tokens=16),
        ask("Look at this ", picture(2, *TALL), " and this ", picture(3, *WIDE), max_tokens=16),
        ask("Words alone, of some length, to be on the safe side", max_tokens=16),
        ask(max_tokens=16)
        | {
            "messages": [
                turn("first", picture(4)),
                {"role": "assistant", "content": "ok"},
                turn(picture(5), "now"),
            ]
        },
    ]
    references = await alone(bodies, engine)
    policy = ParkEveryone(*WAYS[way])
    settings: dict[str, Any] = {"prefill_budget": 13, "depth": 2, "image_bytes": 0, "snapshots": snapshots}
    async with live(engine=engine, policy=policy, **settings) as server:
        deltas = {server.submission(body).prompt.rope_delta for body in bodies}
        lengths = {reference["usage"]["prompt_tokens"] for reference in references}
        assert len(deltas) == len(lengths) == 4, "the trap: no two may be mixed up"
        for _ in range(2):
            assert await server.all(bodies) == references
        assert sum(policy.parked.values()) == 2 * 4 * len(WAYS[way]), "the trap: all are parked each time"
        assert policy.moved >= 4, "the trap: they come back to other slots"
        # From the cache the second round needs none of them any more.
        assert server.service.encoder.images_encoded == (5 if snapshots else 10)


@pytest.mark.parametrize("way", WAYS)
async def test_b76_streams_and_late_readers_get_each_token_once(engine: str, way: str) -> None:
    body = ask("Say something", max_tokens=14, stream_options={"include_usage": True})
    plain = {key: value for key, value in body.items() if key != "stream_options"}
    (reference,) = await alone([plain], engine)
    policy = ParkEveryone(*WAYS[way])
    async with live(engine=engine, policy=policy, depth=2) as server:
        same_stream(await server.events(body), reference)
        handle = server.submit(plain)
        await settled(server.service)
        late = await read(handle)
    assert sum(policy.parked.values()) == 2 * len(WAYS[way]), "the trap: both are parked"
    assert len(late.tokens) == handle.completion_tokens == 14
    assert late.text == reference["choices"][0]["message"]["content"]


# -- under pressure ------------------------------------------------------------------------------------------------

TIGHT: dict[str, Any] = {"context": 192, "blocks": 20}
"""Four answers of nine blocks each on twenty."""


def growing() -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = [{}, {"temperature": 1, "seed": 3}, {"repetition_penalty": 1.3}, {}]
    parts = [["Hi"], [picture(1), "what?"], ["Tell me more of it"], ["And ", picture(2, 48, 64)]]
    return [ask(*part, max_tokens=100, **field) for part, field in zip(parts, fields, strict=True)]


@pytest.mark.parametrize("park", [1 << 30, 0, "one"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_b45_b71_a_pool_that_is_too_small_changes_no_answer(
    engine: str, park: int | str, depth: int
) -> None:
    """Saved, dropped, or saved as far as host memory goes and dropped beyond."""
    bodies = growing()
    references = await alone(bodies, engine, context=192)
    async with live(engine=engine, **TIGHT) as server:
        one = server.model.engine.capabilities.saved_bytes(120)
    park_bytes = one if isinstance(park, str) else park
    async with live(engine=engine, **TIGHT, depth=depth, park_bytes=park_bytes, snapshots=0) as server:
        most = 0

        def look(_: object) -> None:
            nonlocal most
            most = max(most, server.service.loop.memory.saved_bytes)

        server.service.events.listen(look)
        assert await server.all(bodies * 2) == references * 2
        metrics = server.service.loop.metrics
    assert most <= park_bytes, "more is parked than there is room for"
    assert (metrics.saves > 0) == (park != 0), "the trap: they are saved"
    assert (metrics.drops > 0) == (park != 1 << 30), "the trap: they are dropped"


async def test_without_pressure_nobody_is_parked(engine: str) -> None:
    """Arms the test above: it is the small pool that parks."""
    bodies = growing()
    async with live(engine=engine, context=192) as server:
        assert await server.all(bodies) == await alone(bodies, engine, context=192)
        metrics = server.service.loop.metrics
    assert metrics.saves == metrics.drops == metrics.resumes == 0
