"""Every kernel compiles for every GPU that luce serves, without any of them: NVRTC for NVIDIA, clang for AMD.

A target of each kind gets every variant, the others the first of each source; LUCE_TEST_GATES=all gives all of them
all.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from luce.compute.kernel_sources import source_path
from tests.kernels.compilers import AMD, NVIDIA, CompileError, Defines, compiled, missing
from tests.kernels.variants import SOURCES, variants

FULL = ("sm_90a", "gfx1151")
KERNELS = re.compile(r"^LUCE_KERNEL(?:_RESIDENT)?\((\w+)", re.M)


def wanted(source: str, target: str) -> list[Defines]:
    found = variants(source, target)
    return found if target in FULL or os.environ.get("LUCE_TEST_GATES") == "all" else found[:1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*NVIDIA, *AMD])
def test_every_kernel_compiles(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    modules = [(source, defines) for source in SOURCES for defines in wanted(source, target)]

    def failure(module: tuple[str, Defines]) -> str | None:
        source, defines = module
        try:
            code = compiled(source, defines, target)
        except CompileError as error:
            return f"{source} {dict(defines)}\n{str(error)[-3000:]}"
        names = KERNELS.findall(source_path(source).read_text())
        if not any(name.encode() in code for name in names):
            return f"{source} {dict(defines)}: none of {names} is in the module"
        return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        failures = [one for one in pool.map(failure, modules) if one is not None]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("target", ["sm_90a", "gfx1151"])
def test_a_planted_fault_is_found(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    with pytest.raises(CompileError, match="no_such_name"):
        compiled("selftest_activation.cu", {"WIDTH": "no_such_name"}, target)
    with pytest.raises(CompileError, match="WIDTH"):
        compiled("selftest_activation.cu", {}, target)
