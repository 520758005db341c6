"""What of a trace's items is the same in every run: who did it, and what."""

from __future__ import annotations

from typing import Any

from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Encoded, Failed, Landed, Launched, Planned

__all__ = ["Deed", "Who", "said", "told"]

Who = tuple[str, str | int]
Deed = tuple[Item, Any]
"""The item, and what of it is compared."""


def told(item: Item) -> tuple[Who, Any] | None:
    """Who did it, and what of it is the same in every run; None for what needs no comparing."""
    if isinstance(item, EventRecord):
        return item[2:4], item[4:]
    if isinstance(item, FileStart):
        return None
    detail = item[2]
    if isinstance(detail, Planned):
        return ("plan", 0), detail
    if isinstance(detail, Launched):
        return ("launch", 0), detail
    if isinstance(detail, Landed):
        return ("result", 0), detail.number
    if isinstance(detail, Failed):
        return ("failed", 0), (detail.slot, detail.what)
    if isinstance(detail, Encoded):
        return ("encode", 0), (detail.digest, detail.rows)
    if isinstance(detail, Arrival):
        return ("arrival", 0), (detail.id, detail.order, detail.follows)
    return None


def said(deed: Deed) -> str:
    """For people."""
    item = deed[0]
    assert not isinstance(item, FileStart)
    if isinstance(item, EventRecord):
        return f"{item.machine} {item.id}: {item.event} → {', '.join(item.configuration)}"
    return str(item[2])
