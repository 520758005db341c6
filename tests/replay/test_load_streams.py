"""Load: answers that are whole, that are not, and that are no stream at all."""

from __future__ import annotations

import pytest

from luce.replay.load.event_stream import Event, EventStream
from luce.replay.load.fire import Limits
from luce.replay.load.request import LoadRequest
from luce.replay.load.tally import Outcome, Tally
from tests.replay.load_case import BUSY, FOREVER, plain, run
from tests.replay.scripted_server import Scripted, Stream

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = TEXT + STOP + USAGE + DONE


def run_stream(given: Stream, asked: LoadRequest | None = None) -> Tally:
    return run(Scripted(fail=lambda body: given), [asked or plain()], Limits(timeout=20.0))


@pytest.mark.parametrize(
    "stream",
    [
        Stream(WHOLE),
        Stream(TEXT + STOP + USAGE + b"data:[DONE]\n\n"),
        Stream(TEXT + STOP + USAGE + b"data: [DONE]"),
        Stream(WHOLE.replace(b"\n", b"\r")),
        Stream(WHOLE.replace(b"\n", b"\r\n")),
        Stream(WHOLE, "close"),
        Stream(WHOLE, "open"),
        Stream(WHOLE + TEXT + b'data: {"error":"late"}\n\n'),
        Stream(WHOLE.replace(b'"choices":[],', b'"choices":null,')),
        Stream(WHOLE.replace(b'"choices":[],', b"")),
        Stream(b": hello\nretry: 3\n\nevent: x\nid: 1\n" + WHOLE.replace(b":[{", b":\ndata: [{")),
        Stream(b"\xef\xbb\xbf" + WHOLE),
    ],
)
def test_answers_that_are_whole(stream: Stream) -> None:
    tally = run_stream(stream)
    assert tally.endings == {"finished": 1}, tally.errors
    assert (tally.prompt_tokens, tally.output_tokens, tally.first.count) == (5, 2, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TEXT + b'event: error\ndata: {"message":"mid"}\n\n' + DONE, "HTTP 200: mid"),
        (TEXT + b"event: error\ndata: oh\n\n" + DONE, "HTTP 200: 'oh'"),
        (TEXT + b'data: {"object":"error","message":"mid","code":500}\n\n' + DONE, "HTTP 200: mid"),
        (TEXT + b'data: {"detail":"mid"}\n\n' + DONE, "HTTP 200: 'mid'"),
        (TEXT + b'data: {"error":{"code":7}}\n\n' + DONE, 'HTTP 200: \'{"error":{"code":7}}\''),
        (DONE, "[DONE] behind 0 of 1 finish reasons"),
        (USAGE + DONE, "[DONE] behind 0 of 1 finish reasons"),
        (TEXT + USAGE + DONE, "[DONE] behind 0 of 1 finish reasons"),
        (TEXT + STOP + USAGE, "the answer broke off"),
        (
            WHOLE.replace(b":5,", b":-5,"),
            "a chunk that is none: Expected `int` >= 0 - at `$.usage.prompt_tokens`",
        ),
        (b"x" * (1 << 20) + b"x", "an event of the answer has more than 1048576 bytes"),
        (b"data\n" * (3 << 19), "an event of the answer has more than 1048576 bytes"),
    ],
)
def test_answers_that_are_not_whole(content: bytes, said: str) -> None:
    tally = run_stream(Stream(content))
    assert tally.endings == {"failed": 1} and dict(tally.errors) == {said: 1}


def test_every_choice_has_its_end() -> None:
    tally = run_stream(Stream(WHOLE), plain(choices=2))
    assert dict(tally.errors) == {"[DONE] behind 1 of 2 finish reasons": 1}
    tally = run_stream(Stream(STOP.replace(b'"index":0', b'"index":1') + WHOLE), plain(choices=2))
    assert tally.endings == {"finished": 1} and tally.answers == 2


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_events_come_apart_wherever_their_bytes_do(end: str) -> None:
    text = end.join(["event: a", "data: 1", "data:2", "", ":c", "", "event: b", "", "data", "", "data:  3"])
    parts = EventStream()
    found = [event for byte in text.encode() for event in parts.take(bytes([byte]))]
    assert found == [Event(b"a", b"1\n2"), Event(b"", b"")]
    assert list(parts.end()) == [Event(b"", b" 3")] and parts.held == 0


NESTED = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "content",
    [
        b'{"choices":[{"delta":{"tool_calls":' + NESTED + b"}}]}",
        b'{"x":' + NESTED + b"}",
        b'{"error":{"message":' + NESTED + b"}}",
    ],
)
def test_an_answer_that_is_nested_too_deeply_is_one_error(content: bytes) -> None:
    odd = Stream(b"data: " + content + b"\n\ndata: [DONE]\n\n")
    tally = run(
        Scripted(fail=lambda body: odd if body["max_tokens"] == 9 else None), [plain(output=9), plain()]
    )
    assert tally.endings == {"failed": 1, "finished": 1}
    assert list(tally.errors) == ["a chunk that is none: it is nested too deeply"]


def test_messages_that_differ_in_numbers_are_of_one_kind() -> None:
    tally = Tally(0.0)
    for status, tokens in ((400, 2846), (400, 2_861), (413, 2861), (400, 9)):
        message = f"HTTP {status}: request ({tokens:,} tokens) exceeds 2048.5 tokens at 0x{tokens}"
        tally.end(Outcome(0.0, "refused", message), 1.0)
    tally.end(Outcome(0.0, "refused", "HTTP 400: another, of 3"), 1.0)
    assert tally.errors == {
        "HTTP 400: request (2,846 tokens) exceeds 2048.5 tokens at 0x2846": 3,
        "HTTP 413: request (2,861 tokens) exceeds 2048.5 tokens at 0x2861": 1,
        "HTTP 400: another, of 3": 1,
    }


def test_pieces_came_when_the_system_had_them() -> None:
    """The server is in the same thread, and holds it up behind its first piece: the client looks that much later."""
    tally = run(Scripted(stop=BUSY, pause=BUSY), [plain(output=2)])
    assert tally.endings == {"finished": 1}
    assert tally.lag.most >= BUSY
    assert tally.gaps.most >= BUSY, "the server made no piece meanwhile"


def test_nobody_waits_for_a_server_that_does_not_answer() -> None:
    server = Scripted(pause=FOREVER)
    tally = run(server, [plain(0.01 * index) for index in range(20)], Limits(timeout=1.5))
    assert len(server.asked) == 20 and tally.endings == {"late": 20} and tally.most_open == 20
    server = Scripted(pause=FOREVER)
    tally = run(server, [plain(0.01 * index) for index in range(20)], Limits(timeout=1.5, open=5))
    assert tally.endings == {"late": 5, "unsent": 15} and tally.most_open == 5
    assert tally.errors["5 requests were under way (--max-open)"] == 15
