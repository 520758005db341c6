"""What the server itself counted while it was asked, beside what its clients saw."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from luce.errors import DeviceError
from luce.replay.load.tally import Ending, Tally
from luce.replay.load.target import Target, exchange

__all__ = ["AGREES", "Compared", "compared", "metrics", "settled_metrics"]

AGREES = 0.02
"""Values that differ by no more agree."""
LOOKS = 10
LOOK_SECONDS = 0.1
METRICS_SECONDS = 10.0
"""That a server has to show its numbers, if it has no less for an answer: a load is reported without them."""
WHOLE = "vllm:e2e_request_latency_seconds_count"
PER_TOKEN = "time per token, of all"
"""Seconds over tokens, of all answers together: long answers count more than in a mean of answers' own means."""
BEGUN: tuple[Ending, ...] = ("left", "failed", "late")
"""The server may have made tokens of such an answer, but its client does not know how many."""
PREDICTED = "llamacpp:tokens_predicted"

Values = Mapping[str, float]


@attrs.frozen
class Compared:
    """One quantity by both."""

    name: str
    unit: str
    clients: float
    server: float
    note: str = ""
    """What the server counts otherwise, so that the two may differ."""

    @property
    def difference(self) -> float | None:
        """Of the clients' value, as a share of the server's."""
        if self.server == self.clients:
            return 0.0
        return (self.clients - self.server) / self.server if self.server else None

    @property
    def agrees(self) -> bool:
        return self.difference is not None and abs(self.difference) <= AGREES


async def metrics(target: Target) -> dict[str, float] | None:
    """The server's numbers by name, summed over labels; None where it shows none in time."""
    seconds = min(target.seconds, METRICS_SECONDS)
    try:
        status, content = await exchange(attrs.evolve(target, seconds=seconds), "GET", "/metrics")
    except DeviceError:
        return None
    if status != 200:
        return None
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
    except (ValueError, LookupError):  # no such text, nor UTF-8; the parser trusts labels to have names
        return None
    return found


async def settled_metrics(target: Target, before: Values | None, tally: Tally) -> dict[str, float] | None:
    """The numbers once the server has counted all whole answers: it may do so behind their last bytes."""
    after = await metrics(target) if before is not None else None
    for _ in range(LOOKS):
        if after is None or before is None or WHOLE not in after:
            break
        if after[WHOLE] - before.get(WHOLE, 0.0) >= tally.answers:
            break
        await trio.sleep(LOOK_SECONDS)
        after = await metrics(target)
    return after


def compared(before: Values, after: Values, tally: Tally) -> list[Compared]:
    """What both know, by vLLM's names or llama.cpp's. Nobody else may have asked the server meanwhile."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    pairs = _by_vllm(grown, tally) if WHOLE in grown else _by_llama_cpp(grown, tally)
    begun = sum(tally.endings[ending] for ending in BEGUN)
    cut = f"the server counts tokens of {begun:,} cut answers, too" if begun else ""
    return [
        Compared(name, unit, mine, theirs, cut if name == PER_TOKEN else "")
        for name, unit, mine, theirs in pairs
        if mine is not None and theirs is not None
    ]


_Pair = tuple[str, str, float | None, float | None]
"""Name, unit, by the clients, by the server."""


def _by_vllm(grown: Values, tally: Tally) -> tuple[_Pair, ...]:
    def mean(name: str) -> float | None:
        total, count = grown.get(f"{name}_sum"), grown.get(f"{name}_count")
        return total / count if total is not None and count else None

    server_per_token = mean("vllm:inter_token_latency_seconds")
    if server_per_token is None:
        server_per_token = mean("vllm:time_per_output_token_seconds")
    return (
        ("whole answers", "", float(tally.answers), grown.get(WHOLE)),
        ("their prompt tokens", "", float(tally.prompt_tokens), grown.get("vllm:request_prompt_tokens_sum")),
        (
            "their output tokens",
            "",
            float(tally.output_tokens),
            grown.get("vllm:request_generation_tokens_sum"),
        ),
        ("time to first token", "s", tally.first.mean, mean("vllm:time_to_first_token_seconds")),
        (PER_TOKEN, "s", _per_token(tally), server_per_token),
        ("time of whole answers", "s", tally.latency.mean, mean("vllm:e2e_request_latency_seconds")),
    )


def _by_llama_cpp(grown: Values, tally: Tally) -> tuple[_Pair, ...]:
    """It counts prompts without what was cached, and does not say which answers were whole: nothing is told where
    others were begun. It has no time that begins with a request's arrival."""
    if any(tally.endings[begun] for begun in BEGUN):
        return ()
    output, seconds = grown.get(f"{PREDICTED}_total"), grown.get(f"{PREDICTED}_seconds_total")
    further = 0.0 if output is None else output - tally.answers
    per_token = seconds / further if seconds is not None and further > 0 else None
    computed = float(tally.prompt_tokens - tally.cached_tokens)
    return (
        ("prompt tokens, not cached", "", computed, grown.get("llamacpp:prompt_tokens_total")),
        ("output tokens", "", float(tally.output_tokens), output),
        (PER_TOKEN, "s", _per_token(tally), per_token),
    )


def _per_token(tally: Tally) -> float | None:
    return tally.decode_seconds / tally.decode_tokens if tally.decode_tokens else None
