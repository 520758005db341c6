"""The real `ImageCache` in a form that can be part of a state: what it holds, as one tuple, and back.

Rows are opaque to it: here they are the digest, one byte for each picture.
"""

from __future__ import annotations

from typing import Any

from luce.scheduling.image_cache import ImageCache

__all__ = ["EMPTY", "freeze_cache", "is_empty", "thaw_cache"]

EMPTY: tuple[Any, ...] = ((), ())


def freeze_cache(cache: ImageCache) -> tuple[Any, ...]:
    """(held, idle): each picture that requests hold, in order, with where it is and its holders in order; and those
    that nobody holds, in the order in which they go."""
    held = []
    for digest, picture in cache._pictures.items():
        if digest not in cache._idle:
            where = "ready" if picture.ready else "encoding" if digest in cache._encoding else "queued"
            held.append((digest, where, tuple(picture.holders)))
    order = {digest: place for place, digest in enumerate(cache._queue)}
    # Only the order of the queue matters, so equal caches are one state.
    held.sort(key=lambda one: (order.get(one[0], -1), one[0]))
    return (tuple(held), tuple(cache._idle))


def thaw_cache(state: tuple[Any, ...], budget: int) -> ImageCache:
    """By the same calls as an actor would make, so nothing is there that could not be."""
    held, idle = state
    cache = ImageCache(budget)
    for digest in idle:
        cache.ask(digest, "nobody")
        cache.next_encode()
        cache.encoded(digest, digest, 1)
        cache.leave("nobody")
    for digest, where, holders in held:
        for holder in holders:
            cache.ask(digest, holder)
        if where != "queued" and not holders:  # begun, and everyone has left
            cache.ask(digest, "nobody")
        if where != "queued":
            cache.next_encode()
        if where == "ready":
            cache.encoded(digest, digest, 1)
        cache.leave("nobody")
    return cache


def is_empty(state: tuple[Any, ...]) -> bool:
    """Nobody holds or waits for anything, and nothing is being encoded."""
    held, _ = state
    return not held
