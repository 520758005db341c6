"""Fills a block pool and looks inside it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from luce.scheduling.block_pool import BlockPool
from luce.scheduling.holds import Hold

__all__ = ["digests", "everything", "filled", "refused"]


def digests(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def filled(pool: BlockPool, text: str, owner: str = "") -> Hold:
    """A hold of one filled block for each letter, which is its digest."""
    hold = pool.allocate(len(text), owner)
    pool.fill(hold, 0, digests(text))
    return hold


def everything(pool: BlockPool) -> tuple[object, ...]:
    """All of the pool's books as one comparable value."""
    blocks, index = pool._blocks, pool._blocks.index
    holds = [*pool._holds.values(), *pool._parking.values()]
    return (
        blocks.bytes.tobytes(),
        blocks.refs.tolist(),
        blocks.generations.tolist(),
        blocks.free.ids().tolist(),
        len(blocks.free),
        list(blocks.cached),
        blocks.saving,
        (set(blocks._freed), set(blocks._fresh)),
        (list(index._digests), dict(index._first), {d: list(b) for d, b in index._later.items()}),
        index.duplicate.tobytes(),
        (pool._owed, pool._serial, list(pool._holds), list(pool._parking)),
        [(h.serial, h.ids.tolist(), h.generations.tolist(), h.reserved, h.table) for h in holds],
    )


@contextmanager
def refused(
    pool: BlockPool, error: type[Exception], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The body raises ``error``, and the pool is as it was."""
    before = everything(pool)
    with pytest.raises(error, match=match) as found:
        yield found
    assert everything(pool) == before
