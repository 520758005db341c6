"""How rates and pauses follow from when pieces came."""

from __future__ import annotations

import random

import msgspec
import pytest
import trio

from luce.bench.client import Answer, Ask, Job, run
from luce.bench.engine_points import Plan
from luce.bench.http_points import _rate_together, _unshown, _waits
from luce.bench.running import load_options, traffic_of
from luce.engines.load_model import LoadOptions, demo_model, open_model
from luce.errors import DeviceError
from luce.text.detokenizer import Detokenizer


def answer(*pieces: float, tokens: int = 0) -> Answer:
    return Answer(pieces[0] - 1, list(pieces), pieces[-1], tokens or len(pieces), 3)


def test_a_rate_counts_only_while_all_stream() -> None:
    """The first one began at 1, the last one at 4; the first one to end is over at 8."""
    found = _rate_together([answer(1, 2, 3, 4, 5, 6, 7, 8), answer(4, 6, 8, 10, 12)])
    assert found == (4 + 2) / 4
    doubled = _rate_together([answer(1, 2, 3, 4, 5, 6, 7, 8, tokens=16), answer(4, 6, 8, 10, 12)])
    assert doubled == (8 + 2) / 4
    with pytest.raises(DeviceError, match="never streamed together"):
        _rate_together([answer(1, 2), answer(3, 4)])


def test_a_pause_counts_if_any_of_it_is_within() -> None:
    pieces = [1.0, 2.0, 5.0, 6.0, 10.0]
    assert _waits(pieces, 2.5, 5.5) == [3.0, 1.0]
    assert _waits(pieces, 5.5, 6.5) == [1.0, 4.0]
    with pytest.raises(DeviceError, match="had ended"):
        _waits(pieces, 11.0, 12.0)


def test_every_token_of_a_pause_has_text_of_its_own() -> None:
    """Some ids of a byte vocabulary end in the middle of a character; an answer without them shows each token."""
    tokenizer = open_model(demo_model(), LoadOptions(slots=1), fitting=False).tokenizer
    assert tokenizer is not None
    count = min(tokenizer.special_ids.values())
    unshown = _unshown(tokenizer, count)
    assert 0 < len(unshown) < count // 20
    rng = random.Random(0)
    ids = [token for token in (rng.randrange(count) for _ in range(5000)) if token not in unshown]
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    assert all(detokenizer.feed(token) for token in ids)
    assert any(not Detokenizer(tokenizer).feed(token) for token in unshown), "the trap is set"


def test_a_context_holds_the_pictures_that_are_encoded_alone() -> None:
    """What a device takes of a picture follows from the context."""
    plan = Plan((1,), (64,), (64,), (), (300,), 64, 1, 1, 0.1, parts=frozenset({"pictures"}))
    opened = open_model(demo_model(), LoadOptions(slots=1), fitting=False)
    traffic = traffic_of(plan, 16, opened)
    ((tokens, _),) = traffic.pictures
    context = load_options(plan, traffic, opened, "cpu").context
    assert context is not None and context >= tokens > 200


async def _server(stream: trio.SocketStream, said: list[bytes], got: list[bytes]) -> None:
    async with stream:
        request = b""
        while not request.endswith(b"}"):
            request += await stream.receive_some(1 << 16)
        got.append(request)
        for part in said:
            await stream.send_all(part)


def ask(behind: tuple[int, int] | None = None) -> Ask:
    return Ask("/v1/completions", msgspec.Raw(b'{"stream": true}'), behind)


HEAD = b"HTTP/1.1 %d OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


STREAM = [
    HEAD % 200,
    chunk(b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'),
    chunk(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi'),
    chunk(b'ces": [{"text": "b"}]}\n\n: comment\n\n'),
    chunk(
        b'data: {"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 5}}\n\ndata: [DONE]\n\n'
    ),
    b"0\r\n\r\n",
]


def asked(said: list[bytes], asks: list[Ask]) -> tuple[list[Answer], list[bytes]]:
    got: list[bytes] = []

    async def main() -> list[Answer]:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, lambda stream: _server(stream, said, got), listeners)
            port = listeners[0].socket.getsockname()[1]
            answers = await run(Job("127.0.0.1", port, asks))
            nursery.cancel_scope.cancel()
            return answers
        raise AssertionError

    return trio.run(main), got


def test_pieces_of_text_are_noted_when_they_come() -> None:
    answers, got = asked(STREAM, [ask(), ask(behind=(0, 2))])
    assert [(len(one.pieces), one.tokens, one.prompt_tokens, one.error) for one in answers] == [
        (2, 7, 5, None)
    ] * 2
    assert answers[1].asked >= answers[0].pieces[1]  # it was sent behind the first one's second piece
    assert got[0].startswith(b"POST /v1/completions HTTP/1.1\r\n") and got[0].endswith(b'{"stream": true}')


def test_a_request_behind_one_that_has_ended_is_sent_all_the_same() -> None:
    answers, _ = asked(STREAM, [ask(), ask(behind=(0, 99))])
    assert [one.tokens for one in answers] == [7, 7]


@pytest.mark.parametrize(
    "said",
    [
        [HEAD % 503, chunk(b'{"error": {"message": "full"}}'), b"0\r\n\r\n"],
        [HEAD % 200, chunk(b'data: {"error": {"message": "full"}}\n\n'), b"0\r\n\r\n"],
    ],
)
def test_what_is_no_answer_is_told(said: list[bytes]) -> None:
    answers, _ = asked(said, [ask()])
    assert answers[0].error is not None and "full" in answers[0].error
