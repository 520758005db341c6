"""aiperf, a load generator: a sweep over 1, 4 and 16 users on four slots, and its counts beside the server's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.facts import KEY
from tests.clients.install import require
from tests.clients.scripts import environment
from tests.e2e.server import ServerProcess
from tools.demo_model.export import SHIPPED, write_hf

USERS = (1, 4, 16)
REQUESTS = 32
"""At each number of users."""


def counters(server: ServerProcess) -> dict[str, float]:
    with server.http() as client:
        text = client.get("/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.labels.get("finished_reason", sample.name)
            totals[name] = totals.get(name, 0) + sample.value
    return totals


@pytest.mark.timeout(600)
def test_a_sweep(server: ServerProcess, known: Path, tmp_path: Path) -> None:
    program = require("aiperf").directory / "bin/aiperf"
    told = json.loads(known.read_text())
    write_hf(SHIPPED, tmp_path / "luce-demo")
    asked = {told[name]["question"]: told[name]["answer"] for name in ("count", "copy", "chart")}
    rows = [{"text": told[name]["question"]} for name in ("count", "copy")]
    rows.append({"text": told["chart"]["question"], "image": told["chart"]["file"]})
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = counters(server)
    done = subprocess.run(
        [
            *(str(program), "profile", "--model-names", "luce-demo", "--url", server.url, "--api-key", KEY),
            *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(tmp_path / "luce-demo")),
            *("--use-server-token-count", "--extra-inputs", '{"temperature": 0}'),
            *("--custom-dataset-type", "single_turn", "--input-file", str(tmp_path / "asked.jsonl")),
            *("--concurrency", ",".join(map(str, USERS)), "--request-count", str(REQUESTS)),
            *("--output-artifact-dir", str(tmp_path / "out"), "--export-level", "raw"),
            *("--ui-type", "none", "--no-server-metrics", "--no-gpu-telemetry"),
        ],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    after = counters(server)

    sweep = json.loads((tmp_path / "out/sweep_aggregate/profile_export_aiperf_sweep.json").read_text())
    assert sweep["failed_runs"] == [] and sweep["num_successful_runs"] == len(USERS)
    runs: list[dict[str, Any]] = []
    for users in USERS:
        folder = tmp_path / f"out/concurrency_{users}"
        run = json.loads((folder / "profile_export_aiperf.json").read_text())
        assert run["error_summary"] == [] and run["is_complete"] and not run["was_cancelled"]
        assert run["request_count"]["avg"] == REQUESTS and run["request_error_rate"]["avg"] == 0
        runs.append(run)
        right_answers(folder, asked)

    def found(name: str) -> float:
        return sum(run[name]["avg"] for run in runs)

    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["stop"] == found("request_count") == len(USERS) * REQUESTS
    assert grown["abort"] == grown["error"] == grown["length"] == 0
    assert grown["vllm:generation_tokens_total"] == found("total_usage_completion_tokens")
    assert grown["vllm:prompt_tokens_total"] == found("total_usage_prompt_tokens")
    assert grown["vllm:prefix_cache_hits_total"] == found("total_usage_prompt_cache_read_tokens")


def right_answers(folder: Path, asked: dict[str, str]) -> None:
    """Every stream as aiperf read it, put together, is the answer to the question of its own request."""
    inputs = json.loads((folder / "inputs.json").read_text())["data"]
    questions = {one["session_id"]: json.dumps(one["payloads"]) for one in inputs}
    records = [json.loads(line) for line in (folder / "profile_export_raw.jsonl").read_text().splitlines()]
    assert len(records) == REQUESTS
    for record in records:
        packets = [packet for response in record["responses"] for packet in response["packets"]]
        data = [packet["value"] for packet in packets if packet["name"] == "data"]
        choices = [choice for one in data if one != "[DONE]" for choice in json.loads(one)["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        question = questions[record["metadata"]["conversation_id"]]
        assert text in [answer for words, answer in asked.items() if words in question], (
            question[:200],
            text,
        )
