"""chat, demo, logits and doctor on a tiny random model."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from PIL import Image
from rich.console import Console

from luce.cli import main as command
from luce.cli.chat import Conversation, converse
from luce.cli.demo import chat_body
from luce.cli.doctor import alone_and_beside, examine
from luce.cli.in_process import data_url
from luce.cli.request_path import request_path
from luce.demo.case import Case
from luce.engines.load_model import LoadOptions, load_engine, load_model, open_model
from luce.engines.loaded import LoadedModel
from luce.errors import RequestError
from luce.trace.events import EventRecord
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("tiny"), random_model())


@pytest.fixture
def model(folder: Path) -> LoadedModel:
    return load_model(open_model(folder, LoadOptions(slots=2, context=1024)))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path)
    return path


# -- chat -------------------------------------------------------------------------------------------------------------


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


# -- demo -------------------------------------------------------------------------------------------------------------


def test_demo_saves_the_charts_that_it_asks_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def listening(case: Case) -> dict[str, Any]:
        body = chat_body(case)
        parts = [
            part for message in body["messages"] for part in message["content"] if isinstance(part, dict)
        ]
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        asked.extend(base64.b64decode(url.split(",")[1]) for url in urls)
        return body

    monkeypatch.setattr("luce.cli.demo.chat_body", listening)
    folder = tmp_path / "new" / "charts"
    with pytest.raises(SystemExit):
        command.main(["demo", "--seed", "3", "--save", str(folder)])
    out = capsys.readouterr().out
    saved = sorted(folder.iterdir())
    assert len(saved) > 4 and {path.name.split("-")[0] for path in saved} == {"1", "2", "3", "4"}
    assert sorted(path.read_bytes() for path in saved) == sorted(asked)
    for path in saved:
        assert f"chart {path}\n" in out
        with Image.open(path) as image:
            assert image.format == "PNG"


def test_demo_says_that_charts_cannot_be_saved_before_it_loads_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luce.cli.demo.load_with_progress", lambda *_: pytest.fail("it was loaded"))
    (tmp_path / "file").write_text("")
    (tmp_path / "charts" / "1-tallest.png").mkdir(parents=True)
    for path, fault in (("file", "file: File exists"), ("charts", "charts/1-tallest.png: Is a directory")):
        with pytest.raises(SystemExit) as ended:
            command.main(["demo", "--save", str(tmp_path / path)])
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"luce: --save: {tmp_path}/{fault}\n"


# -- logits -----------------------------------------------------------------------------------------------------------


def logits(folder: Path, tmp_path: Path, request: dict[str, Any], *flags: str) -> dict[str, np.ndarray]:
    (tmp_path / "r.json").write_text(json.dumps(request))
    out = tmp_path / "x.npz"
    with pytest.raises(SystemExit) as ended:
        command.main(
            ["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", str(out), *flags]
        )
    assert ended.value.code == 0
    with np.load(out) as arrays:
        return dict(arrays)


def test_logits_of_ids(folder: Path, tmp_path: Path) -> None:
    arrays = logits(folder, tmp_path, {"ids": [3, 1, 4, 1, 5]}, "--hidden", "--vision")
    assert set(arrays) == {"ids", "position_ids", "logits", *(f"hidden_{i}" for i in range(4))}
    assert arrays["ids"].tolist() == [3, 1, 4, 1, 5]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 3
    assert (arrays["logits"].shape, arrays["logits"].dtype) == ((5, 320), np.float32)
    assert arrays["hidden_0"].shape == (5, 64)
    assert np.isfinite(arrays["logits"]).all()


def test_logits_with_pictures_in_every_form(folder: Path, tmp_path: Path, picture: Path) -> None:
    """One pad or the full run, by path or as a data URL in messages: the same numbers."""
    content = [{"type": "image"}, {"type": "text", "text": "Look"}]
    messages = [{"role": "user", "content": content}]
    first = logits(folder, tmp_path, {"messages": messages, "images": [picture.name]}, "--vision")
    pad = open_model(folder, LoadOptions()).config.image_token_id
    ids = first["ids"].tolist()
    length = ids.count(pad)
    assert length > 1
    assert first["image_rows_0"].shape == (length, 64)
    one_pad = [token for place, token in enumerate(ids) if token != pad or ids[place - 1] != pad]
    url = [{"type": "image_url", "image_url": {"url": data_url(picture.read_bytes())}}, content[1]]
    for request in (
        {"ids": ids, "images": [picture.name]},
        {"ids": one_pad, "images": [str(picture)]},
        {"messages": [{"role": "user", "content": url}]},
    ):
        other = logits(folder, tmp_path, request)
        for name in ("ids", "position_ids", "logits"):
            assert np.array_equal(first[name], other[name]), name


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "ids"),
        ({"ids": [1], "messages": []}, "ids"),
        ({"ids": []}, "ids"),
        ({"ids": [100000]}, "ids[0]"),
        ({"ids": ["a"]}, "ids[0]"),
        ({"ids": [1], "images": ["none.png"]}, "images[0]"),
        ({"idz": [1]}, "idz"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "images"),
        ({"messages": [{"role": "user", "content": "a"}], "images": ["a.png"]}, "images"),
        ({"ids": [1], "tools": [{}]}, "tools"),
    ],
)
def test_bad_logits_requests(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], request_: dict[str, Any], said: str
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(request_))
    with pytest.raises(SystemExit) as ended:
        command.main(
            ["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", str(tmp_path / "x.npz")]
        )
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith(f"luce: {tmp_path / 'r.json'}: ") and err.count("\n") == 1, err
    assert said in err and "the body" not in err
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 200 + "]" * 200])
def test_logits_requests_that_are_no_object(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    request = tmp_path / "r.json"
    request.write_text(text)
    with pytest.raises(SystemExit) as ended:
        command.main(["logits", str(folder), "--request", str(request), "--out", str(tmp_path / "x.npz")])
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (1, 1), err
    assert err.startswith(f"luce: {request}: the file ")


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("none/x.npz", "No such file or directory"),
        ("", "Is a directory"),
        ("r.json/x.npz", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_known_before_anything_is_loaded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    said: str,
) -> None:
    monkeypatch.setattr("luce.cli.logits.open_model", lambda *_, **__: pytest.fail("the model was opened"))
    request = tmp_path / "r.json"
    request.write_text('{"ids": [1]}')
    with pytest.raises(SystemExit) as ended:
        command.main(["logits", "model", "--request", str(request), "--out", str(tmp_path / out)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"luce: --out: {tmp_path / out}: {said}\n"


def test_an_output_that_was_there_is_kept_when_the_request_is_wrong(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"old")
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(SystemExit):
        command.main(
            ["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", str(tmp_path / "x.npz")]
        )
    assert (tmp_path / "x.npz").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text('{"ids": [1]}')
    with pytest.raises(SystemExit) as ended:
        command.main(["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", "/dev/full"])
    assert ended.value.code == 2
    assert "luce: --out: /dev/full: " in capsys.readouterr().err


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_finds_this_machine_good(folder: Path) -> None:
    findings = {finding.name: finding for finding in examine(folder)}
    assert all(finding.good for finding in findings.values())
    assert "threads=1" in findings["device"].text


def test_doctor_names_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path / "none")}
    assert not findings["exactness"].good
    assert "does not exist" in findings["exactness"].text


def test_self_test_sees_a_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Armed: an engine whose logits depend on the number of lanes in a step is found out."""
    engine = load_engine(open_model(folder, LoadOptions(slots=4, context=128), chat=False))
    try:
        assert alone_and_beside(engine) == []
        real = engine.collect

        def inexact(ticket: Any) -> Any:
            import attrs

            result = real(ticket)
            if len(result.outcomes) < 2:
                return result
            outcomes = [
                attrs.evolve(
                    outcome,
                    tokens=tuple(attrs.evolve(t, logprob=np.nextafter(t.logprob, 0)) for t in outcome.tokens),
                )
                for outcome in result.outcomes
            ]
            return attrs.evolve(result, outcomes=tuple(outcomes))

        monkeypatch.setattr(engine, "collect", inexact)
        assert alone_and_beside(engine)
    finally:
        engine.shutdown()


