"""`luce demo`: four chart questions at once to the bundled model, answers beside the truth, each request's way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from luce.actors.service import Service
from luce.actors.token_buffer import Delta
from luce.cli.flags import FILE, ConfigFlags, ModelFlags, whole
from luce.cli.in_process import ask, load_with_progress, opened, running
from luce.cli.outputs import writing
from luce.cli.request_path import Stay, request_path
from luce.demo.case import Case
from luce.demo.drawing import Pixels
from luce.demo.submissions import png
from luce.demo.tasks import make_case
from luce.engines.loaded import LoadedModel
from luce.vision.data_url import data_url

__all__ = ["Shown", "chat_body", "demo", "run_cases", "save_charts"]

TASKS = ("tallest", "value", "describe", "many_which")


@attrs.define
class Shown:
    """One question and what became of it."""

    case: Case
    answer: str = ""
    tokens: int = 0
    seconds: float = 0.0
    outcome: str = ""
    path: list[Stay] = attrs.field(factory=list)

    @property
    def right(self) -> bool:
        return self.answer == self.case.completion


def demo(
    *,
    seed: Annotated[int, whole(0), Parameter(help="Which charts: another number, other charts.")] = 0,
    save: Annotated[
        Path | None, FILE, Parameter(help="Directory for the charts that are asked about, as PNG files.")
    ] = None,
    model_flags: ModelFlags = ModelFlags(),  # noqa: B008 - frozen
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Ask the bundled model four chart questions at once.

    Exit code 0 when every answer is right, 1 otherwise.
    """
    console = Console(highlight=False)
    progress = Console(stderr=True, highlight=False)
    found = opened(None, model_flags.options())
    cases = [make_case(task, seed, test=True) for task in TASKS]
    saved = save_charts(cases, save) if save is not None else []
    model = load_with_progress(found, progress)
    shown = trio.run(partial(run_cases, model, cases))
    console.print(answers_table(shown))
    for number, one in enumerate(shown, 1):
        console.print(f"{number}: {' → '.join(map(str, one.path))}", markup=False, soft_wrap=True)
    for path in saved:
        console.print(f"chart {path}", markup=False, soft_wrap=True)
    right = sum(one.right for one in shown)
    console.print(f"{right} of {len(shown)} answers are right")
    return 0 if right == len(shown) else 1


def save_charts(cases: list[Case], folder: Path) -> list[Path]:
    """Write the charts, each named after its question's number and kind. The folder is made if need be.

    Raises:
        ConfigError: they cannot be written; names ``--save``.
    """
    with writing(folder, "--save"):
        folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for number, case in enumerate(cases, 1):
        pictures = case.pictures()
        for index, pixels in enumerate(pictures, 1):
            part = f"-{index}" if len(pictures) > 1 else ""
            path = folder / f"{number}-{case.task}{part}.png"
            with writing(path, "--save"):
                path.write_bytes(png(pixels))
            saved.append(path)
    return saved


async def run_cases(model: LoadedModel, cases: list[Case]) -> list[Shown]:
    """All cases at once through one service."""
    shown = [Shown(case) for case in cases]
    async with running(model) as service, trio.open_nursery() as nursery:
        for one in shown:
            nursery.start_soon(_run, service, model, one)
    return shown


async def _run(service: Service, model: LoadedModel, shown: Shown) -> None:
    started = time.perf_counter()
    handle = await ask(service, model, chat_body(shown.case))
    while isinstance(item := await handle.next(), Delta):
        shown.answer += item.text
        shown.tokens += len(item.tokens)
    shown.seconds = time.perf_counter() - started
    shown.outcome = item.reason if item.error is None else str(item.error)
    shown.path = request_path(service.events, handle.id)


def chat_body(case: Case) -> dict[str, Any]:
    """The case as the body of a chat completion, greedy."""
    pictures = iter(case.pictures())
    body: dict[str, Any] = {
        "messages": [_message(message, pictures) for message in case.messages],
        "temperature": 0,
        "max_tokens": case.max_tokens,
        "chat_template_kwargs": {"enable_thinking": case.enable_thinking},
    }
    if case.tools is not None:
        body["tools"] = case.tools
    return body


def _message(message: dict[str, Any], pictures: Iterator[Pixels]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {
        "content": [
            {"type": "image_url", "image_url": {"url": data_url(png(next(pictures)))}}
            if part["type"] == "image"
            else part
            for part in content
        ]
    }


def answers_table(shown: list[Shown]) -> Table:
    table = Table(show_lines=True)
    for heading in ("", "question", "answer", "truth", "tokens", "seconds", ""):
        table.add_column(heading, justify="right" if heading in ("tokens", "seconds") else "left")
    for number, one in enumerate(shown, 1):
        mark = (
            "[green]right[/]" if one.right else f"[red]{'wrong' if one.outcome == 'stop' else one.outcome}[/]"
        )
        table.add_row(
            str(number),
            _question(one.case),
            _plain(one.answer),
            _plain(one.case.completion),
            str(one.tokens),
            f"{one.seconds:.2f}",
            mark,
        )
    return table


def _question(case: Case) -> str:
    content = case.messages[-1]["content"]
    if isinstance(content, str):
        return _plain(content)
    text = " ".join(part["text"] for part in content if part["type"] == "text")
    count = sum(part["type"] == "image" for part in content)
    return f"{_plain(text)} [dim]({count} chart{'s' if count != 1 else ''})[/]"


def _plain(text: str) -> str:
    """Text of the model's as text, not as rich's markup."""
    return text.replace("[", "\\[")
