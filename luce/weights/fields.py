"""Checked access to configuration values, JSON or GGUF metadata, with errors that name file and field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from luce.errors import MAX_QUOTED, ModelFileError, quoted
from luce.weights.gguf_header import shortest

__all__ = ["Fields"]

_MISSING = object()


@attrs.frozen
class Fields:
    """A mapping of a model file. Every getter raises :class:`ModelFileError` on a missing or wrong value."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    """Put before names in messages: the parents in a JSON file, the architecture in a GGUF."""

    def fault(self, name: str, message: str) -> ModelFileError:
        """``name`` is shown as it is where it is a short printable one; some are the file's own."""
        shown = name if name.isprintable() and len(name) <= MAX_QUOTED else quoted(name)
        return ModelFileError(self.path, f"{self.prefix}{shown}: {message}")

    def has(self, name: str) -> bool:
        """Is there a value (JSON null counts as none)?"""
        return self.values.get(name) is not None

    def value(self, name: str, default: Any = _MISSING) -> Any:
        found = self.values.get(name)
        if found is not None:
            return found
        if default is _MISSING:
            raise self.fault(name, "missing")
        return default

    def integer(self, name: str, low: int, high: int, default: Any = _MISSING) -> int:
        found = self.value(name, default)
        if type(found) is not int:
            raise self.fault(name, f"{_short(found)} is not an integer")
        if not low <= found <= high:
            raise self.fault(name, f"{quoted(found)} is not in {low} … {high}")
        return found

    def number(self, name: str, low: float, high: float, default: Any = _MISSING) -> float:
        """A finite float in [low, high]; integers are accepted."""
        return self._number(name, self.value(name, default), low, high)

    def _number(self, name: str, found: Any, low: float, high: float) -> float:
        if type(found) not in (int, float):
            raise self.fault(name, f"{_short(found)} is not a number")
        if not (low <= found <= high and math.isfinite(found)):
            raise self.fault(name, f"{quoted(found)} is not in {low:g} … {high:g}")
        return float(found)

    def text(self, name: str, default: Any = _MISSING) -> str:
        found = self.value(name, default)
        if not isinstance(found, str):
            raise self.fault(name, f"{_short(found)} is not a string")
        return found

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise self.fault(name, f"{_short(found)} is not true or false")
        return found

    def array(self, name: str, length: int | None = None, default: Any = _MISSING) -> list[Any]:
        """A JSON list or GGUF array as a list of Python values; ``length`` is checked when given."""
        found = self.value(name, default)
        if isinstance(found, np.ndarray):
            found = [shortest(entry) for entry in found] if found.dtype == np.float32 else found.tolist()
        if not isinstance(found, list):
            raise self.fault(name, f"{_short(found)} is not a list")
        if length is not None and len(found) != length:
            raise self.fault(name, f"has {len(found)} entries, expected {length}")
        return found

    def integers(
        self, name: str, low: int, high: int, length: int | None = None, default: Any = _MISSING
    ) -> list[int]:
        found = self.array(name, length, default)
        for entry in found:
            if type(entry) is not int or not low <= entry <= high:
                raise self.fault(name, f"entry {_short(entry)} is not an integer in {low} … {high}")
        return found

    def numbers(self, name: str, low: float, high: float, length: int) -> tuple[float, ...]:
        return tuple(self._number(name, entry, low, high) for entry in self.array(name, length))

    def child(self, name: str) -> Fields:
        """The JSON object at ``name``."""
        found = self.value(name)
        if not isinstance(found, dict):
            raise self.fault(name, f"{_short(found)} is not an object")
        return Fields(self.path, found, f"{self.prefix}{name}.")

    def refuse_unless(self, name: str, accepted: tuple[Any, ...], why: str) -> None:
        """Refuse a value outside ``accepted``; a missing one passes."""
        found = self.values.get(name)
        if isinstance(found, np.ndarray):
            found = found.tolist()
        if found is not None and not any(type(found) is type(one) and found == one for one in accepted):
            raise self.fault(name, f"{_short(found)} is not supported: {why}")


def _short(value: object) -> str:
    return quoted(value[:MAX_QUOTED].tolist() if isinstance(value, np.ndarray) else value)
