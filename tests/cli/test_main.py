"""The command itself: verbs, errors, exit codes, flags from everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luce.cli import main as command
from luce.cli.flags import parse_bytes
from luce.errors import ConfigError, DeviceError, LuceError, ModelFileError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_help_lists_every_verb_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for verb in command.VERBS:
        assert verb in out
    program = (
        "import sys\nfrom luce.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = [name for name in ('numpy', 'trio', 'quart', 'tokenizers', 'PIL', 'jinja2') if name in sys.modules]\n"
        "print('HEAVY', heavy)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout


@pytest.mark.parametrize("verb", sorted(command.VERBS))
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    assert f"luce {verb}" in out
    assert "--config" in out


def test_help_of_serve_is_in_groups_and_names_variables(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "serve", "--help")
    places = [out.index(f"─ {group} ─") for group in ("Model", "HTTP", "Scheduling", "General")]
    assert places == sorted(places)
    assert "LUCE_PORT" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port", "70000"],
        ["serve", "--port", "x"],
        ["serve", "--slots", "0"],
        ["serve", "--queue", "0"],
        ["serve", "--keep-alive", "0"],
        ["serve", "--max-memory", "many"],
        ["serve", "--no-such-flag"],
        ["serve", "--log-level", "loud"],
        ["serve", "--config", "/no/such/file.toml"],
        ["serve", "--context", "1000000"],
        ["serve", "--max-memory", "1MB"],
        ["chat", "--image", "/no/such/picture.png"],
        ["dance"],
        ["logits", "model"],
    ],
    ids=" ".join,
)
def test_wrong_flags_end_with_2_and_name_themselves(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2, (out, err)
    wrong = arguments[-2] if len(arguments) > 2 else arguments[-1]
    named = {"logits": "--request", "chat": "/no/such/picture.png"}.get(arguments[0], wrong)
    assert named in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ModelFileError("model.gguf", "is cut off", tensor="w"),
            1,
            ["luce: model.gguf: tensor 'w': is cut off"],
        ),
        (ConfigError("too many", flag="--slots"), 2, ["luce: --slots: too many"]),
        (ExceptionGroup("", [ExceptionGroup("", [DeviceError("broke")])]), 1, ["luce: broke"]),
        (ExceptionGroup("", [LuceError("one"), LuceError("two")]), 1, ["luce: one", "luce: two"]),
        (KeyboardInterrupt(), 130, []),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, []),
    ],
)
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: list[str],
) -> None:
    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(command, "build_app", lambda file: fail)
    found, _, err = run(capsys, "serve")
    assert (found, err.splitlines()) == (code, said)


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ExceptionGroup("", [LuceError("known"), ZeroDivisionError()])

    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(command, "build_app", lambda file: fail)
    with pytest.raises(ExceptionGroup):
        command.main(["serve"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5k", 1536),
        (" 2 TiB ", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1PB", "1 2", "GiB", "1e3"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_bytes(text)


def test_command_line_over_environment_over_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kind of source, read through `luce serve` up to the moment it would load a model."""
    seen: list[Any] = []

    def stop(path: Any, options: Any) -> Any:
        seen.append(options)
        raise ConfigError("far enough")

    monkeypatch.setattr("luce.cli.serve.opened", stop)
    file = tmp_path / "luce.toml"
    file.write_text('[serve]\nslots = 2\ncontext = 100\nblock-size = 16\nport = 0\nmax-memory = "3GiB"\n')
    monkeypatch.setenv("LUCE_CONFIG", str(file))
    monkeypatch.setenv("LUCE_SLOTS", "3")
    monkeypatch.setenv("LUCE_CONTEXT", "200")
    with pytest.raises(SystemExit):
        command.main(["serve", "--slots", "4"])
    (options,) = seen
    assert (options.slots, options.context, options.block_size, options.max_memory) == (4, 200, 16, 3 << 30)


def test_unknown_key_in_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "luce.toml"
    file.write_text("[serve]\nslotz = 2\n")
    code, out, err = run(capsys, "serve", "--config", str(file))
    assert code == 2
    assert "slotz" in out + err
