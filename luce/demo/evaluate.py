"""Scores the demo tasks by exact match, through any way of asking the model.

    python -m luce.demo.evaluate --url http://127.0.0.1:8000 [--tasks describe count] [--cases 100] [--json FILE]

asks a running server over its OpenAI interface.  Inside a program, `evaluate` takes any callable with the signature
of `Answerer`.
"""

import argparse
import base64
import io
import json
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import attrs
from PIL import Image

from luce.demo.case import Case, Message
from luce.demo.drawing import Pixels
from luce.demo.tasks import GOALS, SCORED, TEST_CASES, test_cases
from luce.demo.tool_tasks import render_call


class Answerer(Protocol):
    """Asks the model greedily and gives back what it wrote.

    `messages` are in OpenAI form with `{"type": "image"}` parts, one for each of `images` (H, W, 3) uint8 in order.
    The text may or may not begin with the think block; tool calls are in their XML form.
    """

    def __call__(
        self,
        messages: list[Message],
        images: Sequence[Pixels],
        max_tokens: int,
        *,
        tools: list[dict[str, Any]] | None,
        enable_thinking: bool,
    ) -> str: ...


@attrs.frozen
class Failure:
    index: int
    wanted: str
    got: str


@attrs.frozen
class Score:
    task: str
    cases: int
    failures: tuple[Failure, ...]

    @property
    def exact(self) -> float:
        """Share of exact answers."""
        return 1 - len(self.failures) / self.cases

    @property
    def reached(self) -> bool:
        return self.exact >= GOALS[self.task]


def visible(text: str) -> str:
    """The answer without its think block."""
    _, closed, after = text.partition("</think>")
    return (after if closed else text).strip("\n")


def ask(case: Case, answer: Answerer) -> str:
    text = answer(
        case.messages,
        case.pictures(),
        case.max_tokens,
        tools=case.tools,
        enable_thinking=case.enable_thinking,
    )
    return visible(text)


def score(task: str, cases: Iterable[Case], answer: Answerer, concurrency: int = 1) -> Score:
    """Asks every case of one task, up to `concurrency` at a time."""
    listed = list(cases)
    with ThreadPoolExecutor(concurrency) as pool:
        answers = list(pool.map(lambda case: ask(case, answer), listed))
    pairs = enumerate(zip(listed, answers, strict=True))
    failures = tuple(Failure(i, case.answer, got) for i, (case, got) in pairs if got != case.answer)
    return Score(task, len(listed), failures)


def evaluate(
    answer: Answerer,
    tasks: Sequence[str] = SCORED,
    cases: int = TEST_CASES,
    concurrency: int = 1,
) -> Iterator[Score]:
    """Scores of the first `cases` fixed test cases of each task, one task after the other."""
    for task in tasks:
        yield score(task, test_cases(task, cases), answer, concurrency)


def data_url(pixels: Pixels) -> str:
    """The picture as a PNG in a data URL."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def with_data_urls(messages: list[Message], images: Sequence[Pixels]) -> list[Message]:
    """The messages with the image parts as OpenAI clients send them."""
    left = iter(images)

    def part(item: dict[str, Any]) -> dict[str, Any]:
        if item["type"] != "image":
            return item
        return {"type": "image_url", "image_url": {"url": data_url(next(left))}}

    return [
        m | {"content": [part(item) for item in m["content"]]} if isinstance(m["content"], list) else m
        for m in messages
    ]


def over_http(url: str, model: str, timeout: float = 600) -> Answerer:
    """Asks a server's /v1/chat/completions.  Raises urllib.error.HTTPError when the server refuses."""

    def answer(
        messages: list[Message],
        images: Sequence[Pixels],
        max_tokens: int,
        *,
        tools: list[dict[str, Any]] | None,
        enable_thinking: bool,
    ) -> str:
        body: dict[str, Any] = {
            "model": model,
            "messages": with_data_urls(messages, images),
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": enable_thinking},
        }
        if tools:
            body["tools"] = tools
        request = urllib.request.Request(
            url.rstrip("/") + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            message = json.load(reply)["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        rendered = [render_call(call["name"], json.loads(call["arguments"])) for call in calls]
        return "\n".join([*([message["content"]] if message.get("content") else []), *rendered])

    return answer


def line(result: Score) -> str:
    """One row of the report."""
    mark = "" if result.reached else "  below"
    goal = 100 * GOALS[result.task]
    return f"{result.task:18s} {100 * result.exact:6.2f} %  of {result.cases}, goal {goal:.0f} %{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="luce-demo")
    parser.add_argument("--tasks", nargs="+", default=list(SCORED), choices=SCORED)
    parser.add_argument("--cases", type=int, default=TEST_CASES)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write every failure here")
    args = parser.parse_args()
    results = []
    for result in evaluate(over_http(args.url, args.model), args.tasks, args.cases, args.concurrency):
        print(line(result), flush=True)
        results.append(result)
    if args.json:
        args.json.write_text(json.dumps([attrs.asdict(result) for result in results], indent=1))
    sys.exit(not all(result.reached for result in results))


if __name__ == "__main__":
    main()
