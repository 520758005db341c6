"""Files that commands read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_file"]


def read_file(path: Path, most: int) -> bytes:
    """The content of a file or a pipe.

    Raises:
        OSError: what the system says.
        ValueError: it has more than ``most`` bytes, or its name holds a NUL.
    """
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"has more than {most} bytes")
    return data
