"""Every kernel compiles for every GPU that luce serves, without any of them: NVRTC for NVIDIA, clang for AMD.

One target gets every variant, the others the first of each source. The first of each source is compiled as an engine
has it on one target of each vendor; all else quickly (`compilers.py`). LUCE_TEST_GATES=all: every variant, on every
target, as an engine has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from luce.compute.kernel_sources import kernels_directory
from luce.compute.operands import Operands
from luce.compute.weight_fields import FORMATS
from tests.kernels.compilers import AMD, NVIDIA, CompileError, compiled, missing
from tests.kernels.variants import SOURCES, Module, modules

FULL = ("sm_90a",)
"""Those with every variant."""
OPTIMISED = ("sm_90a", "gfx1151")
"""Those where the first of each source is compiled as an engine has it."""
ALL = os.environ.get("LUCE_TEST_GATES") == "all"


def wanted(target: str) -> list[Module]:
    every = modules(target)
    return list(every) if target in FULL or ALL else first_of_each(every)


def first_of_each(every: Iterable[Module]) -> list[Module]:
    found = dict[str, Module]()
    for module in every:
        found.setdefault(module.source, module)
    return list(found.values())


def fault(module: Module, target: str, *, quickly: bool = True) -> str | None:
    """What is wrong with a module, if anything."""
    what = f"{module.source} {dict(module.defines)}"
    try:
        code = compiled(module.source, module.defines, target, quickly=quickly)
    except CompileError as error:
        return f"{what}\n{str(error)[-3000:]}"
    without = sorted(name for name in module.kernels if name.encode() not in code)
    return f"{what}: there is no {', '.join(without)} for {target}" if without else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*NVIDIA, *AMD])
def test_every_kernel_compiles(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    every = wanted(target)
    whole = every if ALL else first_of_each(every) if target in OPTIMISED else []

    def judged(module: Module) -> str | None:
        return fault(module, target, quickly=module not in whole)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        faults = [one for one in pool.map(judged, every) if one]
    assert not faults, "\n\n".join(faults)


def of_bf16(target: str) -> list[Module]:
    """The first of each source and format (on one target; elsewhere of one source), with operands of bf16."""
    found = dict[tuple[str, object], Module]()
    for module in modules(target):
        form = module.defines.get("FORMAT", module.defines.get("SOURCE"))
        every_format = target in FULL or module.source == "selftest_records.cu"
        found.setdefault((module.source, form if every_format else None), module)
    return [
        attrs.evolve(module, defines={**module.defines, **Operands.BF16.defines}) for module in found.values()
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*NVIDIA, *AMD])
def test_operands_of_bf16_compile(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    every = of_bf16(target)
    forms = {module.defines["FORMAT"] for module in every if module.source == "selftest_records.cu"}
    assert forms == {f"FORMAT_{name}" for name in FORMATS}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        faults = [one for one in pool.map(lambda module: fault(module, target), every) if one]
    assert not faults, "\n\n".join(faults)


SHOWING = ("deltanet_chunk.cu", "gemm_chain.cu", "gemm_cluster.cu", "gemm_decode.cu", "gemm_prefill.cu")
"""Sources with something in them for SHOW_ORDERS, which racecheck wants (`shown_orders.py`)."""


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_orders_can_be_shown(target: str) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    found = [module for module in first_of_each(modules(target)) if module.source in SHOWING]
    assert len(found) == (len(SHOWING) if target == "sm_90a" else 1)
    showing = [attrs.evolve(module, defines={**module.defines, "SHOW_ORDERS": 1}) for module in found]
    faults = [one for one in (fault(module, target) for module in showing) if one]
    assert not faults, "\n\n".join(faults)


def test_no_source_is_left_out() -> None:
    assert {module.source for module in modules("sm_90a")} == set(SOURCES)
    assert {module.source for module in wanted("sm_80")} == {module.source for module in modules("sm_80")}
    assert len(wanted("sm_90a")) > 2 * len(SOURCES)


@pytest.mark.parametrize("quickly", [False, True])
@pytest.mark.parametrize("target", ["sm_90a", "gfx1151"])
def test_a_planted_fault_is_found(target: str, quickly: bool) -> None:
    if (why := missing(target)) is not None:
        pytest.skip(f"NO COMPILE GATE for {target}: {why}")
    for macros, said in (({"WIDTH": "no_such_name"}, "no_such_name"), ({}, "WIDTH: consecutive values")):
        found = fault(Module("selftest_activation.cu", macros, frozenset()), target, quickly=quickly)
        assert found is not None and said in found
    absent = Module("selftest_activation.cu", {"WIDTH": 8}, frozenset({"no_such_kernel"}))
    found = fault(absent, target, quickly=quickly)
    assert found is not None and "there is no no_such_kernel" in found


GENERIC = re.compile(r"\[[&=\w, ]*\]\s*\([^()]*\bauto\b")
"""A lambda with an `auto` parameter, which NVRTC 13.0 takes for a function of the host and refuses (13.5 does not)."""


def test_no_lambda_is_generic() -> None:
    """Whichever NVRTC this machine has."""
    assert GENERIC.search("auto weigh = [&](i32 tile, auto meanwhile) {")
    assert GENERIC.search("each([] (const auto& one) {})")
    assert not GENERIC.search("auto weigh = [&](i32 tile) { auto one = all[2](tile); };")
    sources = [path for path in kernels_directory().iterdir() if path.suffix in (".h", ".cu")]
    assert len(sources) > 50
    assert not [path.name for path in sources if GENERIC.search(path.read_text())]
