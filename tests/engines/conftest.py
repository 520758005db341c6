"""Engines that several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from tests.engines.harness import Driver, new_engine
from tests.engines.models import tiny_model


@pytest.fixture(scope="module", params=[16, 64], ids=["gathered blocks", "blocks in place"])
def shared_engine(request: pytest.FixtureRequest) -> Iterator[Qwen35Engine]:
    engine = new_engine(*tiny_model(), block_size=request.param, num_blocks=1536 // request.param)
    yield engine
    engine.shutdown()


@pytest.fixture
def driver(shared_engine: Qwen35Engine) -> Iterator[Driver]:
    """A driver on an engine that is empty before and after."""
    driver = Driver(shared_engine)
    yield driver
    for slot in shared_engine.call(lambda _, slots: list(slots)):
        shared_engine.close(slot)
    for handle in shared_engine.call(lambda runner, _: list(runner.stored.states)):
        shared_engine.discard(handle)
    held = shared_engine.call(lambda runner, _: [b for b, one in enumerate(runner.pool.held) if one])
    driver.reset(held)
    driver.run()
