"""What stands at a path, with errors that name it: a file that may not be looked at is not a file that is absent."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from luce.errors import ModelFileError, reason

__all__ = ["is_folder", "is_listed", "listed", "must_be_there"]


def must_be_there(path: Path) -> os.stat_result:
    """What the system says of a file or directory, links followed.

    Raises:
        ModelFileError: there is none, it is a link that leads nowhere, or the system does not say.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(path, _absent(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelFileError(path, f"cannot be read: {reason(error)}") from None


def _absent(path: Path) -> str:
    try:
        return f"is a link to {path.readlink()}, which does not exist"
    except OSError:
        return "does not exist"


def is_folder(path: Path) -> bool:
    """Raises ModelFileError as :func:`must_be_there`."""
    return stat.S_ISDIR(must_be_there(path).st_mode)


def is_listed(path: Path) -> bool:
    """Is there such a name? A link that leads nowhere counts: its file was meant to be there, so reading says so.

    Raises:
        ModelFileError: the system does not say.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"cannot be read: {reason(error)}") from None
    return True


def listed(folder: Path, pattern: str) -> list[Path]:
    """The paths in a directory whose names match, in the order of their names.

    Raises:
        ModelFileError: the directory cannot be listed.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if fnmatchcase(entry.name, pattern))
    except OSError as error:
        raise ModelFileError(folder, f"cannot be listed: {reason(error)}") from None
    return [folder / name for name in names]
