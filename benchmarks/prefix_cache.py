"""What the prefix cache's keys and index cost, by the number of entries: nothing here may grow with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.measure import Result, quiet_median, seconds_of
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_index import PrefixIndex
from luce.scheduling.prefix_keys import PrefixKeys

__all__ = ["main"]

SIZES = (10, 1_000, 100_000)
BLOCK = 16
LONG = 100_000
"""Tokens."""
KEYS_GOAL_MS = 50.0
ROOT, TURN = 64, 33
"""Tokens that all chats begin with, and tokens of their own."""


def main() -> list[Result]:
    """The table of figures."""
    results = list(_keys())
    for shape, store in (("chats", _chats), ("turns of one chat", _turns)):
        for size in SIZES:
            index, prompt = store(size)
            found = index.lookup(prompt)
            assert found is not None and len(index) == size
            cases: list[tuple[str, Callable[[], object]]] = [
                (f"look-up of {len(prompt):,} tokens", partial(index.lookup, prompt)),
                ("a hit and its end", partial(_hit, index, found, prompt)),
                ("a capture that evicts", _Captures(index)),
            ]
            results += [_microseconds(f"{name}, {size:,} {shape}", action) for name, action in cases]
    return results


def _keys() -> list[Result]:
    ids = np.random.default_rng(0).integers(0, 248_000, LONG).astype(np.int32)
    results = []
    for block in (16, 64, 128):
        make = partial(PrefixKeys, ids, block, b"")
        results.append(
            quiet_median(
                f"keys of {LONG:,} tokens, blocks of {block}",
                "ms",
                lambda make=make: 1e3 * seconds_of(make),  # type: ignore[misc]
                goal=KEYS_GOAL_MS,
            )
        )
    growing = PrefixKeys(ids, BLOCK, b"")
    results.append(_microseconds("keys of one token more", partial(growing.extend, [7])))
    empty = PrefixIndex(BLOCK)
    whole = PrefixKeys(ids, BLOCK, b"")
    results.append(_microseconds(f"look-up of {LONG:,} tokens, nothing stored", partial(empty.lookup, whole)))
    return results


def _microseconds(name: str, action: Callable[[], object]) -> Result:
    return quiet_median(name, "us", lambda: 1e6 * seconds_of(action))


def _chats(count: int) -> tuple[PrefixIndex, PrefixKeys]:
    """As many chats as entries, all with the same beginning; and the prompt of one of them."""
    index = PrefixIndex(BLOCK)
    ids = np.arange(ROOT + TURN, dtype=np.int32)
    for chat in range(count):
        ids[ROOT:] = chat + np.arange(TURN)
        keys = PrefixKeys(ids, BLOCK, b"")
        _store(index, keys, len(keys) - 1, chat)
    return index, keys


def _turns(count: int) -> tuple[PrefixIndex, PrefixKeys]:
    """One long prompt with an entry after each token."""
    index = PrefixIndex(BLOCK)
    keys = PrefixKeys(np.arange(count + 1, dtype=np.int32), BLOCK, b"")
    for position in range(1, count + 1):
        _store(index, keys, position, position)
    return index, keys


def _store(index: PrefixIndex, keys: PrefixKeys, position: int, now: int) -> None:
    entry = index.begin(keys, position, now, device_bytes=1)
    assert entry is not None
    index.filled(entry, None)


def _hit(index: PrefixIndex, entry: Entry, prompt: PrefixKeys) -> None:
    index.hit(entry, prompt, 0)
    index.unlock(entry)


class _Captures:
    """Captures again what it has evicted last time, and evicts one entry for it."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._room = len(index)
        self._now = itertools.count(self._room)
        (self._evicted,) = index.evict_until(device_bytes=self._room - 1)

    def __call__(self) -> None:
        index, before = self._index, self._evicted.entry
        _store(index, before.node.path, before.position, next(self._now))
        (self._evicted,) = index.evict_until(device_bytes=self._room - 1)
