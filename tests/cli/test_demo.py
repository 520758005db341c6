"""`luce demo --save`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from luce.cli import main as command
from luce.cli.demo import chat_body
from luce.demo.case import Case


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
