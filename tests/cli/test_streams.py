"""Standard input and output as they may be: closed, full, without a reader, in an encoding that lacks characters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

LUCE = (sys.executable, "-c", "from luce.cli.main import main; main()")
LOADING = "loading tiny"


def luce(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60} | options
    options["env"] = environment | options.get("env", {})
    return subprocess.run([*LUCE, *arguments], **options)


def complaints(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [line for line in done.stderr.decode().splitlines() if not line.startswith(LOADING)]


def test_chat_without_standard_input_says_so(folder: Path) -> None:
    command = 'exec "$0" "$@" <&-'
    done = subprocess.run(
        ["sh", "-c", command, *LUCE, "chat", str(folder)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert complaints(done) == ["luce: standard input is closed: there is nothing to read messages from"]


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8"])
def test_bytes_that_are_no_text_are_refused_and_the_chat_goes_on(folder: Path, encoding: str) -> None:
    lines = b"H\xff\n/system \xfe\n/image a\xff.png\n/help\n"
    done = luce("chat", str(folder), input=lines, env={"PYTHONIOENCODING": encoding})
    said = done.stdout.decode().splitlines()
    assert (done.returncode, complaints(done)) == (0, [])
    assert said[0] == r"the text is not UTF-8 at character 2, '\udcff'; it was not sent"
    assert said[1] == r"the text is not UTF-8 at character 1, '\udcfe'"
    assert said[2] == r"a\udcff.png: No such file or directory"
    assert said[3].startswith("/image PATH"), "it goes on"


def test_a_system_prompt_that_is_no_text(folder: Path) -> None:
    done = luce("chat", str(folder), "--system", "a\udcff", input=b"Hi\n")
    assert (done.returncode, complaints(done)) == (
        2,
        [r"luce: --system: the text is not UTF-8 at character 2, '\udcff'"],
    )


VERBS: dict[str, Sequence[str]] = {"inspect": (), "doctor": (), "chat": ("--max-tokens", "8", "--seed", "1")}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_under_standard_output_is_one_line(folder: Path, verb: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = luce(verb, str(folder), *VERBS[verb], stdout=full, input=b"Hi\n")
    assert done.returncode == 1
    assert complaints(done) == ["luce: standard output: No space left on device"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_that_is_gone_ends_it_quietly(folder: Path, verb: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = luce(verb, str(folder), *VERBS[verb], stdout=writing, input=b"Hi\n" * 3)
    finally:
        os.close(writing)
    assert (done.returncode, complaints(done)) == (1, [])


def test_characters_that_the_terminal_lacks_end_nothing(folder: Path, picture: Path) -> None:
    asked = f"/image {picture}\n".encode()
    done = luce("chat", str(folder), input=asked, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, complaints(done)) == (0, [])
    assert done.stdout.decode("ascii") == "picture.png: 64\\xd748 pixels, for the next message\n"


def test_odd_paths_are_shown_in_one_line(tmp_path: Path) -> None:
    for name, shown in (("new\nline.gguf", r"new\nline.gguf"), ("bad\udcff.gguf", r"bad\udcff.gguf")):
        (tmp_path / name).write_bytes(b"x")
        done = luce("inspect", str(tmp_path / name), env={"PYTHONIOENCODING": "utf-8:strict"})
        assert complaints(done) == [
            f"luce: {tmp_path}/{shown}: is not a GGUF file (it does not start with 'GGUF')"
        ]
