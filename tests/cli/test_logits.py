"""`luce logits` on a tiny random model: the arrays that it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luce.cli import main as command
from luce.engines.load_model import LoadOptions, open_model
from luce.errors import RequestError
from luce.vision.data_url import data_url
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


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
        ({"ids": [1], "images": ["a\0b.png"]}, "images[0]: "),
        ({"ids": [1], "images": [""]}, "images[0] is empty"),
        ({"ids": [1], "images": ["/dev/zero"]}, "images[0]: /dev/zero: has more than 20971520 bytes"),
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


@pytest.mark.parametrize("name", ["r.json", "link.npz", "model.safetensors"])
def test_the_output_is_not_the_input(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    request = tmp_path / "r.json"
    request.write_text('{"ids": [1]}')
    (tmp_path / "link.npz").symlink_to(request)
    model = folder / name if name == "model.safetensors" else folder
    out = model if name == "model.safetensors" else tmp_path / name
    before = out.read_bytes()
    with pytest.raises(SystemExit) as ended:
        command.main(["logits", str(model), "--request", str(request), "--out", str(out)])
    assert ended.value.code == 2
    what = "the model" if name == "model.safetensors" else "the request"
    assert capsys.readouterr().err == f"luce: --out: {out} is {what}; name another file to write\n"
    assert out.read_bytes() == before


def test_an_output_that_was_there_is_kept_when_the_request_is_wrong(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"old")
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(SystemExit):
        command.main(
            ["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", str(tmp_path / "x.npz")]
        )
    assert (tmp_path / "x.npz").read_bytes() == b"old"


def test_what_does_not_fit_into_memory_is_known_before_anything_is_loaded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of every row are the most of it: the model alone would fit. No flag is named that is not there."""
    options = LoadOptions(slots=1, context=1000)
    plan = open_model(folder, options).plan
    monkeypatch.setattr("luce.engines.load_model.available_bytes", lambda: plan.needed + 1_000_000)
    monkeypatch.setattr("luce.cli.logits.load_engine", lambda *_: pytest.fail("it was loaded"))
    (tmp_path / "r.json").write_text(json.dumps({"ids": [1] * 1000}))
    with pytest.raises(SystemExit) as ended:
        command.main(
            ["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", str(tmp_path / "x.npz")]
        )
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (1, 1)
    assert err.startswith("luce: a prompt of 1000 tokens needs ") and "--" not in err
    monkeypatch.undo()
    asked = {"ids": [1] * 10}
    assert logits(folder, tmp_path, asked)["logits"].shape == (10, 320)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text('{"ids": [1]}')
    with pytest.raises(SystemExit) as ended:
        command.main(["logits", str(folder), "--request", str(tmp_path / "r.json"), "--out", "/dev/full"])
    assert ended.value.code == 2
    assert "luce: --out: /dev/full: " in capsys.readouterr().err


def test_reading_a_prompt_needs_a_template(folder: Path, tmp_path: Path) -> None:
    """A model without chat template can still give logits of ids."""
    bare = write_hf(tmp_path / "bare", random_model())
    (bare / "chat_template.jinja").unlink()
    assert logits(bare, tmp_path, {"ids": [1, 2]})["logits"].shape == (2, 320)
    prompts = open_model(bare, LoadOptions(), chat=False).prompts
    with pytest.raises(RequestError, match="no chat template"):
        prompts.build([{"role": "user", "content": "Hi"}])
