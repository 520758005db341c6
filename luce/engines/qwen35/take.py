"""Walking a model's tensors twice with one description: first to check every header entry, then to load.

The modules that know the file forms describe the canonical weights as calls ``take(name, shape, convert)``. A
:class:`Checker` answers with empty stand-ins and remembers what was asked for, a :class:`Loader` with the
arrays. So names, shapes and formats are all checked before the first byte of data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.conversions import Convert
from luce.errors import ModelFileError
from luce.weights import formats
from luce.weights.tensor_file import TensorFile, TensorInfo, unsupported_format

__all__ = ["Checker", "LoadProgress", "Loader", "ProgressCallback", "Take"]

F32 = npt.NDArray[np.float32]


class Take(Protocol):
    """Access to the tensors of one file while the canonical weights are put together."""

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        """The tensor ``name``, which must have ``shape`` in the file, after ``convert``."""

    def has(self, name: str) -> bool:
        """Does the file hold a tensor of that name? For what may be stored in one way or another."""


@attrs.frozen
class LoadProgress:
    done: int
    """File bytes loaded so far."""
    total: int
    tensor: str
    """The tensor that was loaded last."""


ProgressCallback = Callable[[LoadProgress], None]


@attrs.define(eq=False)
class Checker:
    """Checks presence, shape and format of each tensor asked for; :meth:`finish` refuses tensors nobody asked
    for.
    """

    file: TensorFile
    asked: dict[str, TensorInfo] = attrs.field(factory=dict)

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        info = self.file.tensors.get(name)
        if info is None:
            raise ModelFileError(self.file.path, f"missing (expected shape {list(shape)})", tensor=name)
        if info.shape != shape:
            raise ModelFileError(
                info.file, f"has shape {list(info.shape)}, expected {list(shape)}", tensor=name
            )
        if info.format not in formats.LOADABLE:
            raise ModelFileError(info.file, unsupported_format(info), tensor=name)
        self.asked[name] = info
        return np.empty(0, dtype=np.float32)

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def finish(self, hints: tuple[tuple[str, str], ...] = ()) -> int:
        """Check that nothing is left over; the number of bytes to load.

        Args:
            hints: (start of a tensor name, why such a tensor is not served).

        Raises:
            ModelFileError: names the first unknown tensor.
        """
        unknown = [name for name in self.file.tensors if name not in self.asked]
        if unknown:
            name = unknown[0]
            why = next((f"; {reason}" for start, reason in hints if name.startswith(start)), "")
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            raise ModelFileError(
                self.file.tensors[name].file, f"is not part of a Qwen3.5 model{more}{why}", tensor=name
            )
        return sum(info.nbytes for info in self.asked.values())


@attrs.define(eq=False)
class Loader:
    """Loads each tensor asked for and reports progress."""

    file: TensorFile
    total: int
    progress: ProgressCallback | None = None
    done: int = 0

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        loaded = self.file.load(name)
        if convert is not None:
            loaded = convert(loaded)
        self.note(name)
        return loaded

    def note(self, name: str) -> None:
        """``name`` is loaded."""
        self.done += self.file.tensors[name].nbytes
        if self.progress is not None:
            self.progress(LoadProgress(self.done, self.total, name))

    def has(self, name: str) -> bool:
        return name in self.file.tensors


@contextmanager
def out_of_memory_named(file: TensorFile) -> Iterator[None]:
    """Turn a failed allocation into an error that names the model."""
    try:
        yield
    except MemoryError:
        raise ModelFileError(file.path, "does not fit into memory as float32 (see the memory plan)") from None
