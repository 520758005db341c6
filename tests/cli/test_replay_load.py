"""``luce replay load``: files, exit codes, and what is refused."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from luce.cli import main as command
from luce.cli.replay_load import _Progress
from luce.replay.load.fire import fire
from luce.replay.load.tally import Tally
from tests.replay.scripted_server import Scripted, scripted
from tests.sim.files import DATA

Run = Callable[..., tuple[int, str, str]]
AZURE = DATA / "azure_code.csv"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Code, output, errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            command.main(["replay", "load", *map(str, arguments)])
        output, errors = capsys.readouterr()
        return int(ended.value.code or 0), output, errors

    return call


@pytest.fixture
def server() -> Iterator[Scripted]:
    """In a thread, since the command has a loop of its own."""
    made, there = Scripted(fail=lambda body: 429 if body["max_tokens"] == 13 else None), threading.Event()
    over: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def serve() -> None:
        with trio.CancelScope() as scope:
            async with scripted(made):
                over.append((trio.lowlevel.current_trio_token(), scope))
                there.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    there.wait()
    yield made
    token, scope = over[0]
    token.run_sync_soon(scope.cancel)
    thread.join()


def test_a_report_in_three_forms(run: Run, server: Scripted, tmp_path: Path) -> None:
    numbers, page = tmp_path / "r.json", tmp_path / "r.html"
    flags = ["--requests", "8", "--rate", "100", "--most-tokens", "3", "--max-open", "100"]
    code, output, errors = run(server.url, AZURE, *flags, "--json", numbers, "--html", page)
    assert (code, errors) == (0, "")
    assert output.startswith(f"{server.url}, scripted: 8 requests in ")
    assert "8 answered whole" in output
    report = json.loads(numbers.read_text())
    assert (report["luce_load"], report["model"], report["trace"]) == (1, "scripted", "azure: azure_code.csv")
    assert report["requests"]["finished"] == 8
    assert report["whole_answers"]["prompt_tokens"] == report["whole_answers"]["prompt_tokens_wanted"]
    assert report["arrivals"]["late_seconds"]["count"] == 8
    assert report["options"]["rate"] == 100 and "key_file" not in report["options"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert len(server.asked) == 8


def test_requests_without_an_answer_end_with_1(run: Run, server: Scripted, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt": "a b", "output_tokens": 13}\n{"prompt": "c"}\n')
    code, output, _ = run(server.url, trace, "--rate", 50, "--output-tokens", 2)
    assert code == 1 and "1 answered whole; 1 refused by the server" in output
    assert sorted(body["messages"][0]["content"] for body in server.asked) == ["a b", "c"]
    assert sorted(body["max_tokens"] for body in server.asked) == [2, 13]


def test_a_server_that_says_nothing(run: Run, server: Scripted) -> None:
    server.silent = "/v1/models"
    code, output, errors = run(server.url, AZURE, "--timeout", 0.2)
    assert (code, output) == (1, "") and not server.asked
    assert errors == f"luce: {server.url}/v1/models: no whole answer within 0.2 s (--timeout)\n"
    server.silent = "/metrics"
    code, output, errors = run(
        server.url, AZURE, "--timeout", 2, "--requests", 2, "--rate", 50, "--most-tokens", 2
    )
    assert (code, errors) == (0, "") and "2 answered whole" in output


def test_metrics_that_go_silent_are_told(run: Run, server: Scripted) -> None:
    def go_silent(server: Scripted) -> str:
        server.silent = "/metrics"
        return "# TYPE a counter\na_total 1\n"

    server.metrics = go_silent
    code, output, errors = run(server.url, AZURE, "--timeout", 1, "--requests", 1, "--most-tokens", 2)
    assert code == 0 and "1 answered whole" in output
    assert (
        errors == f"luce: {server.url}/metrics could not be read behind the load, so nothing of it is told\n"
    )


@pytest.mark.parametrize("good", [400, 405])
def test_a_bad_row_behind_a_load_that_has_begun(
    run: Run, server: Scripted, tmp_path: Path, good: int
) -> None:
    trace, numbers, page = tmp_path / "t.jsonl", tmp_path / "r.json", tmp_path / "r.html"
    row = '{"timestamp": %d, "input_length": %d, "output_length": 2, "hash_ids": [1]}\n'
    rows = [row % (5 * index, 20) for index in range(good)]
    trace.write_text("".join([*rows, row % (9000, -1), row % (9001, 20)]))
    code, output, errors = run(server.url, trace, "--json", numbers, "--html", page)
    assert code == 1 and f"{good} answered whole" in output and len(server.asked) == good
    report = json.loads(numbers.read_text())
    assert report["requests"]["finished"] == good and f"row {good + 1}: " in report["cut"]
    assert errors == f"luce: {report['cut']}; what stands before was sent\n"
    assert f"row {good + 1}: " in page.read_text()


SERVEGEN = DATA / "servegen_image_client20.trace.csv"
"""Nobody arrives in its first two hours."""


def test_a_trace_that_begins_late_says_so_and_how_long_it_was_waited(
    run: Run, server: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    numbers, shown = tmp_path / "r.json", []

    async def stopped(*arguments: Any) -> Tally:
        *others, watch = arguments

        def begun(tally: Tally) -> None:
            watch(tally)
            tally.next_due = 7200.0
            shown.append(_Progress(tally, trio.lowlevel.current_clock()).__rich__())
            signal.raise_signal(signal.SIGINT)

        return await fire(*others, begun)

    monkeypatch.setattr("luce.replay.load.fire.fire", stopped)
    code, output, errors = run(server.url, SERVEGEN, "--requests", 3, "--json", numbers)
    assert code == 130
    assert re.fullmatch(r"luce: the first request is due in 7,2\d\d s; --start 72\d\d begins there\n", errors)
    assert re.search(
        r"^  stopped after 0\.\d s, 7,\d+\.\d s before the next request was due$", output, re.MULTILINE
    )
    assert json.loads(numbers.read_text())["stopped_after_seconds"] >= 0
    assert re.search(r", the next is due in 7,20\d s$", shown[0]) and not server.asked


def test_what_the_notice_names_begins_at_once(run: Run, server: Scripted) -> None:
    flags = ["--requests", 3, "--most-tokens", 2, "--speed", 1000, "--lengths", 8]
    _, _, errors = run(server.url, SERVEGEN, *flags)
    start = re.search(r"due in 7 s; --start (\d+) begins", errors)
    assert start is not None
    code, output, errors = run(server.url, SERVEGEN, *flags, "--start", start[1])
    assert (code, errors) == (0, "") and "3 answered whole" in output


def test_an_empty_window_is_told(run: Run, server: Scripted) -> None:
    code, output, errors = run(server.url, SERVEGEN, "--seconds", 600)
    assert (code, "nothing was sent" in output) == (0, True)
    assert errors == "luce: no request of the trace lies in what is taken (--start, --seconds)\n"


def test_refusals(run: Run, server: Scripted, tmp_path: Path) -> None:
    vllm = tmp_path / "v.jsonl"
    vllm.write_text('{"prompt": "a"}\n')
    key = tmp_path / "key"
    key.write_text("\n")
    bad = tmp_path / "bad.csv"
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,1\n")
    mooncake = DATA / "mooncake_conversation.jsonl"
    for arguments, code, said in (
        (["host", AZURE], 2, "URL: write it as http://HOST:PORT"),
        ([server.url, tmp_path / "none"], 1, "none: cannot be read: No such file"),
        ([server.url], 2, "requires an argument"),
        ([server.url, key], 1, "begins like no trace that is known"),
        ([server.url, vllm], 2, "--rate: prompts of vLLM have no times"),
        ([server.url, AZURE, AZURE], 2, "TRACE: a trace of azure is one file; 2 are named"),
        ([server.url, bad], 1, "bad.csv: row 2: TIMESTAMP must look like"),
        ([server.url, mooncake, "--lengths", "7"], 2, "--lengths: lengths cannot be divided by 7"),
        ([server.url, AZURE, "--key-file", key], 2, "--key-file: "),
        ([server.url, AZURE, "--json", AZURE], 2, "--json: "),
        ([server.url, AZURE, "--html", tmp_path / "no" / "dir"], 2, "--html: "),
        ([server.url, AZURE, "--speed", "0"], 2, "--speed"),
        (
            ["http://127.0.0.1:1", AZURE],
            1,
            "http://127.0.0.1:1: the connection was refused: nobody listens there; start",
        ),
        ([server.url, DATA / "servegen_image_client20.dataset.json"], 2, "name the …trace.csv of one client"),
    ):
        ended, _, errors = run(*arguments)
        assert (ended, said in errors) == (code, True), (arguments, errors)
        assert errors.count("\n") == 1
    assert not server.asked
