"""OpenTelemetry spans of requests, on real actors, read back from memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed (the extra otel)")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.http.request_spans import RequestSpans
from tests.http.conftest import data_url, until
from tests.http.fake_model import live
from tests.http.test_operation import stream_of
from tests.http.test_service import body, whole

pytestmark = pytest.mark.trio

SECRET = "Xyzzy"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def observe(spans: InMemorySpanExporter) -> Callable[[Any, Any], object]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return lambda service, app: RequestSpans(service, app, provider.get_tracer("test"), "fake")


def requests(spans: InMemorySpanExporter) -> list[tuple[ReadableSpan, list[ReadableSpan]]]:
    """Every span of a whole request with its parts in their order."""
    found = spans.get_finished_spans()
    whole = [span for span in found if span.kind is SpanKind.SERVER]
    return [
        (one, [s for s in found if s.parent is not None and s.parent.span_id == one.context.span_id])
        for one in whole
    ]


async def test_a_request_is_a_span_and_its_states_are_spans_in_it(
    spans: InMemorySpanExporter, observe: Any
) -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), times=Times(step=0.005, picture=0.05))
    before = time.time_ns()
    async with live(engine, observe=observe) as server, server.server.http() as client:
        asked = body(SECRET, data_url(), max_tokens=5, temperature=0.5, seed=3)
        response = await client.post("/v1/chat/completions", json=asked, headers={"x-request-id": "call-1"})
        await until(lambda: not server.service.requests)
    answer = response.json()
    ((span, parts),) = requests(spans)
    assert span.name == "chat fake" and span.status.status_code is StatusCode.UNSET
    names = [part.name for part in parts]
    assert names[0] == "queued" and names[-2:] == ["decoding", "ending"] and "staging" in names
    assert len(names) == len(set(names))
    times = [(part.start_time, part.end_time) for part in parts]
    assert span.start_time <= times[0][0] and span.end_time == times[-1][1]
    assert all(a[1] == b[0] for a, b in pairwise(times)), "one after the other"
    assert before <= span.start_time <= span.end_time <= time.time_ns()
    found = dict(span.attributes or {})
    assert 0 < found.pop("gen_ai.response.time_to_first_chunk") < (span.end_time - span.start_time) / 1e9
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "luce",
        "gen_ai.request.model": "fake",
        "gen_ai.response.id": answer["id"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "luce.request_id": "call-1",
        "luce.outcome": "finished",
        "luce.pictures": 1,
        "luce.parks": 0,
    }
    assert SECRET not in span.to_json()


async def test_spans_belong_to_the_caller_s_trace_and_never_to_another_s(
    spans: InMemorySpanExporter, observe: Any
) -> None:
    trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with live(FakeEngine(), observe=observe) as server, server.server.http() as client:
        await client.post(
            "/v1/chat/completions",
            json=body(max_tokens=2),
            headers={"traceparent": f"00-{trace}-{caller}-01"},
        )
        await whole(client, body(max_tokens=2))  # on the same connection
        await until(lambda: not server.service.requests)
    (first, _), (second, _) = requests(spans)
    assert first.context.trace_id == int(trace, 16)
    assert first.parent is not None and first.parent.span_id == int(caller, 16)
    assert second.parent is None and second.context.trace_id != first.context.trace_id


async def test_requests_that_do_not_end_well(spans: InMemorySpanExporter, observe: Any) -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096, num_slots=1), times=Times(step=0.002))
    async with live(engine, observe=observe, queue_timeout=0.3) as server, server.server.http() as client:
        connection = await stream_of(server, "runs")
        refused = await client.post("/v1/chat/completions", json=body("waits", max_tokens=3))
        assert refused.status_code == 503
        await connection.aclose()
        await until(lambda: not server.service.requests)
    found = {span.attributes["luce.outcome"]: (span, parts) for span, parts in requests(spans)}  # type: ignore[index]
    failed, parts = found["failed"]
    assert failed.status.status_code is StatusCode.ERROR
    assert [part.name for part in parts] == ["queued", "ending"]
    left, _ = found["cancelled"]
    assert left.status.status_code is StatusCode.UNSET
    assert "gen_ai.response.finish_reasons" not in left.attributes  # type: ignore[operator]


async def test_what_still_lives_when_the_service_breaks_has_an_end(
    spans: InMemorySpanExporter, observe: Any
) -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.002))
    async with live(engine, observe=observe) as server:
        connection = await stream_of(server, "runs")
        await until(lambda: server.engine.open_slots)
        server.service._feed("fault")
        ((span, parts),) = requests(spans)
        await connection.aclose()
    assert span.status.status_code is StatusCode.ERROR and parts[-1].end_time == span.end_time
    assert len(requests(spans)) == 1, "and no other one"
