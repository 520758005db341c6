"""GGUF files byte by byte, with the place of every length, count and offset field, so that tests can break them."""

from __future__ import annotations

import struct
from typing import Any

import attrs
import numpy as np

__all__ = ["GgufBytes", "RawArray", "small_gguf"]


@attrs.define
class GgufBytes:
    """A growing file. ``fields`` are (what, offset, bytes) of the integers that a reader must not trust."""

    data: bytearray = attrs.field(factory=bytearray)
    fields: list[tuple[str, int, int]] = attrs.field(factory=list)

    def field(self, what: str, value: int, size: int = 8) -> None:
        self.fields.append((what, len(self.data), size))
        self.data += value.to_bytes(size, "little")

    def string(self, what: str, text: str) -> None:
        raw = text.encode()
        self.field(f"{what} length", len(raw))
        self.data += raw

    def begin(self, tensors: int, keys: int, version: int = 3) -> None:
        self.data += b"GGUF"
        self.field("version", version, 4)
        self.field("tensor count", tensors)
        self.field("key count", keys)

    def pair(self, key: str, value: Any) -> None:
        """bool, int (u32), float (f32), str, or :class:`RawArray`."""
        self.string(f"key {key}", key)
        if isinstance(value, RawArray):
            self.field(f"{key} type", 9, 4)
            self.field(f"{key} element type", value.kind, 4)
            self.field(f"{key} count", len(value.entries))
            for entry in value.entries:
                self._value(key, entry)
            return
        kinds = {bool: 7, int: 4, float: 6, str: 8}
        self.field(f"{key} type", kinds[type(value)], 4)
        self._value(key, value)

    def _value(self, key: str, value: Any) -> None:
        if isinstance(value, str):
            self.string(f"{key} value", value)
        elif isinstance(value, bool):
            self.field(f"{key} value", int(value), 1)
        elif isinstance(value, int):
            self.field(f"{key} value", value, 4)
        else:
            self.data += struct.pack("<f", value)

    def tensor(self, name: str, dims: tuple[int, ...], kind: int, offset: int) -> None:
        """``dims`` in GGUF order."""
        self.string(f"tensor {name}", name)
        self.field(f"{name} dimensions", len(dims), 4)
        for index, dim in enumerate(dims):
            self.field(f"{name} dim {index}", dim)
        self.field(f"{name} type", kind, 4)
        self.field(f"{name} offset", offset)

    def pad(self, alignment: int = 32) -> None:
        self.data += b"\0" * (-len(self.data) % alignment)


@attrs.frozen
class RawArray:
    kind: int
    """Element type: 4 u32, 6 f32, 7 bool, 8 string."""
    entries: list[Any]


def small_gguf() -> GgufBytes:
    """A valid file of about 4 KB: every kind of value, tensors of three types."""
    file = GgufBytes()
    file.begin(tensors=3, keys=9)
    file.pair("general.architecture", "qwen35")
    file.pair("general.alignment", 32)
    file.pair("qwen35.eps", 1e-6)
    file.pair("flag", True)
    file.pair("numbers", RawArray(4, [1, 2, 3]))
    file.pair("floats", RawArray(6, [0.5, 0.25]))
    file.pair("flags", RawArray(7, [True, False]))
    file.pair("tokens", RawArray(8, ["a", "bc", "é"]))
    file.pair("merges", RawArray(8, ["a b"]))
    rng = np.random.default_rng(0)
    file.tensor("w", (32, 16), 0, 0)
    file.tensor("q", (64, 8), 8, 2048)
    file.tensor("h", (10,), 1, 2048 + 544)
    file.pad()
    file.data += rng.standard_normal(512, dtype=np.float32).tobytes()
    blocks = rng.integers(0, 256, (16, 34), dtype=np.uint8)
    blocks[:, 1] = 44
    file.data += blocks.tobytes()
    file.pad()
    file.data += rng.standard_normal(10).astype("<f2").tobytes()
    return file
