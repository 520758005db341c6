"""Models whose tensors are spread over several files: safetensors with an index, GGUFs split by number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.errors import ModelFileError, quoted
from luce.weights.gguf_file import open_gguf
from luce.weights.json_file import read_json_object
from luce.weights.paths import is_listed, listed
from luce.weights.safetensors_file import open_safetensors
from luce.weights.tensor_file import MappedTensors, TensorFile, TensorInfo

__all__ = ["INDEX_NAME", "Shards", "open_gguf_parts", "open_safetensors_model"]

INDEX_NAME = "model.safetensors.index.json"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 1000
_MAX_PART_BYTES = 255


@attrs.frozen(eq=False)
class Shards:
    """Several :class:`TensorFile` as one."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    owners: Mapping[str, TensorFile] = attrs.field(repr=False)

    @classmethod
    def join(cls, path: Path, metadata: Mapping[str, Any], parts: Sequence[TensorFile]) -> Shards:
        """Raises :class:`ModelFileError` when two parts hold the same tensor."""
        owners: dict[str, TensorFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for name, info in part.tensors.items():
                if name in owners:
                    raise ModelFileError(part.path, f"is also in {owners[name].path.name}", tensor=name)
                owners[name], tensors[name] = part, info
        return cls(path, metadata, tensors, owners)

    def _owner(self, name: str) -> TensorFile:
        found = self.owners.get(name)
        if found is None:
            raise ModelFileError(self.path, "missing", tensor=name)
        return found

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._owner(name).raw(name)

    def load(self, name: str) -> npt.NDArray[np.float32]:
        return self._owner(name).load(name)


def open_safetensors_model(folder: Path) -> TensorFile:
    """The weights of a Hugging Face directory: ``model.safetensors``, else the parts that the index names.

    Raises:
        ModelFileError: no weights, a missing or malformed part, or index and parts that disagree (names the
        tensor).
    """
    single, index = folder / "model.safetensors", folder / INDEX_NAME
    if is_listed(single):
        return open_safetensors(single)
    if is_listed(index):
        return _open_indexed(index)
    found = listed(folder, "*.safetensors")
    if len(found) == 1:
        return open_safetensors(found[0])
    if found:
        raise ModelFileError(folder, f"has {len(found)} safetensors files but no {INDEX_NAME}")
    raise ModelFileError(folder, "has no safetensors weights (model.safetensors or its index)")


def _open_indexed(index: Path) -> Shards:
    placed = read_json_object(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ModelFileError(index, "weight_map is missing, empty or not an object")
    for name, part in placed.items():
        if not isinstance(part, str) or not _is_plain(part):
            fault = f"weight_map entry {quoted(part)} is not a plain file name that ends in .safetensors"
            raise ModelFileError(index, fault, tensor=name)
    names = sorted(set(placed.values()))
    if len(names) > _MAX_PARTS:
        raise ModelFileError(index, f"names {len(names)} files; the limit is {_MAX_PARTS}")
    parts = [open_safetensors(index.parent / name) for name in names]
    joined = Shards.join(index, parts[0].metadata, parts)
    for name, part in placed.items():
        owner = joined.owners.get(name)
        if owner is None or owner.path.name != part:
            raise ModelFileError(
                index.parent / part, f"missing, but {index.name} places it here", tensor=name
            )
    for name, owner in joined.owners.items():
        if name not in placed:
            raise ModelFileError(owner.path, f"is not in {index.name}", tensor=name)
    return joined


def _is_plain(part: str) -> bool:
    """May it be opened, and shown: no folders, no control characters, no longer than file systems take."""
    short = len(part.encode(errors="replace")) <= _MAX_PART_BYTES
    return short and part.isprintable() and Path(part).name == part and part.endswith(".safetensors")


def open_gguf_parts(path: Path, opener: Callable[[Path], MappedTensors] = open_gguf) -> TensorFile:
    """A GGUF file, or all parts of a split one given any of them (``NAME-00001-of-00003.gguf``).

    Raises:
        ModelFileError: as :func:`luce.weights.gguf_file.open_gguf`; a part is missing or numbered wrongly.
    """
    match = _PART.fullmatch(path.name)
    if match is None or int(match["count"]) == 1:
        return opener(path)
    count = int(match["count"])
    if not 1 <= count <= _MAX_PARTS:
        raise ModelFileError(path, f"is one of {count} parts; the limit is {_MAX_PARTS}")
    parts = []
    for number in range(count):
        part = opener(path.with_name(f"{match['stem']}-{number + 1:05}-of-{count:05}.gguf"))
        for key, expected in (("split.no", number), ("split.count", count)):
            found = part.metadata.get(key, expected)
            if type(found) is not int or found != expected:
                raise ModelFileError(part.path, f"{key} is {quoted(found)}, the file name says {expected}")
        parts.append(part)
    return Shards.join(parts[0].path, parts[0].metadata, parts)
