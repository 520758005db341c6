"""Files that commands write: whether they can be written is known before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luce.errors import ConfigError, reason

__all__ = ["check_writable", "same_file", "writing"]


def check_writable(path: Path, flag: str) -> None:
    """Open a file for writing and leave it as it was: its content, and that it is not there.

    Raises:
        ConfigError: names the flag, the file and what the system says.
    """
    with writing(path, flag):
        if path.exists() and not (path.is_file() or path.is_dir()):
            return  # a pipe or a device: opening it may wait for a reader
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()


@contextmanager
def writing(path: Path, flag: str) -> Iterator[None]:
    """What the system says against writing a path, in one line. Raises ConfigError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{path}: {reason(error)}", flag=flag) from None


def same_file(one: Path, other: Path) -> bool:
    """Are both there, and the same regular file?"""
    try:
        return one.is_file() and one.samefile(other)
    except (OSError, ValueError):
        return False
