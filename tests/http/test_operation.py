"""What operators and gateways read, over a real socket on real actors: /metrics, /slots, /props, cancelling by id."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import openai
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from luce.actors.tallies import PHASES
from luce.charts.explorer import reachable
from luce.charts.loader import load_chart
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.http.image_sources.hosts import HostRule
from luce.http.image_sources.options import ImageSourceOptions
from luce.http.options import HttpOptions
from luce.http.props import _shown
from tests.http.conftest import data_url, until
from tests.http.fake_model import Live, live
from tests.http.test_connections import request
from tests.http.test_service import body, whole

pytestmark = pytest.mark.trio

CHAT = "/v1/chat/completions"
SECRET = "a word that only its writer knows"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(client: httpx.AsyncClient) -> Series:
    """Every sample by name and labels, ``model_name`` checked and left out."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    found: Series = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            if not sample.name.startswith(("process_", "http_")):
                assert labels.pop("model_name") == "fake", sample
            key = sample.name, frozenset(labels.items())
            assert key not in found, "twice"
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


async def stream_of(server: Live, text: str, n: int = 1, **headers: str) -> trio.SocketStream:
    """A stream whose request runs or waits, nothing of it read."""
    connection = await server.server.connect()
    extra = "".join(f"{name}: {it}\r\n" for name, it in headers.items())
    before = len(server.service.requests)
    await connection.send_all(request(body(text, max_tokens=3000, stream=True, n=n), headers=extra))
    await until(lambda: len(server.service.requests) > before)  # so that they come in this order
    return connection


def slow(**changes: Any) -> FakeEngine:
    return FakeEngine(fake_capabilities(max_context=4096, **changes), times=Times(step=0.002))


async def test_metrics_count_what_clients_were_told() -> None:
    async with live(FakeEngine(fake_capabilities(snapshots=True))) as server, server.server.http() as client:
        before = await scraped(client)
        asked = [body("the same words at the start of each of them " * 2), body("short", data_url())]
        answers = [await whole(client, one) for one in (*asked, asked[0])]
        await until(lambda: not server.service.requests)
        after = await scraped(client)
        steps = server.service.loop.metrics.steps
    usage = [answer["usage"] for answer in answers]
    generated = sum(one["completion_tokens"] for one in usage)
    prompts = sum(one["prompt_tokens"] for one in usage)
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in usage)
    assert cached > 0, "the cache was hit"
    mine = [{key for key in one if not key[0].startswith("http_")} for one in (before, after)]
    assert mine[0] == mine[1], "every series is there from the start"
    expected = {
        "vllm:generation_tokens_total": generated,
        "vllm:prompt_tokens_total": prompts,
        "vllm:prefix_cache_queries_total": prompts,
        "vllm:prefix_cache_hits_total": cached,
        "vllm:inter_token_latency_seconds_count": generated - 3,
        "vllm:request_generation_tokens_sum": generated,
        "vllm:request_prompt_tokens_sum": prompts,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "llamacpp:n_decode_total": steps,
        "luce:steps_total": steps,
    }
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        expected[f"vllm:{name}_count"] = 3
    for name, count in expected.items():
        assert value(after, name) == count, name
        assert name.startswith("vllm:num") or not value(before, name), name
    assert value(after, "vllm:request_success_total", finished_reason="length") == 3
    assert value(after, "luce:pictures_total", how="encoded") == 1
    config = {"block_size": "16", "num_gpu_blocks": str(server.engine.capabilities.num_blocks)}
    assert value(after, "vllm:cache_config_info", **config, enable_prefix_caching="True") == 1
    assert value(after, "luce:server", state="ready") == 1


def counts_of(series: Series) -> dict[tuple[str, str, str], float]:
    """Of HTTP requests."""
    return {
        (labels["method"], labels["handler"], labels["status"]): count
        for (name, names), count in series.items()
        if name == "http_requests_total" and (labels := dict(names))
    }