# -- the way of a request ---------------------------------------------------------------------------------------------


def record(t: float, *states: str, name: str = "a", machine: str = "request") -> EventRecord:
    return EventRecord(0, t, machine, name, "e", 0, states)


def test_path_of_a_request() -> None:
    events = [
        record(0.0, "live", "phase", "queued", "client", "flowing"),
        record(0.5, "live", "phase", "queued", "client", "flowing", name="b"),
        record(0.7, "ready", machine="loop"),
        record(1.0, "live", "phase", "encoding", "client", "flowing"),
        record(1.25, "live", "phase", "staging", "staging_chunk", "client", "flowing"),
        record(1.5, "live", "phase", "staging", "staging_wait_rows", "client", "flowing"),
        record(2.0, "live", "phase", "decoding", "client", "stalled"),
        record(2.5, "ending", "ending_outcome", "ending_finished", "ending_rows", "rows_held"),
        record(2.75, "finished"),
    ]
    assert list(map(str, request_path(events, "a"))) == [
        "queued 1000 ms",
        "encoding 250 ms",
        "staging 750 ms",
        "decoding 500 ms",
        "finished",
    ]
    assert request_path(events, "c") == []


def test_reading_a_prompt_needs_a_template(folder: Path, tmp_path: Path) -> None:
    """A model without chat template can still give logits of ids."""
    bare = write_hf(tmp_path / "bare", random_model())
    (bare / "chat_template.jinja").unlink()
    assert logits(bare, tmp_path, {"ids": [1, 2]})["logits"].shape == (2, 320)
    prompts = open_model(bare, LoadOptions(), chat=False).prompts
    with pytest.raises(RequestError, match="no chat template"):
        prompts.build([{"role": "user", "content": "Hi"}])
