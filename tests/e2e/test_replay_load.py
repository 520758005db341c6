"""``luce replay load`` at a luce server of its own: shared prefixes hit, and both count the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import LUCE, ServerProcess, serving
from tests.sim.files import DATA

SHARED = 20
"""Blocks of 16 tokens: two turns of 128 and a part of a third."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(None, "--slots", "4", "--queue", "64") as server:
        yield server


def load(server: ServerProcess, trace: Path, report: Path, *flags: str) -> dict[str, Any]:
    command = [*LUCE, "replay", "load", server.url, str(trace), "--json", str(report), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def counted(report: dict[str, Any]) -> None:
    """Server and clients count the same answers and tokens."""
    beside = {one["name"]: one for one in report["server"]}
    for name in ("whole answers", "their prompt tokens", "their output tokens"):
        assert beside[name]["clients"] == beside[name]["server"] > 0, name


def test_shared_prefixes_hit(server: ServerProcess, tmp_path: Path) -> None:
    trace = tmp_path / "shared.jsonl"
    rows = []
    for number in range(4):
        own = [100 * (number + 1) + index for index in range(8)]
        names = own[:1] * SHARED + own if number == 2 else [*range(SHARED), *own]
        rows.append(
            {"timestamp": 2000 * number, "input_length": 512 * 28, "output_length": 4, "hash_ids": names}
        )
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = load(server, trace, tmp_path / "r.json", "--lengths", "32")
    counted(report)
    whole = report["whole_answers"]
    assert whole["prompt_tokens"] == pytest.approx(whole["prompt_tokens_wanted"], rel=0.05)
    assert whole["output_tokens"] == whole["output_tokens_wanted"] == 16
    assert whole["cached_tokens"] >= 2 * 2 * 120, "two later requests, two turns each"


@pytest.mark.slow
def test_pictures(server: ServerProcess, tmp_path: Path) -> None:
    client = DATA / "servegen_image_client20.trace.csv"
    report = load(
        server, client, tmp_path / "r.json",
        "--start", "7200", "--requests", "2", "--lengths", "16", "--most-tokens", "3", "--speed", "0.5",
    )  # fmt: skip
    assert report["requests"]["finished"] == 2
    counted(report)


def test_what_was_recorded_is_sent_again(server: ServerProcess, tmp_path: Path) -> None:
    """One prompt twice, one other, and one whose client left."""
    traces = tmp_path / "traces"
    with serving(None, "--slots", "2", "--trace", str(traces)) as recorded, recorded.http() as http:
        for text in ("Count.", "Count.", "Name three colours, and say why."):
            assert http.post("/v1/chat/completions", json=body(text, 5)).status_code == 200
        with http.stream("POST", "/v1/chat/completions", json=body("Go on.", 2000)) as answer:
            for _ in zip(answer.iter_lines(), range(8), strict=False):
                pass
        recorded.signal()
        assert recorded.wait(30) == 0
    report = load(server, traces, tmp_path / "r.json", "--speed", "2")
    assert (report["requests"]["finished"], report["requests"]["left"]) == (3, 1)
    whole = report["whole_answers"]
    assert whole["prompt_tokens"] == pytest.approx(whole["prompt_tokens_wanted"], abs=9)
    assert whole["output_tokens"] == whole["output_tokens_wanted"] == 15


def body(text: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "model": "luce-demo", "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True,
    }  # fmt: skip
