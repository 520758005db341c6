"""Compilers of kernels for GPUs that need no GPU: NVRTC for NVIDIA, clang for AMD.

As an engine has them compiled, or quickly: with next to no optimisation, which is nine tenths of a compiler's time.
Names, types, static assertions, the assembler and whether a target has an instruction are checked in either way.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from luce.compute.kernel_sources import kernels_directory, module_key, source_path

__all__ = ["AMD", "NVIDIA", "CompileError", "compiled", "missing"]

NVIDIA = ("sm_80", "sm_89", "sm_90a", "sm_120a")
AMD = ("gfx1100", "gfx1151", "gfx1201")
CLANGS = ("clang-19", "clang-20", "clang-21", "clang-18", "clang")
LEAST_CLANG = 18
"""The first that knows gfx1201."""

Defines = Mapping[str, int | str]


class CompileError(Exception):
    """A source does not compile; holds what the compiler says."""


def missing(target: str) -> str | None:
    """Why this machine cannot compile for a target; None if it can."""
    if target in NVIDIA:
        return None if _nvrtc_path() else "NVRTC is missing: pip install nvidia-cuda-nvrtc"
    return None if _clang() else f"clang {LEAST_CLANG} or newer is missing: apt-get install clang-19"


def compiled(source: str, defines: Defines, target: str, *, quickly: bool = False) -> bytes:
    """Machine code of a module for a GPU: a cubin, or AMD's assembly. Kept on disk by what it depends on.

    Raises:
        CompileError: it does not compile.
    """
    compiler, by, options = (
        (_nvrtc_path(), _by_nvrtc, ("--Ofast-compile=max",) if quickly else ())
        if target in NVIDIA
        else (_clang(), _by_clang, ("-O0",) if quickly else ("-O3",))
    )
    kept = _cache() / f"{Path(source).stem}-{module_key(source, defines, target, str(compiler), *options)}"
    if kept.is_file():
        return kept.read_bytes()
    made = by(source, defines, target, options)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(made)
    Path(file.name).rename(kept)
    return made


def _cache() -> Path:
    root = (
        os.environ.get("LUCE_TEST_KERNEL_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    )
    return Path(root) / "luce" / "gates"


def _macros(defines: Defines) -> list[str]:
    return [f"-D{name}={value}" for name, value in defines.items()]


# NVIDIA


@functools.cache
def _nvrtc_path() -> Path | None:
    """The library of the package nvidia-cuda-nvrtc."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for found in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return found
    return None


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    path = _nvrtc_path()
    assert path is not None, "asked after missing()"
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):  # it looks for them beside the program, else
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _by_nvrtc(source: str, defines: Defines, target: str, more: Sequence[str]) -> bytes:
    library = _nvrtc()
    program = ctypes.c_void_p()
    text = source_path(source).read_bytes()
    made = library.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    assert made == 0, f"nvrtcCreateProgram: {made}"
    try:
        options = [
            "-std=c++17",
            "-ftz=true",
            f"-I{kernels_directory()}",
            f"-arch={target}",
            *more,
            *_macros(defines),
        ]
        cells = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), cells):
            raise CompileError(
                _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode()
            )
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: ctypes._CFuncPtr, get: ctypes._CFuncPtr, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert get(program, buffer) == 0
    return buffer.raw


# AMD


@functools.cache
def _clang() -> str | None:
    for name in CLANGS:
        if found := shutil.which(name):
            said = subprocess.run([found, "-dumpversion"], capture_output=True, text=True).stdout
            if int(said.split(".")[0] or 0) >= LEAST_CLANG:
                return found
    return None


def _by_clang(source: str, defines: Defines, target: str, more: Sequence[str]) -> bytes:
    """Down to assembly: what is left is a linker's, which other packages have."""
    clang = _clang()
    assert clang is not None, "asked after missing()"
    command = [
        *(clang, "-x", "hip", f"--offload-arch={target}", "--cuda-device-only", "-nogpuinc", "-nogpulib"),
        *("-std=c++17", *more, "-ffp-contract=off", f"-I{kernels_directory()}", *_macros(defines)),
        *("-Wno-pass-failed", "-S", "-o", "-", str(source_path(source))),
    ]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise CompileError(done.stderr.decode(errors="replace"))
    return done.stdout
