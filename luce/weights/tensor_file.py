"""The seam of tensor files: names, shapes and formats from a header, mapped bytes, float32 on demand.

Opening a file reads its header only. Both kinds (:mod:`luce.weights.safetensors_file`,
:mod:`luce.weights.gguf_file`) and files in several parts (:mod:`luce.weights.shards`) offer the same
interface.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.errors import ModelFileError, reason
from luce.weights import formats
from luce.weights.paths import must_be_there

__all__ = ["MappedTensors", "TensorFile", "TensorInfo", "map_file"]


@attrs.frozen
class TensorInfo:
    """Where and how one tensor is stored."""

    name: str
    shape: tuple[int, ...]
    """numpy order: the last axis is contiguous."""
    format: str
    """"BF16", "F32", "Q4_K", …: names of GGML types and of safetensors dtypes."""
    nbytes: int
    file: Path
    offset: int
    """Bytes from the start of ``file``."""


class TensorFile(Protocol):
    """Read access to the tensors of one model file, or of several that belong together."""

    @property
    def path(self) -> Path:
        """File to name in errors (the index for files in parts)."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Key-value metadata of the header."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name, in file order."""

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes [nbytes], a read-only view of the memory map."""

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as a new C-contiguous float32 array in its ``shape``.

        Raises:
            ModelFileError: no such tensor, or its format is not in :data:`luce.weights.formats.LOADABLE`.
        """


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """Map a regular, non-empty file read-only as bytes.

    Raises:
        ModelFileError: it is missing, empty, unreadable or not a regular file.
    """
    found = must_be_there(path)
    if not stat.S_ISREG(found.st_mode):
        raise ModelFileError(path, "is not a regular file")
    if not found.st_size:
        raise ModelFileError(path, "is empty")
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"cannot be read: {reason(error)}") from None
    return np.frombuffer(mapped, dtype=np.uint8)


@attrs.frozen(eq=False)
class MappedTensors:
    """A :class:`TensorFile` over one memory map."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    data: npt.NDArray[np.uint8] = attrs.field(repr=False)
    """The whole file."""

    def info(self, name: str) -> TensorInfo:
        """The entry of a tensor; :class:`ModelFileError` when there is none."""
        found = self.tensors.get(name)
        if found is None:
            raise ModelFileError(self.path, "missing", tensor=name)
        return found

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        info = self.info(name)
        return self.data[info.offset : info.offset + info.nbytes]

    def load(self, name: str) -> npt.NDArray[np.float32]:
        info = self.info(name)
        if info.format not in formats.LOADABLE:
            raise ModelFileError(self.path, unsupported_format(info), tensor=name)
        loaded = formats.decode(info.format, self.raw(name), info.shape)
        self._give_pages_back(info)
        return loaded

    def _give_pages_back(self, info: TensorInfo) -> None:
        """The tensor's file pages leave this process (not the page cache): loading takes the arrays' memory only."""
        base: Any = self.data.base
        mapped = base.obj if isinstance(base, memoryview) else base
        page = mmap.PAGESIZE
        start = -(-info.offset // page) * page
        length = (info.offset + info.nbytes) // page * page - start
        if length > 0 and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED, start, length)


def unsupported_format(info: TensorInfo) -> str:
    """One line for a tensor whose format luce does not decode."""
    return f"format {info.format} is not supported (supported: {', '.join(formats.LOADABLE)})"
