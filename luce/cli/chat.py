"""`luce chat`: a conversation in the terminal, pictures by path."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
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
from luce.cli.in_process import Picture, ask, load_with_progress, opened, read_picture, running
from luce.cli.terminal import line_editing, prompted
from luce.engines.loaded import LoadedModel, Preparer
from luce.errors import ConfigError, LuceError, quoted
from luce.sampling.parameters import MAX_TEMPERATURE
from luce.vision.header import HeaderError, image_header

__all__ = ["Conversation", "chat", "converse"]

HELP = """\
/image PATH   add a picture to the next message (can be repeated)
/system TEXT  set the system prompt and start again
/clear        start again
/help         this
/quit         leave (also Ctrl-D); Ctrl-C stops an answer"""

COMMANDS = ("/image", "/system", "/clear", "/help", "/quit")
BARE = ("/clear", "/help", "/quit")
"""Take nothing after them."""


@attrs.define
class Conversation:
    """What has been said, as the messages of a chat completion, and pictures waiting for the next message."""

    system: str | None = None
    turns: list[dict[str, Any]] = attrs.field(factory=list)
    pictures: list[Picture] = attrs.field(factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + self.turns

    def say(self, text: str) -> None:
        """Add a message of the user with the waiting pictures, which come first."""
        content: Any = text
        if self.pictures:
            content = [{"type": "image_url", "image_url": {"url": one.url}} for one in self.pictures]
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
    if sys.stdin is None:
        raise ConfigError("standard input is closed: there is nothing to read messages from")
    refuse_picture(model)
    if system is not None:
        check_text(system, "--system")
    found = opened(model, model_flags.options())
    conversation = Conversation(
        system, pictures=[read_picture(path, found.prompts, "--image") for path in image]
    )
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
    if thinking is not None:
        options["chat_template_kwargs"] = {"enable_thinking": thinking}
    progress = Console(stderr=True, soft_wrap=True, highlight=False)
    loaded = load_with_progress(found, progress)
    if sys.stdin.isatty():
        console.print(f"{loaded.name}; /help lists what else can be said", style="dim", markup=False)
        for picture in conversation.pictures:
            console.print(f"{picture}, for the first message", style="dim", markup=False)
    with line_editing():
        trio.run(partial(converse, loaded, conversation, options, console, prompted))


def refuse_picture(model: Path | None) -> None:
    """Raises ConfigError when a picture stands where the model's path belongs."""
    try:
        if model is None or not model.is_file():
            return
        with model.open("rb") as file:
            image_header(file.read(1 << 20))
    except (OSError, ValueError, HeaderError):
        return  # no picture; whether it is a model is said where it is opened
    raise ConfigError(f"{model} is a picture, not a model; write --image {shlex.quote(str(model))}")


def check_text(text: str, flag: str | None = None) -> None:
    """Raises ConfigError for bytes that are no UTF-8; Python hands them on as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fault = f"the text is not UTF-8 at character {error.start + 1}, {quoted(text[error.start])}"
        raise ConfigError(fault, flag=flag) from None


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
                await trio.to_thread.run_sync(command, conversation, line, console, model.preparer)
            elif line or conversation.pictures:
                try:
                    check_text(line)
                except ConfigError as error:
                    console.print(f"{error}; it was not sent", style="red", markup=False)
                else:
                    await answer(service, model, conversation, line, options, console)


def command(conversation: Conversation, line: str, console: Console, preparer: Preparer) -> None:
    """Obey a line that begins with a slash, and say what was done or what is wrong with it."""
    name, *rest = line.split(maxsplit=1)
    try:
        said = _obey(conversation, name, rest[0] if rest else "", preparer)
    except LuceError as error:
        console.print(str(error), style="red", markup=False)
    else:
        console.print(said, style="dim", markup=False)


def _obey(conversation: Conversation, name: str, rest: str, preparer: Preparer) -> str:
    """What was done. Raises ConfigError for what cannot be."""
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"{name} is no command; {meant}/help lists them (/image PATH adds a picture)")
    if name in BARE and rest:
        raise ConfigError(f"{name} takes nothing after it")
    if name == "/image":
        if not rest:
            raise ConfigError("/image needs the path of a picture: /image PATH")
        picture = read_picture(Path(rest.strip("'\"")), preparer)
        conversation.pictures.append(picture)
        count = len(conversation.pictures)
        return f"{picture}, for the next message{f' ({count} pictures)' if count > 1 else ''}"
    if name == "/help":
        return HELP
    check_text(rest)
    conversation.clear()
    if name == "/clear":
        return "started again"
    conversation.system = rest or None
    return "started again with this system prompt" if rest else "started again without a system prompt"


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
