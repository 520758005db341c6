"""The how-to page on clients: every piece of code on it runs, and prints what the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest

from tests.clients.facts import KEY
from tests.clients.install import HERE, require
from tests.clients.scripts import environment
from tests.e2e.server import ServerProcess

DOCS = HERE.parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS, DOCUMENTED_KEY = "http://127.0.0.1:8000", "sk-my-key"


@attrs.frozen
class Piece:
    heading: str
    language: str
    code: str
    settings: str
    """The file of settings before it, or nothing."""
    prints: str

    @property
    def group(self) -> str:
        if self.language == "js":
            return "node"
        return "instructor" if "import instructor" in self.code else "sdk"


def pieces() -> list[Piece]:
    """Every fenced piece that names a language. One of code is followed by one of text, what it prints."""
    found: list[Piece] = []
    text = (DOCS / "how-to/clients.md").read_text()
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading = section.splitlines()[0]
        blocks = FENCE.findall(section)
        settings = ""
        while blocks:
            language, code = blocks.pop(0)
            if language == "yaml":
                settings = code
                continue
            kind, prints = blocks.pop(0)
            assert kind == "text", f"{heading}: nothing says what it prints"
            found.append(Piece(heading, language, code, settings, prints))
    return found


PIECES = pieces()


def test_every_client_is_there() -> None:
    assert {piece.language for piece in PIECES} == {"sh", "python", "js"}
    assert len(PIECES) >= 9


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "piece", [pytest.param(piece, id=f"{index}-{piece.heading}") for index, piece in enumerate(PIECES)]
)
def test_it_prints_what_the_page_says(piece: Piece, server: ServerProcess, tmp_path: Path) -> None:
    group = require(piece.group)
    shutil.copy(DOCS / "images/chart.png", tmp_path / "chart.png")

    def here(text: str) -> str:
        return text.replace(ADDRESS, server.url).replace(DOCUMENTED_KEY, KEY)

    assert piece.language == "js" or ADDRESS in piece.code + piece.settings
    (tmp_path / "extra-openai-models.yaml").write_text(here(piece.settings))
    file = tmp_path / f"piece.{'mjs' if piece.language == 'js' else piece.language}"
    file.write_text(here(piece.code))
    if piece.language == "js":
        # modules are looked for beside the file
        (tmp_path / "node_modules").symlink_to(group.directory)
        command = ["node", str(file)]
    else:
        command = ["sh", "-e", str(file)] if piece.language == "sh" else [str(group.python), str(file)]
    path = environment().get("PATH", "")
    if piece.language != "js":
        path = f"{group.directory / 'bin'}:{path}"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment(LLM_USER_PATH=str(tmp_path), PATH=path),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == piece.prints.strip()
