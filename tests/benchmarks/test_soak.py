"""The soak's machinery: a short one against a real server, and that it sees what it is there to see."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random

import httpx
import pytest
import trio

from benchmarks.soak.__main__ import Outcome, main
from benchmarks.soak.clients import KINDS, Clients, Tally
from benchmarks.soak.memory import Growth, Holdings, Sample, growth

SHORT = ["--minutes", "0.33", "--pictures", "64", "--bound", "10000", "--every", "5"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_seconds_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Memory is still filling, so nothing is said of it here."""
    assert main(SHORT) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert shown.count(" of 0.33 min ") >= 3, shown
    assert "WRONG" not in shown and "at rest: " in shown
    assert all(f" {kind}" in shown for kind in KINDS)


def samples(resident: Callable[[float], float], seconds: int = 1000) -> list[Sample]:
    return [Sample(second, resident(second)) for second in range(seconds)]


def test_growth_counts_from_the_warm_up_on() -> None:
    leak = growth(samples(lambda at: 900.0 if at < 200 else 100 + at / 10), 200)
    assert leak.slope == pytest.approx(360)
    assert leak.grown == pytest.approx(72, abs=0.2)
    flat = growth(samples(lambda at: at if at < 200 else 200 + at % 2), 200)
    assert abs(flat.slope) < 1 and abs(flat.grown) <= 1
    with pytest.raises(ValueError, match="after the warm-up"):
        growth(samples(float, 100), 200)


def outcome(**changes: object) -> Outcome:
    rest = Holdings(100.0, 13, 5)
    fields = {
        "tally": Tally(done=Counter(KINDS.keys())),
        "growth": Growth(300.0, 310.0, 5.0),
        "most": 320.0,
        "before": rest,
        "after": rest,
        "status": 0,
    }
    return Outcome(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"growth": Growth(300.0, 325.0, 60.0)}, "grew by 25.0 MB"),
        ({"after": Holdings(100.0, 30, 5)}, "30 files are open"),
        ({"status": 1}, "ended with 1"),
        ({"status": None}, "ended with None"),
        ({"tally": Tally(done=Counter(text=5))}, "no client of the kind pictures"),
        ({"tally": Tally(done=Counter(KINDS.keys()), wrong=["status 500"])}, "status 500"),
    ],
)
def test_what_is_a_fault(changes: dict[str, object], said: str) -> None:
    assert outcome().faults(24) == []
    assert any(said in fault for fault in outcome(**changes).faults(24))


def faults_of(kind: str, server: Callable[[httpx.Request], httpx.Response], times: int = 40) -> list[str]:
    """What clients of a kind say about a server that answers so."""

    async def ask() -> list[str]:
        transport = httpx.MockTransport(server)
        async with httpx.AsyncClient(base_url="http://server:1", transport=transport) as client:
            clients = Clients("http://server:1", client, 0.0)
            for number in range(times):
                await clients.ask(kind, Random(number))
            return clients.tally.wrong

    return trio.run(ask)


def answering(
    text: Callable[[], str], end: str = "data: [DONE]\n\n"
) -> Callable[[httpx.Request], httpx.Response]:
    usage = {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}

    def server(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content).get("stream"):
            chunk = {"choices": [{"delta": {"content": text()}}], "usage": usage}
            return httpx.Response(200, text=f"data: {json.dumps(chunk)}\n\n{end}")
        return httpx.Response(200, json={"choices": [{"message": {"content": text()}}], "usage": usage})

    return server


def test_faults_of_answers_are_seen() -> None:
    numbers = iter(range(10**6))
    assert faults_of("text", answering(lambda: "same")) == []
    assert any(
        "two answers" in fault for fault in faults_of("text", answering(lambda: str(next(numbers))), 400)
    )
    assert any("before its end" in fault for fault in faults_of("chat", answering(lambda: "", end="")))
    assert any("status 500" in fault for fault in faults_of("pictures", lambda _: httpx.Response(500)))
    too_long = {"error": {"code": "context_length_exceeded"}}
    assert faults_of("text", lambda _: httpx.Response(400, json=too_long)) == []
    assert faults_of("late", lambda _: httpx.Response(504)) == []
    assert any("status 400" in fault for fault in faults_of("late", lambda _: httpx.Response(400)))
    assert any(
        "for the bad body" in fault for fault in faults_of("bad", lambda _: httpx.Response(200, json={}))
    )
    assert any(
        "no error object" in fault for fault in faults_of("bad", lambda _: httpx.Response(400, json={}))
    )