async def test_http_requests_are_counted_by_address_and_no_series_is_made_up() -> None:
    async with live(slow()) as server, server.server.http() as client:
        await whole(client, body(max_tokens=3))
        await client.post(CHAT, json={})
        await client.get("/v1/models/fake")
        for number in range(3):
            await client.get(f"/nowhere-{number}")
            await client.request(f"STRANGE{number}", "/health")
        connection = await server.server.connect()
        await connection.send_all(request(body(max_tokens=3000)))
        await until(lambda: server.service.requests)
        await connection.aclose()
        with trio.fail_after(20):  # it is counted once its own task is over, behind the request
            series = await scraped(client)
            while len(counts := counts_of(series)) < 6:
                series = await scraped(client)
    assert counts == {
        ("POST", CHAT, "2xx"): 1,
        ("POST", CHAT, "4xx"): 1,
        ("POST", CHAT, "none"): 1,
        ("GET", "/v1/models/{name}", "2xx"): 1,
        ("GET", "none", "4xx"): 3,
        ("other", "none", "4xx"): 3,
    }
    assert value(series, "http_request_duration_seconds_count", method="POST", handler=CHAT) == 3


async def test_time_to_first_token_begins_with_the_request_not_its_preparation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body that dribbles in counts, as for vLLM."""
    async with live(FakeEngine()) as server, server.server.http() as client:
        data = request(body(), headers="Connection: close\r\n")
        connection = await server.server.connect()
        await connection.send_all(data[:-5])
        await trio.sleep(0.3)
        await connection.send_all(data[-5:])
        async for _ in connection:
            pass
        series = await scraped(client)
    assert value(series, "vllm:time_to_first_token_seconds_sum") >= 0.3
    assert value(series, "vllm:e2e_request_latency_seconds_sum") >= 0.3
    assert value(series, "vllm:request_queue_time_seconds_sum") < 0.3


async def test_gauges_and_slots_show_every_request_where_it_is() -> None:
    async with live(slow(num_slots=2)) as server, server.server.http() as client:
        streams = [
            await stream_of(server, f"{SECRET} {index}", **{"x-request-id": f"call-{index}"})
            for index in range(3)
        ]
        await until(lambda: len(server.service.loop.waiting) == 1)
        await until(lambda: all(r.num_generated > 3 for r in server.service.loop.running.values()))
        series = await scraped(client)
        response = await client.get("/slots")
        seen = response.json()
        full = await client.get("/slots?fail_on_no_slot=1")
        for one in streams:
            await one.aclose()
        await until(lambda: not server.service.requests)
        later = await scraped(client)
        empty = (await client.get("/slots?fail_on_no_slot=1")).json()
    assert value(series, "vllm:num_requests_running") == 2
    assert value(series, "vllm:num_requests_waiting") == 1
    assert 0 < value(series, "vllm:kv_cache_usage_perc") <= 1
    states = Counter(state for one in seen["requests"] for state in one["states"])
    assert states["decoding"] == 2 and states["queued"] == 1 and states["flowing"] == 3
    for state in load_chart("request").states:
        assert value(series, "luce:requests", state=state) == states[state], state
        assert value(later, "luce:requests", state=state) == 0, state
    assert value(later, "vllm:request_success_total", finished_reason="abort") == 3
    assert value(later, "vllm:e2e_request_latency_seconds_count") == 0, "none of them is a whole answer"

    assert (seen["slots"], seen["free"]) == (2, 0)
    assert [one["request_id"] for one in seen["requests"]] == ["call-0", "call-1", "call-2"]
    running, waiting = seen["requests"][:2], seen["requests"][2]
    for one in running:
        assert one["id"].startswith("chatcmpl-")
        assert one["phase"] == "decoding"
        assert one["slot"] in (0, 1)
        assert one["generated_tokens"] > 3
        assert one["position"] == one["prompt_tokens"] + one["generated_tokens"] - 1
        assert one["blocks"] * 16 >= one["position"]
        assert one["max_tokens"] == 3000
        assert one["seconds"] >= one["seconds_in_state"] > 0
    assert (waiting["phase"], waiting["slot"], waiting["blocks"], waiting["position"]) == (
        "queued",
        None,
        0,
        0,
    )
    assert SECRET.split()[2] not in response.text
    assert full.status_code == 503 and full.headers["retry-after"]
    assert empty == {"slots": 2, "free": 2, "requests": []}


async def test_slots_count_pictures() -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.002, picture=0.5))
    async with live(engine) as server, server.server.http() as client:
        connection = await server.server.connect()
        pictures = [data_url(5, 4), data_url(6, 4)]
        await connection.send_all(request(body("words", *pictures, max_tokens=3000, stream=True)))
        await until(lambda: len(server.service.requests) == 1)
        counts = set()
        with trio.fail_after(10):
            while (0 if not counts else max(counts)) < 2:
                (one,) = (await client.get("/slots")).json()["requests"]
                assert one["pictures"] == 2
                counts.add(one["pictures_encoded"])
                await trio.sleep(0.02)
        await connection.aclose()
    assert {0, 2} <= counts <= {0, 1, 2}


async def test_slots_take_no_other_wish() -> None:
    async with live(FakeEngine()) as server, server.server.http() as client:
        for query in ("fail_on_no_slot=yes", "fail_on_no_slot=", "slot=1"):
            assert (await client.get(f"/slots?{query}")).status_code == 400


@pytest.mark.parametrize("by", ["answer", "request"])
@pytest.mark.parametrize("how", ["post", "delete"])
async def test_a_stream_is_cancelled_by_id(by: str, how: str) -> None:
    async with live(slow()) as server, server.server.http() as client:
        other = await stream_of(server, "another one")
        connection = await stream_of(server, "one", **{"x-request-id": "my-call", "connection": "close"})
        await until(lambda: len(server.engine.open_slots) == 2)
        found = {one["request_id"]: one["id"] for one in (await client.get("/slots")).json()["requests"]}
        name = found["my-call"] if by == "answer" else "my-call"
        path = f"/v1/requests/{name}"
        response = await (client.post(f"{path}/cancel") if how == "post" else client.delete(path))
        data = b""
        with trio.fail_after(5):
            async for piece in connection:
                data += piece
        await until(lambda: len(server.service.requests) == 1)
        assert len(server.engine.open_slots) == 1, "the other one goes on"
        again = await client.post(f"{path}/cancel")
        await other.aclose()
    assert response.status_code == 200
    assert response.json() == {"id": name, "object": "request.cancelled", "cancelled": [found["my-call"]]}
    assert b'"code":"cancelled"' in data
    assert b"[DONE]" not in data
    assert again.status_code == 404
    assert again.json()["error"]["code"] == "request_not_found"


@pytest.mark.parametrize("name", ["job/7", "a//b", "/", "100%", "x/cancel", "?a=b#c"])
async def test_whatever_name_a_caller_gave_is_taken(name: str) -> None:
    """Any visible ASCII may stand in an x-request-id."""
    async with live(slow()) as server, server.server.http() as client:
        other = await stream_of(server, "another one", **{"x-request-id": "a/b"})
        ways = (("/cancel", client.post), ("", client.delete))
        # An address that ends like the first way's is that.
        for path, send in ways[:1] if name.endswith("/cancel") else ways:
            connection = await stream_of(server, "one", **{"x-request-id": name, "connection": "close"})
            await until(lambda: len(server.engine.open_slots) == 2)
            response = await send(f"/v1/requests/{quote(name, safe='')}{path}")
            assert response.status_code == 200 and response.json()["id"] == name, response.text
            await until(lambda: len(server.service.requests) == 1)
            await connection.aclose()
        await other.aclose()


async def test_each_address_tells_its_own_methods() -> None:
    async with live(slow()) as server, server.server.http() as client:
        for path, methods in (("one", {"DELETE", "OPTIONS"}), ("one/cancel", {"POST", "OPTIONS"})):
            allowed = (await client.options(f"/v1/requests/{path}")).headers["allow"]
            assert set(allowed.split(", ")) == methods


async def test_one_of_several_choices_is_named_as_slots_do() -> None:
    """All that runs for a request goes with it."""
    async with live(slow()) as server, server.server.http() as client:
        connection = await stream_of(server, "one", n=2)
        await until(lambda: len(server.engine.open_slots) == 2)
        ids = [one["id"] for one in (await client.get("/slots")).json()["requests"]]
        response = await client.post(f"/v1/requests/{ids[1]}/cancel")
        assert ids[1].endswith("/1") and response.json()["cancelled"] == ids
        await until(lambda: not server.service.requests)
        await connection.aclose()


async def test_whole_answers_are_cancelled_without_being_asked_again() -> None:
    """The queued one and the running one; OpenAI's client asks again after 409, 429 and 5xx."""
    ends: list[openai.APIStatusError] = []

    async def ask(server: Live, name: str) -> None:
        async with server.server.openai(max_retries=2) as client:
            with pytest.raises(openai.APIStatusError) as ended:
                await client.chat.completions.create(
                    model="fake",
                    messages=[{"role": "user", "content": name}],
                    max_tokens=3000,
                    extra_headers={"x-request-id": name},
                )
        ends.append(ended.value)

    async with live(slow(num_slots=1)) as server, server.server.http() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, server, "runs")
            await until(lambda: server.engine.open_slots)
            nursery.start_soon(ask, server, "waits")
            await until(lambda: len(server.service.requests) == 2)
            for name in ("waits", "runs"):
                assert (await client.post(f"/v1/requests/{name}/cancel")).status_code == 200
        await until(lambda: not server.service.requests)
        total = value(await scraped(client), "vllm:request_success_total", finished_reason="abort")
    assert [one.status_code for one in ends] == [499, 499]
    assert {one.code for one in ends} == {"cancelled"}
    assert total == 2


