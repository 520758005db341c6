"""Pictures and the prefix cache, over HTTP on both engines (B02, B04, B07, B09, B10, B12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.test_images import two_turns
from tests.faults.whole import ENGINES, Live, alone, ask, cached, live, picture, same_part, url
from tests.vision.pictures import bmp, noise

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("engine", ENGINES)]

SETTINGS: list[dict[str, Any]] = [
    {"slots": 1, "prefill_budget": 7, "depth": 2},
    {"slots": 4, "prefill_budget": None, "depth": 1},
]


async def in_turn(server: Live, bodies: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Answers, one request after the other, and how much of each prompt came from the cache."""
    answers, hits = [], []
    for body in bodies:
        response = await server.post(body)
        assert response.status_code == 200, response.text
        answers.append(same_part(response.json()))
        hits.append(cached(response))
    return answers, hits


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b02_the_picture_is_part_of_the_key(engine: str, settings: dict[str, Any]) -> None:
    """A, B, A: the same ids, other pixels. B shares what stands before the picture, the last A all of it."""
    text = "Some words before it, more than one block of sixteen long. "
    bodies = [ask(text, picture(seed), "What is it?") for seed in (1, 2, 1)]
    references = await alone(bodies, engine)
    assert references[0] != references[1], "the trap: the pictures have different answers"
    async with live(engine=engine, **settings) as server:
        one, other = (server.submission(body).prompt for body in bodies[:2])
        assert (one.token_ids == other.token_ids).all(), "the trap: ids do not tell them apart"
        span = one.spans[0]
        answers, hits = await in_turn(server, bodies)
        assert answers == references
        assert hits[0] == 0 and hits[1] <= span.start, hits
        assert hits[2] == one.answer_start > span.start + span.length, "the trap: the last one does hit"


@pytest.mark.parametrize("row", [0, -1])
async def test_b04_files_that_differ_at_their_end_have_their_own_keys(engine: str, row: int) -> None:
    """Two BMPs that differ in one row: the last of the file, which is the first of the pixels, and the last of the
    pixels."""
    pixels = noise(32, 48, seed=4)
    changed = pixels.copy()
    changed[row] = 255 - changed[row]
    files = [bmp(each) for each in (pixels, changed)]
    if row == 0:
        same = next(i for i, (a, b) in enumerate(zip(*files, strict=True)) if a != b)
        assert same > len(files[0]) * 0.9, "the trap: the files are equal up to their end"
    first, second = (ask(url(data, "bmp"), "What?", max_tokens=6) for data in files)
    references = await alone([first, second, first, second], engine)
    assert references[0] != references[1], "the trap: the pictures have different answers"
    async with live(engine=engine) as server:
        answers, hits = await in_turn(server, [first, second, first, second])
        span = server.submission(first).prompt.spans[0]
    assert answers == references
    assert hits[1] <= span.start and min(hits[2:]) >= span.start + span.length


@pytest.mark.parametrize("place", ["image_url", "part"])
async def test_b07_an_id_of_the_client_is_no_key(engine: str, place: str) -> None:
    """A ``uuid`` is refused by name, wherever it stands; pictures of other bytes and sizes keep their own answers."""

    def named(url: str) -> dict[str, Any]:
        body = ask(url, "What?")
        part = body["messages"][0]["content"][0]
        (part if place == "part" else part["image_url"])["uuid"] = "same"
        return body

    pictures = [picture(1), picture(2), picture(3, 64, 48)]
    references = await alone([ask(each, "What?") for each in pictures], engine)
    assert len({str(reference["choices"]) for reference in references}) == 3, "the trap: they differ"
    async with live(engine=engine) as server:
        for each, reference in zip(pictures, references, strict=True):
            response = await server.post(named(each))
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "unknown_field") and "uuid" in error[
                "param"
            ]
            assert await server.all([ask(each, "What?")]) == [reference]
        plain = ask("And now without one")
        assert await server.all([plain]) == await alone([plain], engine)


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b09_one_more_picture_leaves_the_first_one_in_the_cache(
    engine: str, settings: dict[str, Any]
) -> None:
    """Text and A, then the same and B, then the same and C: what came before is neither computed nor encoded again."""
    parts = ["Look at these: ", picture(1), " and ", picture(2, 48, 64), " and ", picture(3)]
    bodies = [ask(*parts[:2]), ask(*parts[:4]), ask(*parts)]
    references = await alone(bodies, engine)
    async with live(engine=engine, image_bytes=0, **settings) as server:
        spans = server.submission(bodies[2]).prompt.spans
        ends = [span.start + span.length for span in spans]
        answers, hits = await in_turn(server, bodies)
        assert answers == references
        assert hits[0] == 0 and ends[0] <= hits[1] <= spans[1].start and ends[1] <= hits[2] <= spans[2].start
        # Rows of pictures are not kept here, so it is the prefix alone that spares the encoder.
        assert server.service.encoder.images_encoded == 3


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("after", [0, 1, 5])
async def test_b10_the_same_picture_request_again(engine: str, after: int, settings: dict[str, Any]) -> None:
    """With 0, 1 and 5 characters behind the picture; rows that come from the cache need no features."""
    body = ask(picture(1, 48, 64), *(["12345"[:after]] if after else []))
    (reference,) = await alone([body], engine)
    async with live(engine=engine, image_bytes=0, **settings) as server:
        answers, hits = await in_turn(server, [body] * 3)
        assert answers == [reference] * 3
        span = server.submission(body).prompt.spans[0]
        assert hits[0] == 0 and min(hits[1:]) >= span.start + span.length, (
            "the trap: it hits past the picture"
        )
        assert server.service.encoder.images_encoded == 1


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b12_pictures_of_several_turns_out_of_the_cache(engine: str, settings: dict[str, Any]) -> None:
    """Two pictures in two turns in every order, twice: what differs in one picture shares what stands before it."""
    a, b, c = picture(1), picture(2, 48, 32), picture(3)
    bodies = [two_turns(a, b), two_turns(a, c), two_turns(b, a), two_turns(c, a)]
    references = await alone(bodies, engine)
    assert len({str(reference) for reference in references}) == 4, "the trap: order shows"
    async with live(engine=engine, **settings) as server:
        spans = [server.submission(body).prompt.spans for body in bodies]
        answers, hits = await in_turn(server, bodies * 2)
        assert answers == references * 2
    ends = [[span.start + span.length for span in both] for both in spans]
    assert hits[0] == 0 and ends[1][0] <= hits[1] <= spans[1][1].start, "A is shared, what follows is not"
    assert hits[2] <= spans[2][0].start and hits[3] <= spans[3][0].start
    assert all(hit >= end[1] for hit, end in zip(hits[4:], ends, strict=True)), (
        "the trap: all are found again"
    )
