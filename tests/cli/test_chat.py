"""`luce chat` on a tiny random model: the conversation, its commands, and what is said against wrong ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

from luce.cli import main as command
from luce.cli.chat import Conversation, converse
from luce.engines.loaded import LoadedModel
from luce.vision.data_url import data_url


def talk(model: LoadedModel, conversation: Conversation, *lines: str, **options: Any) -> str:
    out = Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
    rest = iter(lines)
    options = {"temperature": 0, "max_tokens": 12} | options
    trio.run(converse, model, conversation, options, out, lambda: next(rest, None))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_chat_keeps_the_conversation(model: LoadedModel, picture: Path) -> None:
    conversation = Conversation("Be brief.")
    talk(model, conversation, "Hello", f"/image {picture}", "What is this?", "")
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert conversation.messages[3]["content"][0]["image_url"]["url"] == data_url(picture.read_bytes())
    assert conversation.messages[3]["content"][1] == {"type": "text", "text": "What is this?"}


def test_chat_commands(model: LoadedModel) -> None:
    conversation = Conversation()
    said = talk(
        model,
        conversation,
        "Hi",
        "/help",
        "/image /no/such.png",
        "/nonsense",
        "/system Rhyme.",
        "/quit",
        "no",
    )
    assert said.count("/image PATH   add") == 1
    assert "/no/such.png: No such file or directory" in said
    assert "/nonsense is no command" in said
    assert conversation.messages == [{"role": "system", "content": "Rhyme."}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/image", "/image needs the path of a picture"),
        ("/imge a.png", "/imge is no command; did you mean /image?"),
        ("/", "/ is no command"),
        ("/tmp/a.png", "/image PATH adds a picture"),
        ("/clear all", "/clear takes nothing after it"),
        ("/quit now", "/quit takes nothing after it"),
        ("/image ~no_such_user_/a.png", "~no_such_user_/a.png: "),
        ("/image a\0b", "a\0b: "),
        ("/image .", ".: Is a directory"),
        ("/image /dev/zero", "/dev/zero: has more than 20971520 bytes"),
    ],
)
def test_commands_that_cannot_be_obeyed_say_why(model: LoadedModel, line: str, said: str) -> None:
    """And nothing is sent or changed."""
    conversation = Conversation("Be brief.", [{"role": "user", "content": "Hi"}])
    assert said in talk(model, conversation, line)
    assert conversation == Conversation("Be brief.", [{"role": "user", "content": "Hi"}])


def test_commands_say_what_they_did(model: LoadedModel, picture: Path, tmp_path: Path) -> None:
    conversation = Conversation()
    wrong_name = picture.rename(tmp_path / "my picture.txt")
    said = talk(model, conversation, f"/image {wrong_name}", f"/image\t'{wrong_name}'")
    assert said.splitlines() == [
        "my picture.txt: 64×48 pixels, for the next message",
        "my picture.txt: 64×48 pixels, for the next message (2 pictures)",
    ]
    assert conversation.pictures[0].url.startswith("data:image/png;")
    assert talk(model, conversation, "/clear") == "started again\n"
    assert conversation == Conversation()


@pytest.mark.parametrize("data", [b"no picture", b"", b"\x89PNG\r\n\x1a\n", None])
def test_what_is_no_picture_is_refused_by_name_at_once(
    model: LoadedModel, picture: Path, tmp_path: Path, data: bytes | None
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(picture.read_bytes()[:-30] if data is None else data)
    conversation = Conversation()
    said = talk(model, conversation, f"/image {broken}", "Hello")
    assert said.startswith(f"{broken} is ")
    assert [message["content"] for message in conversation.messages if message["role"] == "user"] == ["Hello"]


def test_chat_goes_on_after_a_refusal(model: LoadedModel) -> None:
    conversation = Conversation()
    said = talk(model, conversation, "x" * 4000, "Hello")
    assert "(this message was dropped)" in said
    assert [message["content"] for message in conversation.messages if message["role"] == "user"] == ["Hello"]


def test_pictures_on_the_command_line(
    folder: Path, tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    for arguments, said in (
        (["chat", str(folder), "--image", str(broken)], f"luce: --image: {broken} is no supported image"),
        (["chat", str(picture)], f"luce: {picture} is a picture, not a model; write --image {picture}\n"),
        (["chat", str(broken)], f"luce: {broken}"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        err = capsys.readouterr().err
        assert err.startswith(said) and err.count("\n") == 1
        assert ended.value.code == (1 if arguments[-1] == str(broken) and len(arguments) == 2 else 2)