@pytest.mark.parametrize("name", ["chatcmpl-none", "%00", "x" * 2000, "ünknown"])
async def test_unknown_ids_are_404(name: str) -> None:
    async with live(FakeEngine()) as server, server.server.http() as client:
        response = await client.post(f"/v1/requests/{name}/cancel")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "request_not_found"
    assert len(response.text) < 500


async def test_props_say_what_is_in_force() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=3, snapshots=True))
    options = HttpOptions(max_images=5, aliases=("other",), api_keys=("a-secret-key",))
    async with (
        live(engine, options, max_queued=7, request_timeout=9.0, prefix_bytes=1 << 20) as server,
        server.server.http() as client,
    ):
        assert (await client.get("/props")).status_code == 401
        response = await client.get("/props", headers={"x-api-key": "a-secret-key"})
    props = response.json()
    assert props["schema"] == 2
    assert props["state"] == "ready"
    assert props["model"]["name"] == "fake" and props["model"]["aliases"] == ["other"]
    assert props["model"]["sampling_defaults"]["temperature"] == {"value": 0.0, "source": "built-in"}
    assert props["limits"]["slots"] == 3
    assert props["limits"]["max_queued"] == 7
    assert props["limits"]["max_queued_tokens"] == 16 * engine.capabilities.max_context
    assert props["limits"]["request_timeout"] == 9.0
    assert props["limits"]["max_images"] == 5
    assert props["limits"]["max_connections"] == 1024 and props["limits"]["max_streams"] == 100
    assert props["limits"]["head_timeout"] == 20 and props["limits"]["idle_timeout"] == 75
    assert props["capabilities"]["prefix_cache"] is True
    assert props["caches"]["kv"]["blocks"] == props["caches"]["kv"]["free"] == engine.capabilities.num_blocks
    assert props["caches"]["prefixes"]["budget_bytes"] == 1 << 20
    assert "a-secret-key" not in response.text
    assert props["access"] == {"api_keys": 1, "cors_origins": [], "tls": False}
    assert {"GET /props", "POST /v1/chat/completions", "GET /v1/models/{name}"} <= set(props["endpoints"])
    for kind, one in (("http", HttpOptions()), ("service", server.service.options)):
        names = {field.name for field in attrs.fields(type(one)) if field.repr}
        assert names > {"max_images"} or names > {"max_queued"}
        assert props["settings"][kind].keys() == names, "every option, whoever added it"
    assert props["settings"]["http"]["max_images"] == 5 and props["settings"]["service"]["max_queued"] == 7


