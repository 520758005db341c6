"""Stop strings, characters in pieces, usage and silence in streams (B88, B92, B94, B96)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import SlotSpec
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams
from tests.faults.whole import SETTINGS, alone, ask, counted, live, picture, shown, text_of
from tests.http.conftest import data_url
from tests.http.fake_model import live as fake_live
from tests.http.test_connections import request
from tests.http.test_service import body, streamed, whole

pytestmark = pytest.mark.trio


def content_of(events: list[str]) -> str:
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("settings", SETTINGS[1:3])
async def test_b88_stops_inside_tokens_streamed_and_whole(settings: dict[str, Any]) -> None:
    """Stops of 1 to 15 characters cut from an answer whose tokens are of several characters."""
    fields = {
        "logit_bias": {"258": 14, "265": 14, "262": 13, "70": 13},
        "repetition_penalty": 1.2,
        "max_tokens": 28,
    }
    (free,) = await alone([ask("Say", **fields)])
    text = text_of(free)
    sizes = [len(bytes(entry["bytes"]).decode("utf-8", "replace")) for entry in shown(free)]
    starts = {sum(sizes[:n]) for n in range(len(sizes))}
    assert max(sizes) >= 2, "the trap: tokens of several characters"
    async with live(**settings) as server:
        inside = 0
        bodies, expected = [], []
        for length in range(1, 16):
            start = 3 + length % 7
            stop = text[start : start + length]
            place = text.index(stop)
            inside += place not in starts or place + length not in starts
            for stops in ([stop], ["never", stop + "never", stop], [stop[:-1] + "\0", stop]):
                for include in (False, True):
                    bodies.append(ask("Say", **fields, stop=stops, include_stop_str_in_output=include))
                    expected.append(text[: place + (length if include else 0)])
        answers = await server.all(bodies)
        assert [text_of(answer) for answer in answers] == expected
        assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"stop"}
        for length in (1, 5, 15):
            asked = bodies[6 * length - 6]
            assert content_of(await server.events(asked)) == expected[6 * length - 6]
        never = ask("Say", **fields, stop=[text[3:9] + "\0", text[-5:] + "\0", "\0"])
        assert content_of(await server.events(never)) == text, "what was held back comes out at the end"
        assert inside >= 5, "the trap: stops begin or end inside tokens"


LINES = ["👩‍👩‍👧‍👦 family", "한국어 조선말", "नमस्ते दुनिया", "🇩🇪🏳️‍🌈 é"]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b92_characters_in_pieces_over_http(line: str, depth: int) -> None:
    """One byte a token, cut at each byte by max_tokens: whole characters, and one mark for a cut one at the end."""
    data = line.encode()

    def script(spec: SlotSpec, index: int) -> int | None:
        return data[index] if index < len(data) else None

    async with fake_live(FakeEngine(mode=Mode.INLINE, script=script), depth=depth) as server:
        async with server.server.http() as client:
            cuts = range(1, len(data) + 1) if depth == 1 else (5, len(data))
            broken = 0
            for cut in cuts:
                expected = data[:cut].decode("utf-8", "replace")
                broken += "�" in expected
                answer = await whole(client, body(max_tokens=cut))
                assert answer["choices"][0]["message"]["content"] == expected
                assert answer["usage"]["completion_tokens"] == cut
        assert depth == 2 or broken > len(line) // 3, "the trap: characters are cut"
        text, reason = await streamed(server, body(max_tokens=len(data)))
        assert (text, reason) == (line, "length") and "�" not in text


def _parsed(events: list[str]) -> list[dict[str, Any]]:
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize("settings", SETTINGS[1:3])
async def test_b94_one_usage_chunk_last_and_equal_to_the_whole_answer(settings: dict[str, Any]) -> None:
    """Text, pictures, stop string and stop id."""
    text = (await alone([ask("Hello", max_tokens=20)]))[0]
    bodies = {
        "length": ask("Hello", max_tokens=20),
        "pictures": ask(picture(1), picture(2, 64, 64), "Hello"),
        "stop string": ask("Hello", max_tokens=20, stop=[text_of(text)[4:6]]),
        "eos": ask("Hello", max_tokens=20, ignore_eos=False, logit_bias={"266": 30}),
        "no logprobs": ask("Hello", logprobs=None, top_logprobs=None),
    }
    async with live(**settings) as server:
        answers = dict(zip(bodies, await server.all(list(bodies.values())), strict=True))
        for name, asked in bodies.items():
            *chunks, last = _parsed(await server.events(asked | {"stream_options": {"include_usage": True}}))
            assert last["choices"] == [] and counted(last) == counted(answers[name]), name
            assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
            assert [bool(chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [False] * (
                len(chunks) - 1
            ) + [True]
            without = _parsed(await server.events(asked))
            assert all("usage" not in chunk for chunk in without) and len(without) == len(chunks)
        prompt = answers["pictures"]["usage"]["prompt_tokens"] - answers["length"]["usage"]["prompt_tokens"]
        # 6 and 16 rows, and the two marks around each
        assert prompt == 6 + 16 + 4, "pictures count in prompt_tokens"
        assert {answer["usage"]["completion_tokens"] for answer in answers.values()} >= {20, 1, 10}


async def test_b94_a_stream_that_breaks_has_no_usage_and_no_end() -> None:
    engine = FakeEngine(times=Times(step=0.01))
    async with fake_live(engine) as server, await server.server.connect() as connection:
        asked = body(max_tokens=40, stream=True, stream_options={"include_usage": True})
        await connection.send_all(request(asked, headers="Connection: close\r\n"))
        data = b""
        async for piece in connection:
            data += piece
            if b'"content":' in data and engine.open_slots:
                for slot in engine.open_slots:
                    engine.fail_row(slot)
    assert b'"error"' in data and b"[DONE]" not in data and b'"completion_tokens"' not in data


@pytest.mark.parametrize("settings", [{}, {"prefix_bytes": 0}], ids=["shared", "no prefix cache"])
async def test_b94_n_of_two_has_one_usage_chunk_that_counts_the_prompt_once(settings: dict[str, Any]) -> None:
    """With text and with a picture; the counts are those of the whole answer and of the choices alone."""
    for parts in (["Hello"], [picture(1), "Hello"]):
        asked = ask(*parts, max_tokens=12, temperature=1.0, seed=5)
        second = SamplingParams(seed=5).for_choice(1).seed
        async with live(**settings) as server:
            lone, other = await server.all([asked, asked | {"seed": second}])
            (whole,) = await server.all([asked | {"n": 2}])
            streamed = await server.events(asked | {"n": 2, "stream_options": {"include_usage": True}})
            *chunks, last = _parsed(streamed)
        assert last["choices"] == [] and counted(last) == counted(whole)
        assert whole["usage"]["prompt_tokens"] == lone["usage"]["prompt_tokens"]
        assert whole["usage"]["completion_tokens"] == 24
        assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
        ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(ends) == [0, 1]
        assert whole["choices"] == [lone["choices"][0], other["choices"][0] | {"index": 1}]
        assert lone["choices"][0] != other["choices"][0], "the trap: their seeds make a difference"


@pytest.mark.parametrize("what", ["prefill", "queue", "encode"])
async def test_b96_a_silent_wait_is_filled_with_comments(what: str) -> None:
    """A second of prefill, in the queue or for a picture: the first byte at once, then something all the time."""
    times = {"prefill": Times(step=1.0), "queue": Times(step=0.1), "encode": Times(patch=1.0 / 16)}[what]
    engine = FakeEngine(fake_capabilities(num_slots=1), times=times)
    pictures = [data_url()] if what == "encode" else []
    async with fake_live(engine, HttpOptions(keep_alive=0.1)) as server:
        if what == "queue":
            blocker = await server.server.connect()
            await blocker.send_all(request(body("first", max_tokens=12, stream=True)))
            begun = b""
            while b'"content"' not in begun:  # it has the slot
                begun += bytes(await blocker.receive_some())
        async with await server.server.connect() as connection:
            asked = body("waits", *pictures, max_tokens=2, stream=True)
            await connection.send_all(request(asked, headers="Connection: close\r\n"))
            raw = b"".join([bytes(piece) async for piece in connection])
        if what == "queue":
            await blocker.aclose()
    blocks = _unchunked(raw).split(b"\n\n")
    assert blocks.pop() == b""
    comments = [block for block in blocks if block.startswith(b":")]
    events = [block for block in blocks if not block.startswith(b":")]
    assert len(comments) >= 5, "the trap: it was silent for most of a second"
    assert all(comment == b": keep-alive" for comment in comments)
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    assert events[-1] == b"data: [DONE]"
    assert [json.loads(event[6:])["object"] for event in events[:-1]] == ["chat.completion.chunk"] * (
        len(events) - 1
    )
    assert blocks[0].startswith(b"data: "), "the first event comes before the silence"


def _unchunked(raw: bytes) -> bytes:
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    data = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        data, rest = data + rest[:count], rest[count + 2 :]
    return data
