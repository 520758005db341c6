"""Public traces, shortened, on the bundled model's real engine: every request is answered or refused by the one stated
rule, nothing leaks, and a request gets the same bits in a crowd, in another crowd, and alone.

Each slice is served twice: first all at once, which takes what the server needs when it always has work, then with the
trace's own gaps between arrivals, stretched so that the server has work 70 % of the time.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import attrs
import pytest
import trio

from luce.engines.load_model import load_model
from luce.trace.traffic.azure import read_azure
from luce.trace.traffic.mooncake import read_mooncake
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.servegen import read_servegen
from tests.e2e.demo_service import opened
from tests.e2e.traffic import Day, Machine, answers_alone, serve, submissions_of
from tests.sim.files import DATA, long_traces

LOAD = 0.7
MACHINE = Machine()


def mooncake(path: Path, count: int) -> list[TrafficRequest]:
    return list(read_mooncake(path, count))


def azure(path: Path, count: int) -> list[TrafficRequest]:
    return list(read_azure(path, count))


def servegen(path: Path, count: int) -> list[TrafficRequest]:
    """``path``: the two files without what follows their common name."""
    client = read_servegen(f"{path}.trace.csv", f"{path}.dataset.json")
    return list(islice(client.requests(1), count))


HEADS = {
    "mooncake_conversation.jsonl": mooncake,
    "mooncake_synthetic.jsonl": mooncake,
    "azure_conversation.csv": azure,
    "azure_code.csv": azure,
    "servegen_image_client20": servegen,
}
SLICES = {
    "mooncake_fast25_conversation_head1200.jsonl": mooncake,
    "mooncake_fast25_synthetic_head800.jsonl": mooncake,
    "azure_llm_2023_conv_head6000.csv": azure,
    "azure_llm_2023_code_head3000.csv": azure,
    "servegen_mm_image_chunk0": servegen,
    "servegen_mm_image_chunk20": servegen,
    "servegen_mm_image_chunk26": servegen,
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", HEADS)
def test_twenty_requests(name: str) -> None:
    check(name, HEADS[name](DATA / name, 20), every=5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SLICES)
def test_two_hundred_requests(name: str) -> None:
    requests = SLICES[name](long_traces() / name, 200)
    assert len(requests) == 200
    check(name, requests, every=10)


def check(name: str, requests: list[TrafficRequest], every: int) -> None:
    model = load_model(opened(1, MACHINE.block_size, None, MACHINE.context))
    submissions = submissions_of(model, requests)
    model.engine.shutdown()
    machine = MACHINE.tight_for(submissions)

    crowd = trio.run(serve, machine, submissions, [0.0] * len(submissions))
    span = max(request.arrival for request in requests) or 1.0
    stretch = crowd.seconds / LOAD / span
    day = trio.run(
        serve,
        attrs.evolve(machine, depth=2),
        submissions,
        [request.arrival * stretch for request in requests],
    )
    print(f"\n{name}: {len(requests)} requests, {len(day.refused)} refused (longer than the context)")
    print(line("all at once", crowd))
    print(line(f"at {LOAD:.0%} load", day))

    refused = {number for number, one in enumerate(submissions) if machine.refuses(one)}
    for served in (crowd, day):
        assert served.refused.keys() == refused
        assert all("exceed the context" in str(error) for error in served.refused.values())
        assert served.answers.keys() == set(range(len(submissions))) - refused
        for number, answer in served.answers.items():
            assert answer.reason == "length", number
            assert len(answer.tokens) == submissions[number].params.max_tokens, number
    assert day.answers == crowd.answers
    sample = sorted(day.answers)[::every]
    alone = trio.run(answers_alone, machine, [submissions[number] for number in sample])
    assert [day.answers[number] for number in sample] == alone
    assert len({answer.tokens for answer in alone}) > 1, "the answers must differ"
    print(f"  {len(sample)} of them once more alone: the same bits")


def line(how: str, day: Day) -> str:
    stats = day.prefixes
    return (
        f"  {how}: {day.seconds:.1f} s, {day.tokens} tokens, {day.steps} steps of {day.lanes:.1f} requests; "
        f"{stats.hits} hits of {stats.hit_tokens} tokens, {stats.evictions} evictions; "
        f"{day.saves} saved, {day.drops} dropped; {day.pictures} pictures encoded"
    )
