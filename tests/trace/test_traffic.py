"""Readers of public traces: real heads of them, and rows that are no such thing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from luce.errors import TraceFileError
from luce.trace.traffic.azure import read_azure
from luce.trace.traffic.burstgpt import FIRST, SECOND, read_burstgpt
from luce.trace.traffic.mooncake import read_mooncake
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.rows import MAX_LINE, lines
from luce.trace.traffic.servegen import read_servegen
from luce.trace.traffic.vllm_custom import CustomPrompt, read_vllm_custom
from tests.sim.files import DATA, long_traces

Reader = Callable[..., Iterator[TrafficRequest]]
CLIENT = (DATA / "servegen_image_client20.trace.csv", DATA / "servegen_image_client20.dataset.json")


# -- whole heads ------------------------------------------------------------------------------------------------------


def test_mooncake() -> None:
    requests = list(read_mooncake(DATA / "mooncake_conversation.jsonl"))
    assert len(requests) == 200
    assert requests[0] == TrafficRequest(0.0, 6758, 500, tuple(range(14)), 512)
    assert requests[-1].arrival == 72.0
    assert [len(r.prefix_blocks) for r in requests] == [math.ceil(r.prompt_tokens / 512) for r in requests]
    shared = [r for r in requests[1:] if r.prefix_blocks[0] == 0]
    assert len(shared) > 100  # the first block is a system prompt


def test_azure() -> None:
    requests = list(read_azure(DATA / "azure_conversation.csv"))
    assert len(requests) == 200
    assert requests[0] == TrafficRequest(0.0, 374, 44)
    assert requests[1].arrival == 4.314579  # 50.9951690 - 46.6805900
    assert len(list(read_azure(DATA / "azure_code.csv"))) == 100


def test_azure_with_picture_counts(tmp_path: Path) -> None:
    file = tmp_path / "lmm.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens,NumImages"
    file.write_bytes(
        f"{header}\r\n2025-01-01 23:59:59.9999999,9,8,0\r\n2025-01-02 00:00:00,7,6,2\r\n".encode()
    )
    first, second = read_azure(file)
    assert (first.images, second.images) == ((), (0, 0))
    assert second.arrival == 1e-7


@pytest.mark.parametrize(
    ("reader", "name"), [(read_mooncake, "mooncake_synthetic.jsonl"), (read_azure, "azure_code.csv")]
)
def test_a_limit_is_a_number_of_requests(reader: Reader, name: str) -> None:
    some = list(reader(DATA / name, 7))
    assert len(some) == 7 and some == list(reader(DATA / name))[:7]


def test_servegen_draws_what_its_files_say() -> None:
    client = read_servegen(*CLIENT)
    requests = list(client.requests(1, start=7200, seconds=1200))
    assert requests == list(client.requests(1, start=7200, seconds=1200))
    assert requests != list(client.requests(2, start=7200, seconds=1200))
    expected = 600 * (2.4983333333333335 + 3.828333333333333)
    assert 0.8 * expected < len(requests) < 1.2 * expected
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    assert requests[0].arrival > 0 and requests[-1].arrival < 1200
    assert {len(request.images) for request in requests} == {1, 2, 3}
    dataset = json.loads(CLIENT[1].read_text())["0"]
    counts: dict[int, float] = {}
    for entry in dataset["image_count"].strip("{}").split(", "):
        value, probability = entry.split(": ")
        counts[int(value)] = float(probability)
    for number in (1, 2, 3):
        share = sum(len(request.images) == number for request in requests) / len(requests)
        assert share == pytest.approx(counts[number], abs=0.04)
    for request in requests:
        assert request.prompt_tokens > sum(request.images) > 0 and request.output_tokens >= 1


def test_servegen_keeps_quiet_windows_quiet_and_takes_the_dataset_of_the_time() -> None:
    client = read_servegen(*CLIENT)
    assert list(client.requests(1, seconds=7200)) == []
    late = list(client.requests(3, start=21_600, seconds=6000))
    assert 10 < len(late) < 100
    assert {len(request.images) for request in late} <= set(client.dataset[1][1]["image_count"].values)


@pytest.mark.slow
def test_longer_heads() -> None:
    folder = long_traces()
    assert len(list(read_mooncake(folder / "mooncake_fast25_conversation_head1200.jsonl"))) == 1200
    assert len(list(read_mooncake(folder / "mooncake_fast25_synthetic_head800.jsonl"))) == 800
    assert len(list(read_azure(folder / "azure_llm_2023_conv_head6000.csv"))) == 6000
    assert len(list(read_azure(folder / "azure_llm_2023_code_head3000.csv"))) == 3000
    for number in (0, 20, 26):
        chunk = folder / f"servegen_mm_image_chunk{number}"
        client = read_servegen(f"{chunk}.trace.csv", f"{chunk}.dataset.json")
        drawn = sum(1 for _ in client.requests(1))
        assert drawn == pytest.approx(600 * sum(window.rate for window in client.arrivals), rel=0.2)


# -- scaling ----------------------------------------------------------------------------------------------------------


def test_scaled_prompts_keep_their_blocks() -> None:
    for request in read_mooncake(DATA / "mooncake_conversation.jsonl"):
        small = request.scaled(lengths=8, time=0.5)
        assert small.block_size == 64 and small.prefix_blocks == request.prefix_blocks
        assert len(small.prefix_blocks) == math.ceil(small.prompt_tokens / 64)
        assert small.arrival == request.arrival / 2


def test_scaling_rounds_up_and_keeps_pictures_part_of_the_prompt() -> None:
    small = TrafficRequest(1.0, 100, 1, images=(9, 41)).scaled(lengths=10)
    assert small == TrafficRequest(1.0, 5 + 1 + 5, 1, images=(1, 5))
    with pytest.raises(ValueError, match="blocks have 512 tokens"):
        TrafficRequest(0.0, 1, 1, (0,)).scaled(lengths=7)


# -- what is no trace -------------------------------------------------------------------------------------------------

GOOD_MOONCAKE = '{"timestamp": 5, "input_length": 513, "output_length": 2, "hash_ids": [1, 2]}'
GOOD_AZURE = "2023-11-16 18:17:03.9799600,4808,10"
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def mooncake(**changes: Any) -> str:
    return json.dumps(json.loads(GOOD_MOONCAKE) | changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "row 2: the line is empty"),
        ("[]", "row 2: Expected `object`"),
        ("{", "row 2: Input data was truncated"),
        (mooncake(timestamp=4), "row 2: timestamp 4 is earlier than 5"),
        (mooncake(timestamp=-1), r"row 2: Expected `int` >= 0 - at `\$.timestamp`"),
        (mooncake(timestamp=5.5), r"row 2: Expected `int`, got `float` - at `\$.timestamp`"),
        (mooncake(input_length="513"), r"row 2: Expected `int`, got `str` - at `\$.input_length`"),
        (mooncake(input_length=0, hash_ids=[]), r"row 2: .*at `\$.input_length`"),
        (mooncake(output_length=10**9), r"row 2: .*at `\$.output_length`"),
        (mooncake(hash_ids=[1]), "row 2: hash_ids has 1 entries; 513 tokens are 2 blocks of 512"),
        (mooncake(hash_ids=[1, -2]), r"row 2: .*at `\$.hash_ids\[1\]`"),
        (mooncake(session_id="a"), "row 2: Object contains unknown field `session_id`"),
        ('{"timestamp": 5}', "row 2: Object missing required field `input_length`"),
        (mooncake(hash_ids=[10**400, 1]), "row 2: "),
        ("[" * 100_000, "row 2: "),
        (" " * MAX_LINE, "row 2: the line has 1048576 characters or more"),
    ],
)
def test_mooncake_rows_that_are_none(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{GOOD_MOONCAKE}\n{line}\n{GOOD_MOONCAKE}\n")
    with pytest.raises(TraceFileError, match=rf"trace.jsonl: {message}"):
        list(read_mooncake(file))
    assert len(list(read_mooncake(file, 1))) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "row 3: the line is empty"),
        ("2023-11-16 18:17:03.9799600,4808", "row 3: has 2 cells, the header 3"),
        ("2023-11-16 18:17:03.9799599,4808,10", "row 3: TIMESTAMP is earlier"),
        ("2023-11-31 18:17:03.9799600,4808,10", "row 3: TIMESTAMP must look like"),
        ("2023-11-16T18:17:03.9799600,4808,10", "row 3: TIMESTAMP must look like"),
        ("2023-11-16 18:17:03.97996001,4808,10", "row 3: TIMESTAMP must look like"),
        ("2023-11-16 18:17:04,-1,10", "row 3: ContextTokens must be a whole number from 1 to"),
        ("2023-11-16 18:17:04,0,10", "row 3: ContextTokens"),
        ("2023-11-16 18:17:04,1,1e3", "row 3: GeneratedTokens"),
        ("2023-11-16 18:17:04,1,99999999999999", "row 3: GeneratedTokens"),
        ("2023-11-16 18:17:04,1,٣", "row 3: GeneratedTokens"),
    ],
)
def test_azure_rows_that_are_none(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"{AZURE_HEADER}\n{GOOD_AZURE}\n{line}\n", encoding="utf-8")
    with pytest.raises(TraceFileError, match=rf"trace.csv: {message}"):
        list(read_azure(file))


@pytest.mark.parametrize("content", ["", "\n", "TIMESTAMP,ContextTokens\n", GOOD_AZURE])
def test_azure_needs_its_header(content: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(content)
    with pytest.raises(TraceFileError, match=r"row 1: (the header must be|the line is empty)"):
        list(read_azure(file))


BURSTGPT_ROW = "5,ChatGPT,472,18,490,Conversation log"


def test_burstgpt(tmp_path: Path) -> None:
    """Both releases; times count from the first row, rows of failures are passed over."""
    file = tmp_path / "burst.csv"
    rows = [
        BURSTGPT_ROW,
        "45.5,GPT-4,1087,0,1087,API log",
        "46,GPT-4,0,0,0,API log",
        "118,GPT-4,417,276,693,API log",
    ]
    file.write_text("\r\n".join([",".join(FIRST), *rows]) + "\r\n")
    assert list(read_burstgpt(file)) == [TrafficRequest(0.0, 472, 18), TrafficRequest(113.0, 417, 276)]
    assert list(read_burstgpt(file, 1)) == [TrafficRequest(0.0, 472, 18)]
    file.write_text(",".join(SECOND) + "\n19440110.5,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log\n")
    assert list(read_burstgpt(file)) == [TrafficRequest(0.0, 906, 446)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "row 3: the line is empty"),
        ("6,ChatGPT,472,18,490", "row 3: has 5 cells, the header 6"),
        ("4,ChatGPT,472,18,490,API log", "row 3: Timestamp is earlier"),
        ("x,ChatGPT,472,18,490,API log", "row 3: Timestamp must be a number of seconds, not 'x'"),
        ("nan,ChatGPT,472,18,490,API log", "row 3: Timestamp must be a number"),
        ("-1,ChatGPT,472,18,490,API log", "row 3: Timestamp must be a number"),
        ("1e9,ChatGPT,472,18,490,API log", "row 3: Timestamp must be a number"),
        ("6,ChatGPT,-1,18,490,API log", "row 3: Request tokens must be a whole number from 0"),
        ("6,ChatGPT,1,99999999999,490,API log", "row 3: Response tokens must be a whole number"),
    ],
)
def test_burstgpt_rows_that_are_none(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    file.write_text(f"{','.join(FIRST)}\n{BURSTGPT_ROW}\n{line}\n")
    with pytest.raises(TraceFileError, match=rf"burst.csv: {message}"):
        list(read_burstgpt(file))


def test_burstgpt_needs_its_header(tmp_path: Path) -> None:
    file = tmp_path / "burst.csv"
    for content in ("", BURSTGPT_ROW):
        file.write_text(content)
        with pytest.raises(TraceFileError, match=r"row 1: the header must be Timestamp,Model"):
            list(read_burstgpt(file))


def test_vllm_custom(tmp_path: Path) -> None:
    file = tmp_path / "custom.jsonl"
    file.write_text('{"prompt": "What?", "output_tokens": 7, "category": "x"}\n{"prompt": "Why?\\n"}\n')
    assert list(read_vllm_custom(file)) == [CustomPrompt("What?", 7), CustomPrompt("Why?\n", None)]
    assert len(list(read_vllm_custom(file, 1))) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "row 2: the line is empty"),
        ("[]", "row 2: Expected `object`"),
        ("{}", "row 2: Object missing required field `prompt`"),
        ('{"prompt": ""}', r"row 2: Expected `str` of length >= 1 - at `\$.prompt`"),
        ('{"prompt": ["a"]}', r"row 2: Expected `str`, got `array` - at `\$.prompt`"),
        ('{"prompt": "a", "output_tokens": 0}', r"row 2: .*at `\$.output_tokens`"),
        ('{"prompt": "a", "image_files": ["a.png"]}', "row 2: image_files are not read"),
    ],
)
def test_vllm_rows_that_are_none(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "custom.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(TraceFileError, match=rf"custom.jsonl: {message}"):
        list(read_vllm_custom(file))


@pytest.mark.parametrize("reader", [read_mooncake, read_azure, read_burstgpt, read_vllm_custom])
def test_files_that_cannot_be_read(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match=r"missing: cannot be read: No such file"):
        list(reader(tmp_path / "missing"))
    with pytest.raises(TraceFileError, match=r"cannot be read: Is a directory"):
        list(reader(tmp_path))
    (tmp_path / "binary").write_bytes(b"\x80\xff\n")
    with pytest.raises(TraceFileError, match=r"binary: row 1: is not UTF-8 text"):
        list(reader(tmp_path / "binary"))


def test_the_row_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Files are read thousands of bytes ahead."""
    file = tmp_path / "trace"
    good = "ünï,1,2".encode()
    for place in range(1, 4):
        rows = [good] * 3
        rows[place - 1] = b"1,\xff\xfe,2"
        file.write_bytes(b"\n".join(rows) + b"\n")
        read = lines(file)
        assert [next(read) for _ in range(place - 1)] == [(row, "ünï,1,2") for row in range(1, place)]
        with pytest.raises(TraceFileError, match=f"trace: row {place}: is not UTF-8 text"):
            next(read)


