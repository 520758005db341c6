"""/metrics as Prometheus' own checker wants it, and as gateways and dashboards read it."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from luce.engines.fake.engine import FakeEngine, fake_capabilities
from tests.http.conftest import data_url, until
from tests.http.fake_model import live
from tests.http.test_service import body, whole
from tests.test_docs import ROOT

pytestmark = pytest.mark.trio

NAME = re.compile(r"(vllm|llamacpp|luce):[a-z][a-z0-9_]*|(http|process)_[a-z0-9_]+")
LABEL = re.compile(r"[a-z][a-z0-9_]*")


@pytest.fixture
async def families() -> dict[str, Metric]:
    """After an answer, a picture and a refusal."""
    engine = FakeEngine(fake_capabilities(num_slots=2))
    async with live(engine) as server, server.server.http() as client:
        await whole(client, body("some words", data_url(), max_tokens=5))
        await client.post("/v1/chat/completions", json={})
        await until(lambda: not server.service.requests)
        text = (await client.get("/metrics")).text
    assert text.endswith("\n")
    found = list(text_string_to_metric_families(text))
    assert len({one.name for one in found}) == len(found), "a family in two places"
    kinds = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    assert len(kinds) == len(dict(kinds)) == len(re.findall(r"^# HELP \S+ \S.*$", text, re.MULTILINE))
    assert not [kind for _, kind in kinds if kind in ("untyped", "unknown")]
    return {one.name: one for one in found}


async def test_names_kinds_and_units_are_prometheus_own(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert NAME.fullmatch(name), name
        assert family.documentation.endswith("."), name
        assert not re.search(r"milli|micro|minute|hour|_ms\b|_kb|_mb", name), "base units only"
        if family.type == "counter":
            assert all(sample.name == f"{name}_total" for sample in family.samples), name
        for sample in family.samples:
            assert all(LABEL.fullmatch(label) for label in sample.labels), sample
            assert math.isfinite(sample.value) and sample.value >= 0, sample


async def test_histograms_add_up(families: dict[str, Metric]) -> None:
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert len(histograms) >= 10
    for family in histograms:
        series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        counts: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in family.samples:
            labels = dict(sample.labels)
            end = labels.pop("le", None)
            key = tuple(sorted(labels.items()))
            if end is not None:
                series.setdefault(key, []).append((float(end), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        assert series.keys() == counts.keys()
        for key, buckets in series.items():
            assert buckets == sorted(buckets), "ends and counts ascend"
            assert buckets[-1] == (math.inf, counts[key])


async def test_what_gateways_read(families: dict[str, Metric]) -> None:
    """The model server protocol of the Gateway API's inference extension."""
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        (sample,) = families[name].samples
        assert families[name].type == "gauge" and sample.value == 0
    (config,) = families["vllm:cache_config_info"].samples
    assert int(config.labels["block_size"]) == 16 and int(config.labels["num_gpu_blocks"]) > 0


async def test_tokens_of_steps(families: dict[str, Metric]) -> None:
    """Each step once; all prompt rows and all tokens but the last, whose row is never computed."""
    values = {sample.name: sample.value for family in families.values() for sample in family.samples}
    assert values["vllm:iteration_tokens_total_count"] == values["luce:steps_total"] >= 5
    rows = values["vllm:request_prompt_tokens_sum"] + values["vllm:request_generation_tokens_sum"] - 1
    assert values["vllm:iteration_tokens_total_sum"] == values["luce:step_rows_total"] == rows
    assert values["llamacpp:n_tokens_max"] == rows + 1
    assert (values["vllm:mm_cache_queries_total"], values["vllm:mm_cache_hits_total"]) == (1, 0)


async def test_the_reference_lists_exactly_what_there_is(families: dict[str, Metric]) -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z]+[:_][a-z0-9_]+)", row)}
    served = {
        f"{name}_total" if family.type == "counter" else name
        for name, family in families.items()
        if not name.startswith("process_")
    }
    assert listed == served
