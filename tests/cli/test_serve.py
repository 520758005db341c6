"""`luce serve` between loading and serving."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.actors.budgets import settled
from luce.actors.options import ServiceOptions
from luce.cli import main as command
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.sampling.parameters import SamplingParams


@pytest.fixture
def thawed() -> Iterator[None]:
    """The tests' own garbage is collected again afterwards."""
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_the_garbage_collector_leaves_what_was_loaded_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full round looks at what requests have made, and at nothing else."""
    looked_at: list[int] = []

    async def served(model: Any, *rest: Any) -> bool:
        watched = {id(model), id(model.engine), id(model.tokenizer), id(command)}
        assert all(gc.is_tracked(one) for one in (model, model.engine, model.tokenizer))
        looked_at.append(len(gc.get_objects()))
        assert not watched & {id(one) for one in gc.get_objects()}
        model.engine.shutdown()
        return True

    monkeypatch.setattr("luce.cli.serve.run_server", served)
    before = len(gc.get_objects())
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", str(folder), "--port", "0"])
    assert ended.value.code == 0
    assert before > 20_000 and looked_at[0] < before / 10


@pytest.mark.usefixtures("thawed")
def test_sampling_that_is_printed_is_what_requests_get(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a value with who said it, by flag, environment, files and family."""
    given: list[SamplingParams] = []

    async def served(model: Any, *rest: Any) -> bool:
        body = b'{"messages": [{"role": "user", "content": "Hi"}], "top_p": 0.25}'
        given.append(prepare_chat(body, model, HttpOptions()).job.submission.params)
        model.engine.shutdown()
        return True

    monkeypatch.setattr("luce.cli.serve.run_server", served)
    monkeypatch.setenv("LUCE_FREQUENCY_PENALTY", "-0.5")
    flags = ["--temperature", "0.3", "--top-k", "0", "--min-p", "0.02", "--presence-penalty", "1.5"]
    with pytest.raises(SystemExit) as ended:
        command.main(["serve", str(folder), "--port", "0", *flags])
    assert ended.value.code == 0
    _, _, rest = capsys.readouterr().out.partition(
        "sampling where a request does not say, and who says so instead:\n"
    )
    lines = [line.split(None, 2) for line in rest.partition("memory:")[0].splitlines()]
    assert lines == [
        ["temperature", "0.3", "--temperature"],
        ["top_k", "0", "--top-k"],
        ["top_p", "0.95", "generation_config.json: top_p"],
        ["min_p", "0.02", "--min-p"],
        ["repetition_penalty", "1", "built-in"],
        ["presence_penalty", "1.5", "--presence-penalty"],
        ["frequency_penalty", "-0.5", "--frequency-penalty"],
    ]
    printed = {name: float(value) for name, value, _ in lines}
    found = {name: getattr(given[0], name) for name in printed}
    assert found == printed | {"top_p": 0.25}


@pytest.mark.usefixtures("thawed")
def test_what_is_printed_is_what_the_service_gets(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Budgets on top of the plan: given, none, and left to luce."""
    given: list[ServiceOptions] = []

    async def served(model: Any, options: ServiceOptions, *rest: Any) -> bool:
        given.append(options)
        assert options == settled(options, model.engine.capabilities), "decided once"
        model.engine.shutdown()
        return True

    monkeypatch.setattr("luce.cli.serve.run_server", served)
    for flags in (["--image-memory", "3MiB", "--park-memory", "5KiB"], ["--image-memory", "0"], []):
        with pytest.raises(SystemExit) as ended:
            command.main(["serve", str(folder), "--port", "0", *flags])
        assert ended.value.code == 0
        _, _, budgets = capsys.readouterr().out.partition("later, on top of the plan, at most:\n")
        sizes = {line[:17].strip(): line.split() for line in budgets.splitlines()}
        assert list(sizes) == ["pictures kept", "prefixes kept", "parked requests"]
        for name, size in (
            ("pictures kept", given[-1].image_bytes),
            ("prefixes kept", given[-1].prefix_bytes),
        ):
            assert sizes[name][2] == f"{size:,}"
        assert (sizes["parked requests"][2] == "5,120") == bool(flags[2:])
    assert [options.image_bytes for options in given[:2]] == [3 << 20, 0]
    assert given[2].prefix_bytes
