"""Load: what is sent, when and how long, what clients do, and what is told of it, against a server by the book."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from luce.errors import DeviceError
from luce.replay.load.bodies import Writer
from luce.replay.load.event_stream import Event, EventStream
from luce.replay.load.fire import Limits, fire
from luce.replay.load.page import html
from luce.replay.load.probe import probe
from luce.replay.load.recorded import recorded_load
from luce.replay.load.report import LoadReport, report_lines
from luce.replay.load.request import Leaving, LoadRequest, Stall
from luce.replay.load.server_metrics import Compared, compared, metrics, settled_metrics
from luce.replay.load.sources import Window, format_of, load_requests
from luce.replay.load.spread import Spread
from luce.replay.load.tally import MOST_TICKS, Outcome, Tally
from luce.replay.load.target import Target, parse_target
from luce.replay.recorded_requests import RecordedRequest, recorded_requests
from luce.trace.reader import read_trace, trace_paths
from luce.trace.traffic.request import TrafficRequest
from tests.replay.scripted_server import PER_TURN, Scripted, Stream, scripted
from tests.sim.crowd import serve_crowd
from tests.sim.files import DATA

FOREVER = 3600.0
BUSY = 0.5
"""Seconds for which nothing runs here."""


def plain(arrival: float = 0.0, prompt: int = 60, output: int = 4, **more: Any) -> LoadRequest:
    fields = {name: more.pop(name) for name in ("prefix_blocks", "block_size", "images") if name in more}
    return LoadRequest(TrafficRequest(arrival, prompt, output, **fields), **more)


def run(
    server: Scripted,
    requests: Iterable[LoadRequest],
    limits: Limits | None = None,
    *,
    without_pictures: bool = False,
) -> Tally:
    async def both() -> Tally:
        async with scripted(server):
            target = parse_target(server.url)
            writer = Writer(await probe(target, None), 0, 256, without_pictures)
            return await fire(target, iter(list(requests)), writer, limits or Limits())

    return trio.run(both)


def texts(body: dict[str, Any]) -> list[str]:
    return [
        message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        for message in body["messages"]
    ]


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenize", [True, False])
def test_prompts_have_their_lengths_and_answers_too(tokenize: bool) -> None:
    server = Scripted(tokenize=tokenize)
    lengths = [20, 21, 100, 999, 5000]
    tally = run(server, [plain(prompt=length, output=3) for length in lengths])
    assert sorted(server.prompt_tokens(body["messages"]) for body in server.asked) == lengths
    assert tally.endings == {"finished": 5}
    assert (tally.prompt_tokens, tally.wanted_prompt) == (sum(lengths), sum(lengths))
    assert (tally.output_tokens, tally.wanted_output) == (15, 15)
    assert len({texts(body)[0][:30] for body in server.asked}) == 5, "nobody shares a start"
    assert all(body["ignore_eos"] and body["stream_options"]["include_usage"] for body in server.asked)


def test_equal_names_are_equal_turns_and_the_lengths_stay() -> None:
    server = Scripted()
    common = tuple(range(10))
    asked = [
        plain(0.0, 1000, 1, prefix_blocks=(*common, 20, 21, 22, 23, 24, 25), block_size=64),
        plain(0.1, 1020, 1, prefix_blocks=(*common, 30, 31, 32, 33, 34, 35), block_size=64),
        plain(0.2, 700, 1, prefix_blocks=tuple(range(50, 61)), block_size=64),
    ]
    run(server, asked)
    first, second, other = (texts(body) for body in server.asked)
    assert first[:5] == second[:5], "10 blocks of 64 are 5 turns of 128"
    assert first[5] != second[5] and first[0] != other[0]
    for body, request in zip(server.asked, asked, strict=True):
        found = server.prompt_tokens(body["messages"])
        assert abs(found - request.traffic.prompt_tokens) <= 2 * PER_TURN + 2
        roles = [message["role"] for message in body["messages"]]
        assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
        assert roles[-1] == "user"


def test_one_name_is_one_prompt() -> None:
    server = Scripted()
    run(server, [plain(0.0, name="a"), plain(0.05, name="a"), plain(0.1, name="b"), plain(0.15, text="Why?")])
    one, same, other, given = (texts(body) for body in server.asked)
    assert one == same != other
    assert given == ["Why?"]


def test_pictures_have_their_tokens_and_names() -> None:
    server = Scripted()
    requests = [
        plain(0.0, 600, 1, images=(256, 100)),
        plain(0.1, 400, 1, images=(256,), pictures=("p",)),
        plain(0.2, 400, 1, images=(256,), pictures=("p",)),
        plain(0.3, 400, 1, images=(0,)),
    ]
    tally = run(server, requests)
    assert [server.prompt_tokens(body["messages"]) for body in server.asked] == [600, 400, 400, 400]
    urls = [part["image_url"]["url"] for body in server.asked for part in body["messages"][-1]["content"][1:]]
    assert len(urls) == 5 and urls[2] == urls[3] and len(set(urls)) == 4
    assert tally.endings == {"finished": 4}


def test_a_server_without_pictures() -> None:
    server = Scripted(pictures=False)
    requests = [plain(0.0, 400, 1, images=(256,)), plain(0.0, 50, 1)]
    tally = run(server, requests)
    assert tally.endings == {"unsent": 1, "finished": 1}
    assert dict(tally.errors) == {"the server takes no pictures (--no-pictures)": 1}
    server = Scripted(pictures=False)
    run(server, requests[:1], without_pictures=True)
    assert [server.prompt_tokens(body["messages"]) for body in server.asked] == [400]


def test_a_server_that_knows_no_more_than_openai() -> None:
    server = Scripted(strict=True)
    tally = run(server, [plain()])
    assert tally.endings == {"finished": 1} and "ignore_eos" not in server.asked[0]


# -- clients ----------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_is_counted_by_kind() -> None:
    kinds = {10: 503, 11: "break", 12: None, 13: "close"}
    server = Scripted(fail=lambda body: kinds[body["max_tokens"]])
    tally = run(server, [plain(output=tokens) for tokens in (10, 10, 11, 12, 13)])
    assert tally.endings == {"refused": 2, "failed": 2, "finished": 1}
    assert tally.errors == {
        "HTTP 503: not today": 2,
        "connection: closed before the answer was whole": 2,
    }
    assert tally.output_tokens == 12, "of whole answers only"


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


def test_clients_leave_where_the_trace_says() -> None:
    server = Scripted(pause=0.001)
    tally = run(server, [plain(output=100_000, leaves=Leaving(3, 0.0)), plain(0.01)])
    assert tally.endings == {"left": 1, "finished": 1} and not tally.errors
    assert 3 <= server.pieces[0] < 100_000
    server = Scripted(pause=FOREVER)
    tally = run(server, [plain(leaves=Leaving(0, 0.2))])
    assert tally.endings == {"left": 1} and len(server.asked) == 1 and server.pieces == [0]


def test_clients_stall_where_the_trace_says() -> None:
    tally = run(Scripted(), [plain(output=6, stalls=(Stall(2, 1.0), Stall(4, 0.1)))])
    assert tally.stalls == 2 and tally.endings == {"finished": 1}
    assert tally.lag.most > 0.5, "what came meanwhile was not looked at"
    assert run(Scripted(), [plain(output=6)]).stalls == 0


def test_a_connection_that_is_refused_is_counted() -> None:
    async def both() -> Tally:
        async with scripted(Scripted()) as server:
            target = parse_target(server.url)
            writer = Writer(await probe(target, None), 0, 256)
        return await fire(target, iter([plain()]), writer, Limits())

    tally = trio.run(both)
    assert tally.endings == {"failed": 1}
    assert next(iter(tally.errors)) == "connection: the connection was refused: nobody listens there"


def test_the_key_goes_along() -> None:
    async def ask() -> Scripted:
        async with scripted(Scripted()) as server:
            target = parse_target(f"{server.url}/v1/", "secret")
            writer = Writer(await probe(target, "m"), 0, 256)
            await fire(target, iter([plain()]), writer, Limits())
            return server

    server = trio.run(ask)
    assert {head.get("authorization") for head in server.headers} == {"Bearer secret"}
    assert server.asked[0]["model"] == "m"


def test_addresses() -> None:
    assert parse_target("http://host:8000/v1") == Target("host", 8000, "")
    assert parse_target("http://host/api/v1/") == Target("host", 80, "/api")
    assert (parse_target("https://[::1]").port, parse_target("https://[::1]").authority) == (443, "[::1]:443")
    for bad in ("host:8000", "ftp://host", "http://", "http://h:x", "http://h/a b", "http://h?x=1", ""):
        with pytest.raises(Exception, match=r"^URL: "):
            parse_target(bad)


# -- what is told -----------------------------------------------------------------------------------------------------


def test_quantiles_are_within_a_hundredth() -> None:
    spread = Spread()
    for value in range(1, 10_001):
        spread.add(value / 1000)
    for share in (0.01, 0.5, 0.9, 0.99):
        assert spread.quantile(share) == pytest.approx(10 * share, rel=0.011)
    assert (spread.count, spread.least, spread.most, spread.quantile(1)) == (10_000, 0.001, 10, 10)
    assert spread.mean == pytest.approx(5.0005)
    assert Spread().summary() == dict.fromkeys(("mean", "p50", "p90", "p99", "max")) | {"count": 0}


def test_a_long_run_takes_no_more_memory() -> None:
    tally = Tally(100.0)
    for second in range(5000):
        tally.sent(Outcome(float(second)), 100.0 + second)
    assert len(tally.ticks) <= MOST_TICKS and tally.tick_seconds == 16
    assert sum(tick.arrivals for tick in tally.ticks) == 5000
    for number in range(1000):
        tally.end(Outcome(0.0, "failed", f"error {'x' * number}"), 100.0)
    assert len(tally.errors) == 51 and tally.errors.total() == 1000


def test_numbers_are_those_of_the_answers() -> None:
    tally = Tally(100.0)
    outcome = Outcome(1.0, prompt_tokens=50, output_tokens=5, wanted_prompt=48, wanted_output=5)
    tally.sent(outcome, 101.002)
    for when in (101.502, 101.602, 101.802):
        tally.piece(outcome, when, when + 0.01)
    outcome.ending = "finished"
    tally.end(outcome, 102.002)
    late = Outcome(2.0)
    tally.sent(late, 102.02)
    tally.end(attrs.evolve(late, ending="left"), 102.1)
    content = report_of(tally).content()
    assert content["time_to_first_token_seconds"]["mean"] == pytest.approx(0.5)
    assert content["inter_token_gap_seconds"]["mean"] == pytest.approx(0.15)
    assert content["per_token_seconds"]["mean"] == pytest.approx(0.3 / 4)
    assert content["latency_seconds"]["mean"] == pytest.approx(1.0)
    assert content["reading_lag_seconds"]["mean"] == pytest.approx(0.01)
    assert content["arrivals"]["late_seconds"]["max"] == pytest.approx(0.02)
    assert content["arrivals"]["above_limit"] == 1
    assert content["seconds"] == pytest.approx(2.1)
    assert content["throughput"]["output_tokens_per_second"] == pytest.approx(5 / 2.1)
    assert content["requests"]["all"] == 2 and content["requests"]["left"] == 1


def report_of(tally: Tally, **more: Any) -> LoadReport:
    return LoadReport("2030-01-01T00:00:00+00:00", "1", "http://h:1", "m", "azure: t.csv", {}, tally, **more)


def test_the_server_is_asked_what_it_counted() -> None:
    def told(server: Scripted) -> str:
        whole = sum(
            count == body["max_tokens"] for count, body in zip(server.pieces, server.asked, strict=True)
        )
        prompts = sum(server.prompt_tokens(body["messages"]) for body in server.asked)
        return (
            "# TYPE vllm:e2e_request_latency_seconds histogram\n"
            f'vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {whole + 7}\n'
            f"vllm:e2e_request_latency_seconds_count {whole + 7}\nvllm:e2e_request_latency_seconds_sum 70000\n"
            "# TYPE vllm:request_prompt_tokens histogram\n"
            f"vllm:request_prompt_tokens_count {whole + 7}\nvllm:request_prompt_tokens_sum {prompts + 100}\n"
        )

    async def both() -> list[Compared]:
        async with scripted(Scripted(metrics=told)) as server:
            target = parse_target(server.url)
            writer = Writer(await probe(target, None), 0, 256)
            before = await metrics(target)
            tally = await fire(target, iter([plain(prompt=60), plain(prompt=40)]), writer, Limits())
            after = await settled_metrics(target, before, tally)
            assert before is not None and after is not None
            return compared(before, after, tally)

    answers, prompts, latency = trio.run(both)
    assert answers == Compared("whole answers", "", 2, 2) and answers.agrees
    assert prompts == Compared("their prompt tokens", "", 100, 100)
    assert latency.server == 0 and not latency.agrees, "the planted sum did not grow"


def by_llama_cpp(tally: Tally) -> list[Compared]:
    names = ("prompt_tokens", "tokens_predicted", "tokens_predicted_seconds")
    before = {f"llamacpp:{name}_total": 7.0 for name in names}
    after = {f"llamacpp:{name}_total": 7.0 + more for name, more in zip(names, (40.0, 5.0, 0.4), strict=True)}
    return compared(before | {"llamacpp:n_decode_total": 3.0}, after, tally)


def test_llama_cpp_is_asked_by_its_own_names() -> None:
    """Its seconds end with the last token, whether that has text or not: with the reason of the finish."""
    tally = Tally(100.0)
    outcome = Outcome(0.0, prompt_tokens=50, cached_tokens=10, output_tokens=5)
    tally.sent(outcome, 100.0)
    for when in (100.5, 100.8):
        tally.piece(outcome, when, when)
    outcome.finished = 100.9
    outcome.ending = "finished"
    tally.end(outcome, 101.0)
    assert by_llama_cpp(tally) == [
        Compared("prompt tokens, not cached", "", 40.0, 40.0),
        Compared("output tokens", "", 5.0, 5.0),
        Compared("time per token, of all", "s", pytest.approx(0.1), pytest.approx(0.1)),
    ]
    tally.end(Outcome(0.0, "refused"), 101.0)
    assert len(by_llama_cpp(tally)) == 3, "nothing was begun"
    tally.end(Outcome(0.0, "left"), 101.0)
    assert by_llama_cpp(tally) == [], "whose tokens are whose is not told"


def test_cut_answers_are_named_where_the_server_counts_their_tokens() -> None:
    """luce and vLLM count each gap when its token comes; a client knows an answer's tokens only at its end."""
    tally = Tally(100.0)
    outcome = Outcome(0.0, "finished", output_tokens=2)
    tally.sent(outcome, 100.0)
    for when in (100.5, 100.6):
        tally.piece(outcome, when, when)
    tally.end(outcome, 100.7)
    after = {
        "vllm:e2e_request_latency_seconds_count": 1.0,
        "vllm:inter_token_latency_seconds_count": 3.0,
        "vllm:inter_token_latency_seconds_sum": 0.2,
    }

    def line() -> str:
        table = report_lines(report_of(tally, server=tuple(compared({}, after, tally))))
        return next(line for line in table if line.startswith("time per token, of all"))

    assert line().endswith("+50.00 %  differs")
    tally.end(Outcome(0.0, "left"), 101.0)
    assert line().endswith("+50.00 %  the server counts tokens of 1 cut answers, too")
    page = html(report_of(tally, server=tuple(compared({}, after, tally))))
    assert "cut answers" in page


