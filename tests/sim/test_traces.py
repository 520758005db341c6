"""Public traces with shorter prompts and answers, through real actors in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import pytest

from luce.engines.fake.engine import fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import Capabilities
from luce.trace.traffic.azure import read_azure
from luce.trace.traffic.mooncake import read_mooncake
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.servegen import read_servegen
from tests.sim.files import DATA, long_traces
from tests.sim.requests import submission_of
from tests.sim.simulator import Client, Faults, Report, check_results, simulate

CAPABILITIES: Capabilities = fake_capabilities(
    num_slots=16,
    block_size=32,
    num_blocks=16384,
    max_context=8192,
    bytes_per_token=2,
    bytes_per_snapshot=1000,
)
TIMES = Times(step=0.008, row=2e-5, patch=1e-4, work=0.001, saved_row=1e-6, restored_row=1e-6)
OPTIONS = {
    "prefill_budget": 512,
    "max_queued": 64,
    "queue_timeout": 60.0,
    "prefix_bytes": 2_000_000,
    "park_bytes": 8_000,
    "image_bytes": 100_000,
}


SYSTEM_PROMPT = 64
"""Rows that nearly all conversations begin with."""


def clients_of(requests: Iterable[TrafficRequest], lengths: int = 8, time: float = 1.0) -> list[Client]:
    return [
        Client(request.arrival, submission_of(request, number))
        for number, request in enumerate(request.scaled(lengths, time) for request in requests)
    ]


def serve(clients: list[Client], depth: int, seed: int = 1) -> Report:
    report = simulate(seed, clients, CAPABILITIES, TIMES, depth=depth, **OPTIONS)
    stats, metrics = report.prefixes, report.metrics
    print(
        f"\n{len(clients)} requests in {report.seconds:.1f} virtual s, depth {depth}: "
        f"{report.count('length')} answered, {report.refused} refused; "
        f"{metrics.steps} steps, {metrics.rows} rows, {metrics.lanes / metrics.steps:.1f} lanes a step, "
        f"{metrics.saves} saves, {metrics.drops} drops; {stats}; mailboxes at most {report.longest}"
    )
    return report


@pytest.mark.parametrize("depth", [1, 2])
def test_a_minute_of_conversations(depth: int) -> None:
    requests = list(read_mooncake(DATA / "mooncake_conversation.jsonl", 150))
    report = serve(clients_of(requests), depth)
    check(report, every=10)
    assert report.prefixes.evictions == 0
    going_on(report, requests, 1.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("depth", [1, 2])
def test_seven_minutes_of_conversations(depth: int) -> None:
    requests = list(read_mooncake(long_traces() / "mooncake_fast25_conversation_head1200.jsonl"))
    assert len(requests) == 1200
    report = serve(clients_of(requests), depth)
    check(report, every=60)
    going_on(report, requests, 0.5)


@pytest.mark.parametrize("name", ["azure_conversation.csv", "azure_code.csv"])
def test_lengths_and_arrivals_alone(name: str) -> None:
    check(serve(clients_of(read_azure(DATA / name, 80)), depth=2), every=8)


def test_pictures() -> None:
    """Every picture is another one, so each is encoded once, whoever is parked meanwhile."""
    client = read_servegen(
        DATA / "servegen_image_client20.trace.csv", DATA / "servegen_image_client20.dataset.json"
    )
    clients = clients_of(islice(client.requests(1, start=7200), 80), lengths=32, time=0.2)
    report = serve(clients, depth=2)
    check(report, every=4)
    pictures = [image.digest for client in clients for image in client.submission.images]
    assert report.pictures == Counter(pictures) and len(set(pictures)) == len(pictures) > 100


def check(report: Report, every: int) -> None:
    """Refused are those that can never fit, and nobody else; all others are answered, and exactly."""
    for result in report.results:
        asked = result.client.submission
        rows = len(asked.prompt.token_ids) + (asked.params.max_tokens or 0)
        assert (result.refused is not None) == (rows > CAPABILITIES.max_context), result.refused
    assert report.count("length") + report.refused == len(report.results)
    assert check_results(report.results, Faults(), every=every) >= 10
    assert report.longest.get("request", 0) <= 2


def going_on(report: Report, requests: Sequence[TrafficRequest], share: float) -> None:
    """Later turns start where earlier ones ended, not only behind the system prompt that all share: those of the trace
    that can, at least ``share`` of them."""
    can, before = set[str](), set[tuple[int, ...]]()
    for number, request in enumerate(requests):
        names = request.prefix_blocks
        if any(names[:length] in before for length in range(2, len(names) + 1)):
            can.add(f"r{number}")
        before.add(names[: (request.prompt_tokens - 1) // request.block_size])
    did = {result.client.submission.id for result in report.results if result.cached > SYSTEM_PROMPT}
    print(f"{len(did)} of {len(can)} turns went on from an earlier one")
    assert can and len(did & can) >= share * len(can)
