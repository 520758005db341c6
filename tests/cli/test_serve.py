"""`luce serve` between loading and serving."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
