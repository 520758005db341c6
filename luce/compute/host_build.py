"""Compiling for the host build: modules of kernels and the library that they share, as files in a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from luce.compute.kernel_sources import Defines, kernels_directory, module_key, source_path, sources_changed
from luce.errors import DeviceError

__all__ = ["built_module", "host_compiler"]

RUNTIME = "host_runtime.cpp"
FLAGS = (
    "-std=c++17", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-march=native",
    "-Wall", "-Werror=return-type", "-Wno-unknown-pragmas", "-Wno-unused-function", "-DLUCE_HOST",
)  # fmt: skip
MODULE = "-Og"
"""Most modules run for less time than it takes to compile them."""
ONCE = ("-O3", "-ffp-contract=fast")
"""The runtime multiplies numbers whose products are exact, so that one rounding or two are the same."""


def host_compiler() -> str | None:
    """The system's C++ compiler (``CXX``, c++, g++, clang++), if there is one."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def built_module(source: str, defines: Defines, options: Sequence[str]) -> Path:
    """The shared library of a source with its macros.

    Args:
        options: further compiler options, of the module and of the runtime that it is linked to.

    Raises:
        DeviceError: there is no compiler, the source does not compile, or it was edited meanwhile.
    """
    runtime = _built(RUNTIME, {}, (*ONCE, *options), ())
    return _built(source, defines, (MODULE, *options), ("-x", "none", str(runtime)))


def _built(source: str, defines: Defines, options: Sequence[str], after: Sequence[str]) -> Path:
    compiler = host_compiler()
    if compiler is None:
        raise DeviceError(
            "the host build of the kernels needs a C++ compiler; install g++ or clang, or set CXX"
        )
    key = module_key(source, defines, compiler, *options, *after)
    target = _cache_directory() / f"{Path(source).stem}-{key}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        macros = [f"-D{name}={value}" for name, value in defines.items()]
        include = f"-I{kernels_directory()}"
        command = [
            compiler, *FLAGS, *options, include, *macros, "-x", "c++", str(source_path(source)), *after, "-o", str(made)
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise DeviceError(
                f"{source} does not compile for the host with {dict(defines)}:\n{done.stderr[-4000:]}"
            )
        if sources_changed():  # the next process would take this for what the sources were
            raise DeviceError("the kernels' sources were edited while they were compiled; start again")
        made.rename(target)
    return target


def _cache_directory() -> Path:
    root = (
        os.environ.get("LUCE_TEST_KERNEL_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    )
    return Path(root).absolute() / "luce" / "host-kernels"
