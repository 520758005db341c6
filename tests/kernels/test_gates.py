"""Every kernel compiles for every GPU that luce serves, without any of them: NVRTC for NVIDIA, clang for AMD.

One target gets every variant, the others the first of each source; LUCE_TEST_GATES=all gives all of them all.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kernels.compilers import AMD, NVIDIA, CompileError, compiled, missing
from tests.kernels.variants import SOURCES, Module, modules

FULL = ("sm_90a",)
"""Those with every variant."""


def wanted(target: str) -> list[Module]:
    every = modules(target)
    if target in FULL or os.environ.get("LUCE_TEST_GATES") == "all":
        return list(every)
    return list({module.source: module for module in reversed(every)}.values())


def fault(module: Module, target: str) -> str | None:
    """What is wrong with a module, if anything."""
    what = f"{module.source} {dict(module.defines)}"
    try:
        code = compiled(module.source, module.defines, target)
    except CompileError as error:
        return f"{what}\n{str(error)[-3000:]}"
    without = sorted(name for name in module.kernels if name.encode() not in code)
    return f"{what}: there is no {', '.join(without)} for {target}" if without else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*NVIDIA, *AMD])
def test_every_kernel_compiles(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        faults = [one for one in pool.map(lambda module: fault(module, target), wanted(target)) if one]
    assert not faults, "\n\n".join(faults)


def test_no_source_is_left_out() -> None:
    assert {module.source for module in modules("sm_90a")} == set(SOURCES)
    assert {module.source for module in wanted("sm_80")} == {module.source for module in modules("sm_80")}
    assert len(wanted("sm_90a")) > 2 * len(SOURCES)


@pytest.mark.parametrize("target", ["sm_90a", "gfx1151"])
def test_a_planted_fault_is_found(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    for macros, said in (({"WIDTH": "no_such_name"}, "no_such_name"), ({}, "WIDTH: consecutive values")):
        found = fault(Module("selftest_activation.cu", macros, frozenset()), target)
        assert found is not None and said in found
    found = fault(Module("selftest_activation.cu", {"WIDTH": 8}, frozenset({"no_such_kernel"})), target)
    assert found is not None and "there is no no_such_kernel" in found
