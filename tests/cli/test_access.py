"""Flags that say who may ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.cli import main as command
from luce.cli.access import origins, read_keys
from luce.errors import ConfigError

SECRET = "not a key because of its spaces"


def test_keys_of_flags_and_file_together(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who: the agents\n\n  abc  \ndef#1\r\nflag-1\n")
    assert read_keys(("flag-1", "flag-2"), path) == ("flag-1", "flag-2", "abc", "def#1")
    assert read_keys((), None) == ()


@pytest.mark.parametrize("key", ["", SECRET, "schlüssel", "tab\tkey", "x" * 513, "bell\a"])
def test_a_key_that_is_none_is_not_quoted(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_keys(("good", key), None)
    assert str(refused.value).startswith("--api-key: key 2 ")
    assert not key or key not in str(refused.value)
    if key:
        path = tmp_path / "keys"
        path.write_text(f"good\n{key}\n")
        with pytest.raises(ConfigError) as refused:
            read_keys((), path)
        assert str(refused.value).startswith(f"--api-key-file: {path}: line 2 ")
        assert key not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"\xff\xfe", b"k" * (1 << 21)])
def test_a_file_without_keys_does_not_open_the_server(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^--api-key-file: "):
        read_keys((), path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--api-key-file: .*No such file"):
        read_keys((), tmp_path / "keys")


def test_origins_are_written_as_browsers_send_them() -> None:
    given = ("https://Chat.Example.org/", "http://localhost:3000", "https://a.example:443", "http://[::1]:80")
    assert origins(given) == (
        "https://chat.example.org",
        "http://localhost:3000",
        "https://a.example",
        "http://[::1]",
    )
    assert origins(("*",)) == ("*",)
    assert origins(()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "chat.example.org",
        "null",
        "https://",
        "https://a.example/path",
        "https://a.example?x",
        "https://user@a.example",
        "ftp://a.example",
        "https://*.example.org",
        "https://a.example:99999",
        "https://a b",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--cors-origin: "):
        origins((text,))


def test_any_origin_goes_alone() -> None:
    with pytest.raises(ConfigError, match="no others"):
        origins(("*", "https://a.example"))


@pytest.mark.parametrize("source", ["flags", "environment", "file"])
def test_serve_takes_keys_from_everywhere_and_prints_none(
    source: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[Any] = []

    async def served(model: Any, options: Any, http: Any, listener: Any, announce: Any, *_: Any) -> bool:
        given.append(http)
        announce(("127.0.0.1", 1))
        listener.close()
        model.engine.shutdown()
        return True

    monkeypatch.setattr("luce.cli.serve.run_server", served)
    monkeypatch.setattr("luce.cli.serve.spare_what_stays", lambda: None)
    arguments = ["serve", str(folder), "--port", "0"]
    if source == "flags":
        arguments += ["--api-key", "key-1", "--api-key", "key-2", "--cors-origin", "http://localhost:3000"]
    elif source == "environment":
        monkeypatch.setenv("LUCE_API_KEY", "key-1 key-2")
        monkeypatch.setenv("LUCE_CORS_ORIGIN", "http://localhost:3000")
    else:
        (tmp_path / "keys").write_text("key-1\nkey-2\n")
        path = tmp_path / "luce.toml"
        path.write_text(
            f'[serve]\napi-key-file = "{tmp_path / "keys"}"\ncors-origin = ["http://localhost:3000"]\n'
        )
        arguments += ["--config", str(path)]
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert given[0].api_keys == ("key-1", "key-2")
    assert given[0].cors_origins == ("http://localhost:3000",)
    assert "2 API keys are set" in said.out
    assert "$API_KEY" in said.out
    assert "key-1" not in said.out + said.err


@pytest.mark.parametrize("text", ["", "  "])
@pytest.mark.parametrize("name", ["LUCE_API_KEY", "LUCE_CORS_ORIGIN", "LUCE_ALIAS"])
def test_an_empty_variable_is_no_list(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``LUCE_API_KEY=$KEY`` where KEY is not set must not open the server."""
    monkeypatch.setattr("luce.cli.serve.listen", lambda options: pytest.fail("it was about to serve"))
    monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit) as ended:
        command.main(["serve"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"luce: {name}: it is empty; give it a value or unset it\n"


def test_a_bad_key_ends_serve_without_being_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", "--api-key", SECRET])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("luce: --api-key: key 1 is no key")
    assert SECRET not in said.err + said.out
