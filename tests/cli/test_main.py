"""The command itself: verbs, errors, exit codes, flags from everywhere."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from luce.cli import main as command
from luce.cli.flags import parse_bytes
from luce.engines.load_model import LoadOptions, demo_model, open_model
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


@pytest.mark.parametrize("words", command.COMMANDS, ids=" ".join)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, _ = run(capsys, *words, "--help")
    assert code == 0
    assert f"luce {' '.join(words)}" in out
    assert "--config" in out


def test_help_of_serve_is_in_groups_and_names_variables(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "serve", "--help")
    places = [out.index(f"─ {group} ─") for group in ("Model", "HTTP", "Scheduling", "Sampling", "General")]
    assert places == sorted(places)
    assert "LUCE_PORT" in out


WHOLE = (
    "slots",
    "context",
    "block-size",
    "blocks",
    "preparing",
    "prefill",
    "queue",
    "queue-tokens",
    "depth",
    "port",
    "max-images",
    "max-choices",
    "max-connections",
    "max-streams",
    "max-image-pixels",
    "max-total-pixels",
)
SECONDS = (
    "body-timeout",
    "step-time",
    "keep-alive",
    "idle-timeout",
    "client-timeout",
    "queue-timeout",
    "drain-timeout",
    "request-timeout",
    "head-timeout",
    "fetch-timeout",
)
SIZES = ("max-memory", "max-body", "max-buffered-bodies", "max-image", "max-total-image", "trace-max")
ROOMS = ("park-memory", "prefix-memory", "image-memory")
"""Sizes that may be nothing."""
SAMPLING = ("temperature", "top-p", "min-p", "repetition-penalty", "presence-penalty", "frequency-penalty")
HUGE = "9" * 400
NUMBERS = [
    *(("serve", name, value) for name in WHOLE for value in ("-1", "1.5", "nan", "", HUGE, "9" * 5000)),
    *(("serve", name, "0") for name in WHOLE if name not in ("port", "max-images")),
    *(("serve", name, value) for name in SECONDS for value in ("-1", "0", "nan", "inf", "1e300", "x")),
    *(("serve", name, value) for name in SIZES for value in ("-1", "0", "nan", "0GiB", HUGE, f"{HUGE}TiB")),
    *(("serve", name, value) for name in ROOMS for value in ("-1", "nan", HUGE, f"{HUGE}TiB")),
    *(("serve", name, value) for name in SAMPLING for value in ("-3", "nan", "inf", "101", "x")),
    *(("serve", "top-k", value) for value in ("-2", "1.5", "nan", HUGE)),
    *(("chat", "temperature", value) for value in ("-1", "nan", "inf", "101")),
    *(("chat", "max-tokens", value) for value in ("-1", "0", "1.5", "nan", HUGE)),
    *(("chat", "seed", value) for value in ("0.5", "nan", HUGE, "9223372036854775808")),
    *(("demo", "seed", value) for value in ("-1", "0.5", "nan", HUGE)),
]


@pytest.mark.parametrize(("verb", "name", "value"), NUMBERS, ids=lambda value: value[:20])
def test_numbers_outside_their_limits_are_one_line(
    capsys: pytest.CaptureFixture[str], verb: str, name: str, value: str
) -> None:
    code, out, err = run(capsys, verb, f"--{name}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert err.startswith("luce: Invalid value") and f"--{name}" in err


def test_every_numeric_flag_of_serve_is_in_that_list() -> None:
    arguments = command.build_app(None)["serve"].assemble_argument_collection()
    numeric = {
        a.name[2:]
        for a in arguments
        if str(a.hint) in map(str, (int, float, int | None, float | None)) and a.name != "*"
    }
    assert numeric == {*WHOLE, *SECONDS, *SIZES, *ROOMS, *SAMPLING, "top-k"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--port", "x"], "Invalid value for --port: 'x' is no whole number"),
        (["serve", "--queue", "0"], 'Invalid value "0" for --queue. Must be >= 1.'),
        (["serve", "--max-memory", "many"], "--max-memory: 'many' is no size; write it as 8GiB or 500MB"),
        (["serve", "--no-such-flag"], "--no-such-flag"),
        (["serve", "--slotz", "3"], "--slotz. Did you mean --slots?"),
        (["serve", "--slots"], "--slots requires an argument"),
        (["serve", "--slots", "1", "--slots", "2"], "--slots specified multiple times"),
        (["serve", "--log-level", "loud"], '"loud" for --log-level. Choose from: "debug"'),
        (["serve", "--name", ""], "--name. Must not be empty"),
        (["serve", "--host", ""], "--host. Must not be empty"),
        (["serve", "--alias", "a", "--alias", ""], "--alias. Must not be empty"),
        (["serve", "a", "b"], "unexpected argument 'b'"),
        (
            ["serve", "--config", "/no/such/file.toml"],
            "--config: /no/such/file.toml: No such file or directory",
        ),
        (["serve", "--config", "/"], "--config: /: Is a directory"),
        (["serve", "--config", "/dev/zero"], "--config: /dev/zero: has more than 1048576 bytes"),
        (["serve", "--config", "a\0b"], "--config: a\\x00b: embedded null byte"),
        (["serve", ""], "MODEL: the path is empty"),
        (["inspect", ""], "MODEL: the path is empty"),
        (["doctor", ""], "MODEL: the path is empty"),
        (["serve", "--mmproj", ""], "--mmproj: the path is empty"),
        (["serve", "--config", ""], "--config: the path is empty"),
        (["logits", "m", "--request", "", "--out", "x"], "--request: the path is empty"),
        (["logits", "m", "--request", "x", "--out", ""], "--out: the path is empty"),
        (["demo", "--save", ""], "--save: the path is empty"),
        (
            ["serve", "--port", "0", "--context", "1000000"],
            "--context: 1000000 is over the model's own limit of 4096",
        ),
        (["serve", "--port", "0", "--context", "1"], "--context: 1 holds no conversation: one word takes "),
        (["inspect", "--context", "1"], "--context: 1 holds no conversation: one word takes "),
        (
            ["serve", "--request-timeout", "nan"],
            '"nan" for --request-timeout. Must be a number of seconds above 0',
        ),
        (["serve", "--port", "0", "--max-memory", "1MB"], "--max-memory: 4 slots of 4096 tokens need"),
        (["serve", "--host", "203.0.113.77"], "--host: cannot listen on 203.0.113.77:8000: "),
        (["serve", "--host", "no such host"], "--host: 'no such host': "),
        (["chat", "--image", "/no/such/picture.png"], "/no/such/picture.png"),
        (["chat", "--thinking=maybe"], "--thinking"),
        (["dance"], 'Unknown command "dance"'),
        (["--dance"], '"--dance"'),
        (["logits", "model"], "--request requires an argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flags_are_one_line_and_end_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert err.startswith("luce: ") and said in err


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
        ("9007199254740993", 2**53 + 1),
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serv]\nslots = 3", "the table [serv] is of no command; did you mean [serve]?"),
        ("[serve]\n[elsewhere]", "the table [elsewhere] is of no command. Tables are [serve], [chat]"),
        ("slots = 3", "the key 'slots' stands in no table; put it into one of [serve]"),
        ("serve = 3", "'serve' must be a table"),
        ("[[serve]]\nslots = 3", "'serve' must be a table"),
        ("[serve]\nslotz = 2", "[serve] has no key 'slotz'; did you mean slots?"),
        ('[serve]\n"--slots" = 2', "[serve] has no key '--slots'"),
        ('[serve]\n"--help" = true', "[serve] has no key '--help'"),
        ('[serve]\nmodel = "x"', "[serve] has no key 'model'"),
        ('[serve]\nconfig = "x"', "[serve] config: a file cannot name another one"),
        ("[serve.slots]\na = 1", "[slots][a]"),
        ("[serve]\nslots = 2.5", "[slots]: '2.5' is no whole number"),
        ("[serve]\nqueue = 0", '"0" for [queue]'),
        ("[serve", "is not TOML: "),
        ("\udcff", "is not TOML: "),
    ],
)
def test_nothing_in_the_file_is_ignored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "luce.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    code, out, err = run(capsys, "serve", "--config", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert err.startswith("luce: ") and said in err and str(file) in err


def test_a_port_in_use_is_named_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("luce.cli.serve.load_with_progress", lambda *_: pytest.fail("it was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run(capsys, "serve", "--port", port)
        assert (code, out) == (2, "")
        assert err.startswith(f"luce: --port: cannot listen on 127.0.0.1:{port}: Address already in use; ")
        assert "0 for a free one" in err and err.count("\n") == 1
        code, _, err = run(capsys, "serve", "/no/such/model", "--port", port)
        assert code == 1 and err.startswith("luce: /no/such/model: "), "the model is looked at first"


def far_enough(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    def stop(path: Any, options: Any) -> Any:
        raise ConfigError("far enough")

    monkeypatch.setattr(f"luce.cli.{verb}.opened", stop)


def test_tables_of_other_verbs_and_keys_with_underscores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    far_enough(monkeypatch, "serve")
    file = tmp_path / "luce.toml"
    file.write_text("[chat]\nseed = 3\n[serve]\nport = 0\nblock_size = 32\n[doctor]\n")
    assert run(capsys, "serve", "--config", str(file)) == (2, "", "luce: far enough\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LUCE_SERVE_SLOTTS", "LUCE_SERVE_SLOTTS: no command has such a flag; did you mean LUCE_SLOTS?"),
        ("LUCE_QUANTISATION_OF_KEYS", "LUCE_QUANTISATION_OF_KEYS: no command has such a flag"),
        ("LUCE_SLOTS", 'Invalid value "0" for LUCE_SLOTS provided by env. Must be >= 1.'),
        ("LUCE_TEMPERATURE", "far enough"),
        ("LUCE_TEST_LARGE", "far enough"),
        ("LUCENT", "far enough"),
    ],
)
def test_variables_that_are_no_flags_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    """Those of other verbs and of the tests are not."""
    far_enough(monkeypatch, "serve")
    monkeypatch.setenv(name, "0")
    code, out, err = run(capsys, "serve", "--port", "0")
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert err.startswith(f"luce: {said}")


@pytest.mark.parametrize(
    ("verb", "flags", "slots"),
    [
        ("chat", ["--context", "256"], 1),
        ("chat", ["--slots", "2"], 2),
        ("chat", [], 1),
        ("demo", ["--context", "256"], 4),
    ],
)
def test_default_slots(monkeypatch: pytest.MonkeyPatch, verb: str, flags: list[str], slots: int) -> None:
    seen: list[Any] = []

    def stop(path: Any, options: Any) -> Any:
        seen.append(options)
        raise ConfigError("far enough")

    monkeypatch.setattr(f"luce.cli.{verb}.opened", stop)
    with pytest.raises(SystemExit):
        command.main([verb, *flags])
    assert [options.slots for options in seen] == [slots]


def test_the_least_context_holds_one_word_and_one_token() -> None:
    """What the refusal names is taken, one less is not."""
    with pytest.raises(ConfigError) as refused:
        open_model(demo_model(), LoadOptions(context=1))
    least = int(str(refused.value).rpartition(" ")[2])
    assert open_model(demo_model(), LoadOptions(context=least)).context == least
    with pytest.raises(ConfigError, match=f"give at least {least}$"):
        open_model(demo_model(), LoadOptions(context=least - 1))


def test_inspect_has_the_rules_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspect", "--context", "100000")
    assert (code, out) == (2, "")
    assert err == "luce: --context: 100000 is over the model's own limit of 4096\n"
    code, out, err = run(capsys, "inspect", "--name", "other", "--max-memory", "1MB")
    assert code == 2
    assert "model       other (GGUF)" in out and "while loading" in out, "the plan is shown all the same"
    assert err == run(capsys, "serve", "--port", "0", "--max-memory", "1MB")[2]
    code, out, err = run(capsys, "inspect", "--max-memory", "1TiB")
    assert (code, err) == (0, "")
