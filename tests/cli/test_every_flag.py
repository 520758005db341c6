"""Every flag of every command can be given on the command line, in the environment and in the file, alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from cyclopts import Argument

from luce.cli import main as command
from luce.cli.config_sources import PREFIX

SAMPLES: dict[str, Any] = {
    "--depth": 2,
    "--prefix-memory": "3MiB",
    "--park-memory": "3MiB",
    "--image-memory": "3MiB",
    "--min-p": 0.25,
    "--top-p": 0.25,
    "--rows": "2,3",
    "--synthetic": "luce-demo",
    "--format": "q4_k",
    "--trace-kind": "vllm",
    "--pictures": "70",
    "--contexts": "7",
    "--prompts": "9,8",
    "--mixed": "5",
    "--tokens": 17,
}
"""Where the kind does not say what is allowed."""


def flags(words: tuple[str, ...]) -> list[Argument]:
    found = command.arguments_of(command.build_app(None), words)
    return [one for one in found if one.name.startswith("--") and one.name not in ("--config", "--*")]


EVERY = [
    pytest.param(words, one, id=f"{' '.join(words)} {one.name}")
    for words in command.COMMANDS
    for one in flags(words)
]


def sample(one: Argument) -> Any:
    """A value that is not the default, as TOML writes it."""
    if one.name in SAMPLES:
        return SAMPLES[one.name]
    kinds = [kind for kind in get_args(one.hint) or (one.hint,) if kind is not type(None)]
    kind = kinds[0]
    if get_origin(one.hint) is tuple:
        return [f"/tmp/{name}" if kind is Path else name for name in ("one", "two")]
    for hint in (one.hint, kind):
        if get_origin(hint) is Literal:
            return get_args(hint)[-1]
    if kind is bool:
        return True
    if kind is Path:
        return "/tmp/a-file"
    if kind is int:
        return 3
    return 0.5 if kind is float else "a-name"


def parsed(words: tuple[str, ...], tokens: list[str], file: Path | None) -> Any:
    """What the command would be called with."""
    needed = {("logits",): ["model", "--request", "r", "--out", "o"], ("charts", "explore"): ["c"]}
    needed[("charts", "draw")] = ["c"]
    needed[("bench", "compare")] = ["a", "b"]
    needed |= {("replay", part): ["t"] for part in ("check", "run", "exact", "show", "export")}
    needed[("replay", "diff")] = ["t", "u"]
    needed[("replay", "load")] = ["http://h", "t"]
    given = [*words, *needed.get(words, [])]
    return command.build_app(file).parse_args([*given, *tokens], exit_on_error=False, print_error=False)[1]


def test_there_are_flags() -> None:
    assert len(EVERY) > 80


@pytest.mark.parametrize(("words", "one"), EVERY)
def test_it_means_the_same_from_everywhere(
    words: tuple[str, ...], one: Argument, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if one.name in ("--request", "--out") and words == ("logits",):
        pytest.skip("needed on every command line")
    value = sample(one)
    values = value if isinstance(value, list) else [value]
    tokens = [one.name] if value is True else [token for v in values for token in (one.name, str(v))]
    line = parsed(words, tokens, None)
    assert line.arguments != parsed(words, [], None).arguments, "the sample is not the default"

    file = tmp_path / "luce.toml"
    file.write_text(f"[{'.'.join(words)}]\n{one.name[2:]} = {json.dumps(value)}\n")
    assert parsed(words, [], file).arguments == line.arguments

    link = ":" if "Path" in str(one.hint) else " "  # as $PATH
    monkeypatch.setenv(PREFIX + one.name[2:].upper().replace("-", "_"), link.join(map(str, values)))
    assert parsed(words, [], None).arguments == line.arguments


SECRET = "Xyzzy-secret"


@pytest.mark.parametrize(
    "text",
    [
        f'api-keyy = "{SECRET}"',
        f'api-key = [["{SECRET}"]]',
        f'api-key = {{ a = "{SECRET}" }}',
        f'api-key = ["two {SECRET}"]',
        f'api-key = "{SECRET}\\u0007"',
        f'api-key-file = {{ a = "{SECRET}" }}',
    ],
)
def test_no_key_is_echoed(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    file = tmp_path / "luce.toml"
    file.write_text(f"[serve]\n{text}\n")
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--port", "0", "--config", str(file)])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.err.startswith("luce: ")
    assert SECRET not in said.out + said.err


def test_no_key_of_the_environment_is_echoed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUCE_API_KEY", f"{SECRET}\x07")
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--port", "0"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and SECRET not in said.out + said.err