def test_two_means_have_two_names() -> None:
    """Of answers' own means, and of all tokens."""
    tally = Tally(100.0)
    for tokens, seconds in ((2, 1.0), (10, 0.9)):
        outcome = Outcome(0.0, "finished", output_tokens=tokens)
        tally.sent(outcome, 100.0)
        for when in (100.5, 100.5 + seconds):
            tally.piece(outcome, when, when)
        tally.end(outcome, 102.0)
    after = {
        "vllm:e2e_request_latency_seconds_count": 2.0,
        "vllm:inter_token_latency_seconds_count": 10.0,
        "vllm:inter_token_latency_seconds_sum": 1.9,
    }
    table = list(report_lines(report_of(tally, server=tuple(compared({}, after, tally)))))
    by_answer, of_all = (line for line in table if line.startswith("time per token"))
    assert by_answer.startswith("time per token, by answer") and "550.00" in by_answer
    assert of_all.startswith("time per token, of all") and of_all.count("190.00 ms") == 2


@pytest.mark.parametrize("when", [0.0, 7200.0])
def test_arrivals_of_one_time_have_no_rate(when: float) -> None:
    tally = Tally(0.0)
    for _ in range(3):
        tally.due(when)
        tally.end(Outcome(when, "unsent", "x"), when + 0.5)
    assert next(iter(report_lines(report_of(tally)))).endswith("3 requests in 0.5 s, all at once")
    tally.due(when + 1.5)
    tally.end(Outcome(when + 1.5, "unsent", "x"), when + 2)
    first = next(iter(report_lines(report_of(tally))))
    assert first.endswith("4 requests in 2.0 s, 2 arrivals a second"), "not from the start of a quiet trace"


