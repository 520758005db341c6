"""One operation of the document, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Operation", "Parameter"]


@attrs.frozen
class Parameter:
    name: str
    place: str
    """"path" or "query"."""
    schema: Mapping[str, Any]
    description: str


@attrs.frozen(kw_only=True)
class Operation:
    """An address and a method. Statuses that every operation of its kind can have are added by the document."""

    method: str
    path: str
    """As ``/v1/models/{name}``."""
    summary: str
    tag: str
    request: type | None = None
    """Of the JSON body."""
    answer: type | None = None
    """Of the JSON answer; None: text."""
    events: tuple[type, ...] = ()
    """Of the data of server-sent events, where the answer may be a stream."""
    done: bool = False
    """A stream that is whole ends with ``data: [DONE]``."""
    parameters: tuple[Parameter, ...] = ()
    examples: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Of the body, by name."""
    generates: bool = False
    """Its answer takes its time, and can be refused, cancelled or too late."""
    statuses: tuple[int, ...] = ()
    """More statuses that it can answer with."""
    probe: bool = False
    """Asked for without a key."""

    @property
    def name(self) -> str:
        """The ``operationId``."""
        words = self.path.replace("{", "").replace("}", "").replace("/", "_").replace("-", "_").strip("_.")
        return f"{self.method.lower()}_{words}".replace(".", "_")
