"""GET /metrics: what the server does, in Prometheus' text format.

Names are vLLM's where the meaning is the same, so that dashboards and gateways find them; llama.cpp's where vLLM has
none of that kind; ``luce:`` for the rest. Everything is read when it is asked for, from the requests' charts, the
tallies of the event stream and the loop's own counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from quart import Response

from luce.actors.choices import prompt_tokens
from luce.actors.histogram import Histogram
from luce.actors.service import Service
from luce.actors.tallies import RequestTallies
from luce.charts.loader import load_chart
from luce.http.http_tallies import HttpTallies

__all__ = ["Metrics"]

RUNNING = ("encoding", "staging", "decoding")
WAITING = ("following", "queued", "parked")
"""Phases that vLLM's two gauges mean: its preempted requests wait."""


class Metrics:
    """The endpoint.

    Args:
        http: of the same server.
        model: the served name, the label ``model_name`` of everything that is not HTTP's.
    """

    def __init__(self, service: Service, tallies: RequestTallies, http: HttpTallies, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Reading(service, tallies, model))
        self._registry.register(_HttpReading(http))
        ProcessCollector(registry=self._registry)

    async def __call__(self) -> Response:
        return Response(generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST)


class _Reading(Collector):
    def __init__(self, service: Service, tallies: RequestTallies, model: str) -> None:
        self._service = service
        self._tallies = tallies
        self._model = model

    def describe(self) -> Iterator[Metric]:
        """Nothing: a registry would otherwise collect everything once to know the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._memory()
        yield from self._answers()
        yield from self._steps()
        yield from self._encoder()

    # -- families ---------------------------------------------------------------------------------------------------

    def _gauge(self, name: str, says: str, value: float, **labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, says, labels=["model_name", *labels])
        family.add_metric([self._model, *labels.values()], value)
        return family

    def _gauges(self, name: str, says: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, says, labels=["model_name", label])
        for value, count in values.items():
            family.add_metric([self._model, value], count)
        return family

    def _counter(self, name: str, says: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, says, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counters(self, name: str, says: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, says, labels=["model_name", label])
        for value, count in values.items():
            family.add_metric([self._model, value], count)
        return family

    def _histogram(self, name: str, says: str, values: Histogram) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, says, labels=["model_name"])
        family.add_metric([self._model], list(values.cumulated()), values.sum)
        return family

    # -- what is read -----------------------------------------------------------------------------------------------

    def _requests(self) -> Iterator[Metric]:
        live = list(self._tallies.live.values())
        phases = Counter(one.phase for one in live)
        running, waiting = (sum(phases[phase] for phase in kind) for kind in (RUNNING, WAITING))
        yield self._gauge("vllm:num_requests_running", "Requests that hold a slot.", running)
        yield self._gauge(
            "vllm:num_requests_waiting", "Requests that wait for a slot, parked ones included.", waiting
        )
        queued = [one.request.submission for one in live if "waiting" in one.here]
        yield self._gauge(
            "luce:queued_tokens", "Prompt tokens of requests that wait for a slot.", prompt_tokens(queued)
        )
        chart = load_chart("request")
        counts = Counter(state for one in live for state in one.here)
        yield self._gauges(
            "luce:requests",
            "Requests in each state of request.scxml; outer states count those in inner ones.",
            "state",
            {state: counts[state] for state in chart.states},
        )
        states = self._service.machine.chart.states
        active = self._service.machine.configuration
        yield self._gauges(
            "luce:server",
            "1 for each active state of server.scxml.",
            "state",
            {one: int(one in active) for one in states},
        )
        tasks = trio.lowlevel.current_statistics().tasks_living
        yield self._gauge("luce:tasks", "Tasks of the server: of connections, requests, actors.", tasks)

    def _memory(self) -> Iterator[Metric]:
        memory = self._service.loop.memory
        pool, capabilities = memory.pool, memory.capabilities
        used = (pool.held + pool.saving) / pool.num_blocks
        yield self._gauge("vllm:kv_cache_usage_perc", "Key/value blocks in use, from 0 to 1.", used)
        yield self._gauge(
            "vllm:cache_config_info",
            "The key/value memory: tokens in a block, and blocks.",
            1,
            block_size=str(pool.block_size),
            num_gpu_blocks=str(pool.num_blocks),
            enable_prefix_caching=str(memory.cache.enabled),
        )
        blocks = {"held": pool.held, "cached": pool.cached, "free": pool.free, "saving": pool.saving}
        yield self._gauges("luce:kv_blocks", "Key/value blocks by what they are for.", "use", blocks)
        yield self._gauge("luce:slots", "Requests that can run at once.", capabilities.num_slots)
        yield self._gauge("luce:slots_free", "Slots that nobody holds.", len(memory.free_slots))
        yield self._gauge("luce:parked_bytes", "Host memory of parked requests.", memory.saved_bytes)
        cached = memory.cache.index.device_bytes
        yield self._gauge("luce:prefix_cache_bytes", "Memory of kept states of prefixes.", cached)
        yield self._gauge("luce:prefix_cache_entries", "Kept states of prefixes.", len(memory.cache.index))
        tallies = self._tallies
        yield self._counter(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            tallies.prefix_queries,
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Of these, tokens that were there.", tallies.prefix_hits
        )

    def _answers(self) -> Iterator[Metric]:
        tallies = self._tallies
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens, cached ones included.", tallies.prompt_tokens
        )
        yield self._counter("vllm:generation_tokens", "Generated tokens.", tallies.generation_tokens)
        yield self._counters(
            "vllm:request_success", "Requests that have ended, by how.", "finished_reason", tallies.ended
        )
        for name, says, values in (
            (
                "time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                "time_to_first_token",
            ),
            ("inter_token_latency_seconds", "Between two tokens of an answer.", "inter_token"),
            ("e2e_request_latency_seconds", "From arrival to end, of whole answers.", "latency"),
            ("request_queue_time_seconds", "Wait for a slot.", "queue_time"),
            ("request_prefill_time_seconds", "From the slot to the first token.", "prefill_time"),
            (
                "request_decode_time_seconds",
                "From the first token to the last, of whole answers.",
                "decode_time",
            ),
            ("request_prompt_tokens", "Prompt tokens of whole answers.", "request_prompt_tokens"),
            ("request_generation_tokens", "Tokens of whole answers.", "request_generation_tokens"),
            (
                "request_params_n",
                "Choices that requests asked for; each runs as a request.",
                "request_choices",
            ),
        ):
            yield self._histogram(f"vllm:{name}", says, getattr(tallies, values))

    def _steps(self) -> Iterator[Metric]:
        steps = self._service.loop.metrics
        yield self._histogram(
            "vllm:iteration_tokens_total", "Prompt and answer tokens in a step.", steps.step_rows
        )
        yield self._counter("llamacpp:n_decode", "Steps.", steps.steps)
        yield self._gauge(
            "llamacpp:n_tokens_max", "Tokens of the longest sequence so far.", self._tallies.longest
        )
        yield self._gauge(
            "llamacpp:n_busy_slots_per_decode",
            "Requests in a step, on average.",
            steps.lanes / max(1, steps.steps),
        )
        yield self._counter("luce:steps", "Steps.", steps.steps)
        yield self._counter("luce:step_rows", "Rows of all steps: prompt and answer tokens.", steps.rows)
        yield self._counter("luce:step_lanes", "Requests in steps, summed over steps.", steps.lanes)
        yield self._counter(
            "luce:device_seconds", "Time that steps took on the device.", steps.device_seconds
        )
        yield self._counter("luce:staged_passes", "Staged passes begun.", steps.passes)
        yield self._counter(
            "vllm:num_preemptions", "Slots taken away under memory pressure.", steps.saves + steps.drops
        )
        yield self._counters(
            "luce:parks",
            "Slots taken away: saved to host memory, or dropped to be computed again.",
            "how",
            {"save": steps.saves, "drop": steps.drops},
        )
        yield self._counter("luce:resumes", "Parked requests that came back.", steps.resumes)

    def _encoder(self) -> Iterator[Metric]:
        stats = self._service.encoder.cache.stats
        there = stats.hits + stats.joins
        asked = there + stats.encoded + stats.failed
        yield self._counter("vllm:mm_cache_queries", "Pictures looked up in the image cache.", asked)
        yield self._counter("vllm:mm_cache_hits", "Of these, pictures that were there or on the way.", there)
        yield self._counters(
            "luce:pictures",
            "Pictures that requests needed: encoded, failed, there already, or joined while on the way.",
            "how",
            {"encoded": stats.encoded, "failed": stats.failed, "hit": stats.hits, "joined": stats.joins},
        )


class _HttpReading(Collector):
    def __init__(self, tallies: HttpTallies) -> None:
        self._tallies = tallies

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "http_requests", "HTTP requests that are over.", labels=["method", "handler", "status"]
        )
        for names, count in self._tallies.requests.items():
            counts.add_metric(names, count)
        yield counts
        times = HistogramMetricFamily(
            "http_request_duration_seconds",
            "From a request's head to the end of its answer.",
            labels=["method", "handler"],
        )
        for key, values in self._tallies.seconds.items():
            times.add_metric(key, list(values.cumulated()), values.sum)
        yield times