@pytest.mark.parametrize(
    "said",
    [
        "HTTP 400: This model's maximum context length is 4096 tokens. However, you requested 9000 tokens",
        "HTTP 400: request (2846 tokens) exceeds the available context size (2048 tokens)",
        "HTTP 400: The input (9000 tokens) is longer than the model's context length (4096 tokens).",
        "HTTP 422: `inputs` must have less than 1024 tokens. Given: 2048",
    ],
)
def test_prompts_too_long_for_the_server_hint_at_lengths(said: str) -> None:
    def told(error: str) -> str:
        tally = Tally(0.0)
        tally.end(Outcome(0.0, "refused", error), 1.0)
        report = report_of(tally)
        assert bool(report.content()["hints"]) == ("--lengths" in html(report))
        return "\n".join(report_lines(report))

    assert "--lengths" in told(said)
    assert "--lengths" not in told("HTTP 400: max_tokens must be at least 1")
    assert "--lengths" not in told("HTTP 429: the queue is full")


def test_two_hundredths_agree() -> None:
    assert Compared("x", "", 1.0199, 1.0).agrees and not Compared("x", "", 1.021, 1.0).agrees
    assert Compared("x", "", 0.9801, 1.0).agrees and not Compared("x", "", 0.979, 1.0).agrees


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/tokenize"])
def test_a_server_that_says_nothing_is_not_waited_for(path: str) -> None:
    async def ask() -> None:
        async with scripted(Scripted(silent=path)) as server:
            await probe(attrs.evolve(parse_target(server.url), seconds=0.2), None)

    with pytest.raises(BaseExceptionGroup) as raised:
        trio.run(ask)
    (error,) = raised.value.exceptions
    assert isinstance(error, DeviceError)
    assert str(error).endswith(f"{path}: no whole answer within 0.2 s (--timeout)")


