"""Load: what is told of it, beside what the server counted."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from luce.replay.load.bodies import Writer
from luce.replay.load.fire import Limits, fire
from luce.replay.load.page import html
from luce.replay.load.probe import probe
from luce.replay.load.report import report_lines
from luce.replay.load.server_metrics import Compared, compared, metrics, settled_metrics
from luce.replay.load.spread import Spread
from luce.replay.load.tally import MOST_TICKS, Outcome, Tally
from luce.replay.load.target import parse_target
from tests.replay.load_case import plain, report_of, run
from tests.replay.scripted_server import Scripted, scripted


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