ROW = "0,1.5,1,Gamma,2,0.3"
FIELDS = dict.fromkeys(("text_tokens", "image_tokens", "image_count", "output_tokens"), "{3: 0.25, 4: 0.75}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "row 2: the line is empty"),
        ("600,1", "row 2: has 2 cells"),
        ("600,x,1,Gamma,2,0.3", "row 2: must be a number that is not negative, not 'x'"),
        ("600,nan,1,Gamma,2,0.3", "row 2: must be a number"),
        ("600,-1,1,Gamma,2,0.3", "row 2: must be a number"),
        ("600,inf,1,Gamma,2,0.3", "row 2: must be a number"),
        ("600,1,1,Pareto,2,0.3", "row 2: the family must be Gamma or Weibull, not 'Pareto'"),
        ("600,1,1,,2,0.3", "row 2: the family must be"),
        ("600,1,1,Gamma,0,0.3", "row 2: shape must be at least 0.01"),
        ("300,1,1,Gamma,2,0.3", "row 2: the window begins less than 600 s after"),
    ],
)
def test_servegen_rows_that_are_none(row: str, message: str, tmp_path: Path) -> None:
    trace, dataset = tmp_path / "c.csv", tmp_path / "c.json"
    trace.write_text(f"{ROW}\n{row}\n")
    dataset.write_text(json.dumps({"0": FIELDS}))
    with pytest.raises(TraceFileError, match=rf"c.csv: {message}"):
        read_servegen(trace, dataset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`"),
        ('{"0": {"text_tokens": 1}}', "Expected `str`"),
        ({}, "has no window for the arrivals from 0 s on"),
        ({"600": FIELDS}, "has no window for the arrivals from 0 s on"),
        ({"x": FIELDS}, "window 'x' is no second"),
        ({"600": FIELDS, "0": FIELDS}, "window '0' is no second after those before it"),
        ({"0": FIELDS | {"fps": "{1: 1}"}}, "window 0: unknown field 'fps'"),
        ({"0": {"text_tokens": "{1: 1}"}}, "window 0: image_tokens is missing"),
        ({"0": FIELDS | {"audio_count": "{1: 1.0}"}}, "window 0: audio_count is not 0"),
        ({"0": FIELDS | {"text_tokens": "{}"}}, "window 0: text_tokens must be a dict that is not empty"),
        ({"0": FIELDS | {"text_tokens": "[1]"}}, "window 0: text_tokens must be a dict"),
        ({"0": FIELDS | {"text_tokens": "{-1: 1.0}"}}, "window 0: text_tokens: -1 is no whole number"),
        ({"0": FIELDS | {"image_count": "{1001: 1.0}"}}, "window 0: image_count: 1001 is no whole number"),
        ({"0": FIELDS | {"text_tokens": "{True: 1.0}"}}, "window 0: text_tokens: True is no whole number"),
        ({"0": FIELDS | {"text_tokens": "{1: 0.5}"}}, "window 0: text_tokens: the probabilities sum to 0.5"),
        (
            {"0": FIELDS | {"text_tokens": "{1: 1.5, 2: -0.5}"}},
            "window 0: text_tokens: 1.5 is no probability",
        ),
        ({"0": FIELDS | {"text_tokens": "{1: '1'}"}}, "window 0: text_tokens: '1' is no probability"),
        ({"0": FIELDS | {"text_tokens": "{[]: 1}"}}, "window 0: text_tokens is no literal"),
        ({"0": FIELDS | {"text_tokens": "__import__('os').getcwd()"}}, "window 0: text_tokens is no literal"),
        ({"0": FIELDS | {"text_tokens": "{" * 5000}}, "window 0: text_tokens is no literal"),
        ({"0": FIELDS | {"text_tokens": "{1: 1\0}"}}, "window 0: text_tokens is no literal"),
    ],
)
def test_servegen_datasets_that_are_none(content: Any, message: str, tmp_path: Path) -> None:
    trace, dataset = tmp_path / "c.csv", tmp_path / "c.json"
    trace.write_text(ROW)
    dataset.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TraceFileError, match=rf"c.json: {message}"):
        read_servegen(trace, dataset)
