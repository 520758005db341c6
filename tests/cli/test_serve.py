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