async def test_props_show_that_a_file_is_named_and_not_which() -> None:
    @attrs.frozen
    class Named:
        certificate: Path | None = Path("/etc/secret.pem")
        key: str = attrs.field(default="hidden", repr=False)
        other: Path | None = None
        off: bool = False

    assert _shown(Named()) == {"certificate": True, "other": None, "off": False}  # type: ignore[arg-type]


async def test_props_with_hosts_and_a_folder_for_pictures(tmp_path: Path) -> None:
    """Options within options, too: a path is never said."""
    sources = ImageSourceOptions(
        hosts=(HostRule("example.org", 81), HostRule("*.example.net")), folder=tmp_path
    )
    for given, urls in ((sources, ["data", "http", "https", "file"]), (ImageSourceOptions(), ["data"])):
        options = HttpOptions(image_sources=given)
        async with live(FakeEngine(), options) as server, server.server.http() as client:
            response = await client.get("/props")
        props = response.json()
        assert response.status_code == 200 and str(tmp_path) not in response.text
        assert props["capabilities"]["image_urls"] == urls
        shown = props["settings"]["http"]["image_sources"]
        assert shown["hosts"] == [str(rule) for rule in given.hosts]
        assert shown["folder"] is (True if given.folder else None)


async def test_a_living_request_is_in_exactly_one_phase() -> None:
    """In every configuration of the chart that is not the end of its task."""
    for here in reachable(load_chart("request")):
        found = [phase for phase in PHASES if phase in here.active]
        assert len(found) == (0 if here.finished else 1), here.states