def test_metrics_that_say_nothing_are_none() -> None:
    async def ask() -> Any:
        async with scripted(Scripted(silent="/metrics")) as server:
            return await metrics(attrs.evolve(parse_target(server.url), seconds=0.2))

    assert trio.run(ask) is None


@pytest.mark.parametrize("text", ["no { metrics", "a{, =a}"])
def test_metrics_that_are_none(text: str) -> None:
    async def ask() -> Any:
        async with scripted(Scripted(metrics=lambda server: text)) as server:
            return await metrics(parse_target(server.url))

    assert trio.run(ask) is None


def test_a_server_without_metrics() -> None:
    async def ask() -> Any:
        async with scripted(Scripted()) as server:
            return await metrics(parse_target(server.url))

    assert trio.run(ask) is None


def test_the_table_and_the_page() -> None:
    server = Scripted(fail=lambda body: 400 if body["max_tokens"] == 9 else None)
    tally = run(server, [plain(), plain(output=9)])
    tally.errors["<b>&"] = 1
    report = report_of(
        tally,
        server=(Compared("whole answers", "", 1, 1), Compared("time to first token", "s", 0.5, 0.4)),
        warnings=("w",),
    )
    table = "\n".join(report_lines(report))
    assert "1 answered whole; 1 refused by the server" in table
    assert "1 × HTTP 400: not today" in table
    line = next(line for line in table.splitlines() if "400.00 ms" in line)
    assert line.endswith("+25.00 %  differs")
    page = html(report)
    assert "&lt;b&gt;&amp;" in page and "<b>" not in page and "<script" not in page
    assert page.count("<polyline") == 5 and 'class="differs"' in page
    assert "src=" not in page and "href=" not in page
    assert json.loads(report.json())["requests"]["refused"] == 1


