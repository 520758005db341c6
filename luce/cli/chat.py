"""`luce chat`: a conversation in the terminal, pictures by path."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from luce.actors.service import Service
from luce.actors.submission import Handle
from luce.actors.token_buffer import Delta
from luce.cli.flags import COUNT, ChatModelFlags, ConfigFlags, ModelPath, whole
from luce.cli.in_process import ask, data_url, load_with_progress, opened, running
from luce.engines.loaded import LoadedModel
from luce.errors import LuceError
from luce.sampling.parameters import MAX_TEMPERATURE

__all__ = ["Conversation", "chat", "converse"]

HELP = """\
/image PATH   add a picture to the next message (can be repeated)
/system TEXT  set the system prompt and start again
/clear        start again
/help         this
/quit         leave (also Ctrl-D); Ctrl-C stops an answer"""


@attrs.define
class Conversation:
    """What has been said, as the messages of a chat completion, and pictures waiting for the next message."""

    system: str | None = None
    turns: list[dict[str, Any]] = attrs.field(factory=list)
    pictures: list[str] = attrs.field(factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + self.turns

    def say(self, text: str) -> None:
        """Add a message of the user with the waiting pictures, which come first."""
        content: Any = text
        if self.pictures:
            content = [{"type": "image_url", "image_url": {"url": url}} for url in self.pictures]
            content.append({"type": "text", "text": text})
            self.pictures = []
        self.turns.append({"role": "user", "content": content})

    def clear(self) -> None:
        self.turns.clear()
        self.pictures.clear()


def chat(
    model: ModelPath = None,
    /,
    *,
    image: Annotated[
        tuple[Path, ...], Parameter(negative="", help="Picture for the first message; can be repeated.")
    ] = (),
    system: Annotated[str | None, Parameter(help="System prompt.")] = None,
    temperature: Annotated[
        float | None,
        Parameter(
            validator=Number(gte=0, lte=MAX_TEMPERATURE), help="0 is greedy; by default the model's own."
        ),
    ] = None,
    seed: Annotated[int | None, whole(-(2**63), 2**63 - 1), Parameter(help="Repeatable answers.")] = None,
    max_tokens: Annotated[int | None, COUNT, Parameter(help="Longest answer in tokens.")] = None,
    thinking: Annotated[
        bool | None, Parameter(help="Let the model think first, or not; by default its template decides.")
    ] = None,
    model_flags: ChatModelFlags = ChatModelFlags(),  # noqa: B008 - frozen
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> None:
    """Talk to a model in the terminal; pictures by path."""
    console = Console(highlight=False, soft_wrap=True)
    conversation = Conversation(system, pictures=[data_url(path) for path in image])
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
    if thinking is not None:
        options["chat_template_kwargs"] = {"enable_thinking": thinking}
    progress = Console(stderr=True, soft_wrap=True, highlight=False)
    loaded = load_with_progress(opened(model, model_flags.options()), progress)
    if sys.stdin.isatty():
        console.print(f"{loaded.name}; /help lists what else can be said", style="dim", markup=False)
    trio.run(partial(converse, loaded, conversation, options, console, _prompted))


async def converse(
    model: LoadedModel,
    conversation: Conversation,
    options: dict[str, Any],
    console: Console,
    read: Callable[[], str | None],
) -> None:
    """Read, answer, until the input ends.

    Args:
        options: more fields of the requests.
        read: the next line, None at the end; called on a worker thread.
    """
    async with running(model) as service:
        while (line := await trio.to_thread.run_sync(read, abandon_on_cancel=True)) is not None:
            line = line.strip()
            if line == "/quit":
                break
            if line.startswith("/"):
                command(conversation, line, console)
            elif line or conversation.pictures:
                await answer(service, model, conversation, line, options, console)


def command(conversation: Conversation, line: str, console: Console) -> None:
    """Obey a line that begins with a slash."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/image" and rest:
        try:
            conversation.pictures.append(data_url(Path(rest.strip("'\""))))
        except LuceError as error:
            console.print(str(error), style="red", markup=False)
    elif name == "/system":
        conversation.clear()
        conversation.system = rest or None
    elif name == "/clear":
        conversation.clear()
    else:
        console.print(HELP, style="dim", markup=False)


async def answer(
    service: Service,
    model: LoadedModel,
    conversation: Conversation,
    text: str,
    options: dict[str, Any],
    console: Console,
) -> None:
    """One turn. A message that cannot be answered is dropped with its pictures."""
    turns = list(conversation.turns)
    conversation.say(text)
    try:
        handle = await ask(service, model, options | {"messages": conversation.messages})
    except LuceError as error:
        console.print(f"{error} (this message was dropped)", style="red", markup=False)
        conversation.turns = turns
        return
    said, note = await _stream(handle, console)
    if note:
        console.print(note, style="dim", markup=False)
    conversation.turns.append({"role": "assistant", "content": said})


async def _stream(handle: Handle, console: Console) -> tuple[str, str]:
    """Print an answer as it comes: (its text, why it ended if it did not end by itself). Ctrl-C stops it."""
    said = ""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_interrupt, handle)
        while isinstance(item := await handle.next(), Delta):
            said += item.text
            console.out(item.text, end="", highlight=False)
            console.file.flush()
        nursery.cancel_scope.cancel()
    console.out("")
    if item.error is not None:
        return said, str(item.error)
    return said, "" if item.reason == "stop" else f"[{item.reason}]"


async def _stop_on_interrupt(handle: Handle) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            handle.cancel()


def _prompted() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
