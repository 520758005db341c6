"""Where the kernels' sources lie and what they are called."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

from luce.errors import DeviceError

__all__ = ["Defines", "kernels_directory", "module_key", "source_path", "sources_changed"]

Defines = Mapping[str, int | str]
"""Compile-time macros of a module: shapes and variants."""

_PACKAGE = Path(__file__).resolve().parents[1]


def kernels_directory() -> Path:
    """`luce/_kernels` in an installed wheel, `kernels` at the top of a checkout."""
    installed = _PACKAGE / "_kernels"
    return installed if installed.is_dir() else _PACKAGE.parent / "kernels"


def source_path(source: str) -> Path:
    """The path of a source file, say "norm.cu".

    Raises:
        DeviceError: there is none.
    """
    path = kernels_directory() / source
    if not path.is_file():
        raise DeviceError(f"kernel source {path} is missing; the installation is damaged, install luce again")
    return path


@functools.cache
def _sources_digest() -> str:
    return _digest_now()


def sources_changed() -> bool:
    """Since this process first named a module; what is compiled from now on is not what :func:`module_key` says."""
    return _digest_now() != _sources_digest()


def _digest_now() -> str:
    digest = hashlib.sha256()
    for path in sorted(kernels_directory().glob("*.*")):
        if path.suffix in (".h", ".cu", ".cpp"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def module_key(source: str, defines: Defines, *more: str) -> str:
    """Digest of everything that a compiled module depends on: all sources (headers too), macros and ``more``."""
    text = "\0".join([source, *(f"{name}={value}" for name, value in sorted(defines.items())), *more])
    return hashlib.sha256(f"{_sources_digest()}\0{text}".encode()).hexdigest()[:32]