# -- traces -----------------------------------------------------------------------------------------------------------


def test_formats_are_told_by_their_beginnings(tmp_path: Path) -> None:
    assert format_of(DATA / "mooncake_conversation.jsonl") == "mooncake"
    assert format_of(DATA / "azure_code.csv") == "azure"
    assert format_of(DATA / "servegen_image_client20.trace.csv") == "servegen"
    assert format_of(tmp_path) == "luce"
    for content, kind in (('{"prompt": "x"}\n', "vllm"), ("Timestamp,Model,Request tokens\n", "burstgpt")):
        (tmp_path / "file").write_text(content)
        assert format_of(tmp_path / "file") == kind
    assert format_of(DATA / "servegen_image_client20.dataset.json") == "servegen"
    (tmp_path / "file").write_text('{ "0.0": {"text_tokens": "{5: 1.0}"}}')
    assert format_of(tmp_path / "file") == "servegen"
    with pytest.raises(Exception, match=r"^TRACE: file has no arrivals; name the …trace.csv"):
        load_requests((tmp_path / "file",), "servegen", Window(), [])
    (tmp_path / "file").write_text("hello\n")
    with pytest.raises(Exception, match="begins like no trace that is known"):
        format_of(tmp_path / "file")


def test_a_window_of_a_trace() -> None:
    path = (DATA / "mooncake_conversation.jsonl",)
    every = list(load_requests(path, "mooncake", Window(), []))
    assert len(every) == 200
    some = list(load_requests(path, "mooncake", Window(start=30, seconds=20), []))
    inside = [one for one in every if 30 <= one.traffic.arrival < 50]
    assert [one.traffic.arrival + 30 for one in some] == [one.traffic.arrival for one in inside]
    assert list(load_requests(path, "mooncake", Window(requests=3), [])) == every[:3]
    timed = list(load_requests(path, "mooncake", Window(rate=50.0), []))
    arrivals = [one.traffic.arrival for one in timed]
    assert arrivals == sorted(arrivals) and arrivals[-1] == pytest.approx(199 / 50, rel=0.3)
    assert arrivals != [
        one.traffic.arrival for one in load_requests(path, "mooncake", Window(rate=50.0, seed=1), [])
    ]
    servegen = (DATA / "servegen_image_client20.trace.csv",)
    drawn = list(load_requests(servegen, "servegen", Window(start=7200, seconds=600), []))
    assert 500 < len(drawn) < 3000 and all(one.traffic.images for one in drawn)
    assert drawn[0].traffic.arrival >= 0 and drawn[-1].traffic.arrival < 600


