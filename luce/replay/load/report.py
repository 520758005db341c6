"""A run as one value: JSON, and lines for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs

from luce.replay.load.server_metrics import AGREES, Compared
from luce.replay.load.tally import KEPT_LATE, Tally

__all__ = ["LoadReport", "report_lines"]

VERSION = 1
"""Of the JSON."""
SAID = {
    "finished": "answered whole",
    "left": "cancelled, as in the trace",
    "refused": "refused by the server",
    "failed": "broken off",
    "late": "not over in time",
    "unsent": "not sent",
}
ERRORS_SHOWN = 5
_TOO_LONG = re.compile(
    r"HTTP 4\d\d: .*(context.?(length|size|window)|too long|\binputs?\b.*\btokens)", re.IGNORECASE
)
"""A prompt for a server's context, as luce, vLLM, llama.cpp, SGLang and TGI say it."""


@attrs.frozen
class LoadReport:
    """All that is told of a run."""

    when: str
    """UTC, ISO 8601."""
    luce: str
    """Version."""
    url: str
    model: str
    trace: str
    options: dict[str, Any]
    tally: Tally
    server: tuple[Compared, ...] = ()
    """Empty where the server shows no metrics."""
    stopped_after: float | None = None
    """Seconds from the start to a signal that came before everything was sent and answered; None: none came."""
    warnings: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        return self.stopped_after is not None

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        return max(self.tally.ended - (self.tally.first_due or 0.0), 0.0)

    def content(self) -> dict[str, Any]:
        """As the JSON has it. Times are seconds, lengths tokens."""
        tally = self.tally
        seconds = max(self.seconds, 1e-9)
        total = sum(tally.endings.values())
        return {
            "luce_load": VERSION,
            "when": self.when,
            "luce": self.luce,
            "url": self.url,
            "model": self.model,
            "trace": self.trace,
            "options": self.options,
            "stopped": self.stopped,
            "stopped_after_seconds": self.stopped_after,
            "cut": tally.cut or None,
            "warnings": list(self.warnings),
            "seconds": self.seconds,
            "requests": {"all": total} | {name: tally.endings.get(name, 0) for name in SAID},
            "most_open": tally.most_open,
            "stalls": tally.stalls,
            "errors": dict(tally.errors.most_common()),
            "hints": list(_hints(tally)),
            "arrivals": {
                "rate": tally.rate,
                "late_seconds": tally.late.summary(),
                "limit_seconds": KEPT_LATE,
                "above_limit": tally.too_late,
            },
            "reading_lag_seconds": tally.lag.summary(),
            "whole_answers": {
                "prompt_tokens": tally.prompt_tokens,
                "prompt_tokens_wanted": tally.wanted_prompt,
                "cached_tokens": tally.cached_tokens,
                "output_tokens": tally.output_tokens,
                "output_tokens_wanted": tally.wanted_output,
            },
            "throughput": {
                "requests_per_second": tally.endings.get("finished", 0) / seconds,
                "output_tokens_per_second": tally.output_tokens / seconds,
                "prompt_tokens_per_second": tally.prompt_tokens / seconds,
            },
            "time_to_first_token_seconds": tally.first.summary(),
            "inter_token_gap_seconds": tally.gaps.summary(),
            "per_token_seconds": tally.per_token.summary(),
            "latency_seconds": tally.latency.summary(),
            "server": [
                attrs.asdict(one) | {"difference": one.difference, "agrees": one.agrees}
                for one in self.server
            ],
            "agreement_limit": AGREES,
            "ticks": {
                "seconds": tally.tick_seconds,
                "values": [attrs.asdict(tick) for tick in tally.ticks],
            },
        }

    def json(self) -> str:
        return json.dumps(self.content(), indent=1) + "\n"


def _hints(tally: Tally) -> Iterator[str]:
    """What can be done about errors."""
    if any(_TOO_LONG.match(error) for error in tally.errors):
        yield (
            "prompts of the trace are too long for this server's context: --lengths 8, or another number, divides "
            "their texts; --most-tokens bounds answers"
        )


def report_lines(report: LoadReport) -> Iterator[str]:
    """The table."""
    content = report.content()
    requests, arrivals, answers = content["requests"], content["arrivals"], content["whole_answers"]
    rate = ""
    if requests["all"] > 1:
        rate = ", all at once" if arrivals["rate"] is None else f", {arrivals['rate']:.4g} arrivals a second"
    yield f"{report.url}, {report.model}: {requests['all']:,} requests in {report.seconds:,.1f} s{rate}"
    if report.stopped_after is not None:
        due = report.tally.next_due
        rest = 0.0 if due is None else due - report.stopped_after
        until = f", {rest:,.1f} s before the next request was due" if rest > 0 else ""
        yield f"  stopped after {report.stopped_after:,.1f} s{until}"
    parts = [f"{requests[name]:,} {said}" for name, said in SAID.items() if requests[name]]
    yield f"  {'; '.join(parts) or 'nothing was sent'}; {report.tally.most_open:,} at once at most"
    for error, count in list(content["errors"].items())[:ERRORS_SHOWN]:
        yield f"  {count:,} × {error}"
    if len(content["errors"]) > ERRORS_SHOWN:
        yield f"  and {len(content['errors']) - ERRORS_SHOWN} more kinds; --json has them"
    for hint in content["hints"]:
        yield f"  {hint}"
    rates = content["throughput"]
    yield (
        f"  {rates['output_tokens_per_second']:,.1f} output and {rates['prompt_tokens_per_second']:,.1f} prompt "
        f"tokens a second, {rates['requests_per_second']:,.4g} whole answers a second"
    )
    yield f"{'':<26}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}  ms"
    for name, key in (
        ("time to first token", "time_to_first_token_seconds"),
        ("gap between pieces", "inter_token_gap_seconds"),
        ("time per token, by answer", "per_token_seconds"),
        ("time of whole answers", "latency_seconds"),
    ):
        yield _row(name, content[key])
    yield _row("sent behind its time", arrivals["late_seconds"])
    yield _row("reading behind", content["reading_lag_seconds"])
    yield (
        f"{arrivals['above_limit']:,} of {arrivals['late_seconds']['count']:,} were sent more than "
        f"{1000 * KEPT_LATE:g} ms behind their time"
    )
    if answers["prompt_tokens_wanted"]:
        share = answers["prompt_tokens"] / answers["prompt_tokens_wanted"]
        yield (
            f"prompts of whole answers: {answers['prompt_tokens']:,} tokens, {share:.1%} of the trace's; "
            f"{answers['cached_tokens']:,} of them cached"
        )
    yield (
        f"whole answers: {answers['output_tokens']:,} tokens of {answers['output_tokens_wanted']:,} in the trace"
    )
    if report.server:
        yield f"{'':<26}{'clients':>16}{'server':>16}"
    for one in report.server:
        yield _beside(one)


def _row(name: str, summary: dict[str, Any]) -> str:
    cells = "".join(_ms(summary[key]) for key in ("mean", "p50", "p90", "p99", "max"))
    return f"{name:<26}{cells}"


def _ms(value: float | None) -> str:
    return f"{'—' if value is None else f'{1000 * value:,.2f}':>10}"


def _beside(one: Compared) -> str:
    mine, theirs = (
        f"{1000 * value:,.2f} ms" if one.unit == "s" else f"{value:,.0f}"
        for value in (one.clients, one.server)
    )
    difference = one.difference
    told = "" if difference is None else f"{100 * difference:+8.2f} %"
    verdict = one.note or ("" if one.agrees else "differs")
    return f"{one.name:<26}{mine:>16}{theirs:>16}  {told}  {verdict}".rstrip()