def test_scaling_leaves_answers_and_pictures_as_they_are() -> None:
    request = plain(8.0, 1000, 300, images=(40,), leaves=Leaving(0, 4.0), stalls=(Stall(1, 2.0),))
    small = request.scaled(10, 0.5, 200)
    assert small.traffic == TrafficRequest(4.0, 96 + 40, 200, images=(40,))
    assert small.leaves == Leaving(0, 2.0) and small.stalls == (Stall(1, 1.0),)
    assert request.scaled(1, 1.0, None) == request


def name_of(one: RecordedRequest) -> str:
    return (one.arrival.prompt_digest + one.arrival.salt).hex()


@pytest.mark.parametrize("seed", [0, 1])
def test_luces_own_traces(seed: int, tmp_path: Path) -> None:
    serve_crowd(seed, 40, depth=1, trace=tmp_path)
    paths, warnings = trace_paths([tmp_path]), list[str]()
    found = list(recorded_load(paths, warnings))
    recorded = {one.arrival.order: one for one in recorded_requests(read_trace(paths))}
    first = [one for one in recorded.values() if not one.arrival.choice]
    assert len(found) == len(first) > 25
    arrivals = [one.traffic.arrival for one in found]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0
    zero = min(one.arrival.arrived for one in first)
    by_time = {(round(one.arrival.arrived - zero, 9), name_of(one)): one for one in first}
    cancelled = 0
    for request in found:
        one = by_time[round(request.traffic.arrival, 9), request.name]
        assert request.traffic.prompt_tokens == one.arrival.prompt_tokens
        assert request.traffic.images == tuple(picture.tokens for picture in one.arrival.pictures)
        assert request.choices == one.arrival.n
        if one.end == "cancelled":
            cancelled += request.leaves is not None
        else:
            assert request.leaves is None
    assert cancelled > 0, "nobody left"
    assert math.isclose(max(arrivals), max(by_time)[0])
