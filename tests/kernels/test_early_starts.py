"""Grids that start before the one ahead of them is done: what kernels must say, and which devices may do it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from luce.compute import cupy_device
from luce.compute.kernel_sources import kernels_directory

CONSTANTS = {"bias", "k_norm", "q_norm", "records", "rope", "table", "turn", "w", "weight", "weights"}
"""Arguments that no kernel writes."""


def kernels() -> Iterator[tuple[str, str, str]]:
    """(name, arguments, body) of every kernel."""
    for path in sorted(kernels_directory().glob("*.cu")):
        if path.name.startswith("selftest"):
            continue
        for part in re.split(r"(?m)^LUCE_KERNEL", path.read_text())[1:]:
            found = re.match(
                r"(?:_RESIDENT|_CLUSTER)?\((\w+),(?:[^()]|\([^()]*\))*\)\s*\(([^)]*)\)\s*\{(.*)",
                part,
                re.DOTALL,
            )
            assert found, f"{path.name}: a kernel that is written in another way: {part[:80]}"
            name, arguments, body = found.groups()
            yield f"{path.name}: {name}", arguments, body.split("\nLUCE_EXPORT")[0]


def test_only_constants_take_the_non_coherent_path() -> None:
    named = {
        (kernel, argument)
        for kernel, arguments, _ in kernels()
        for argument in re.findall(r"const \w+\* RESTRICT (\w+)", arguments)
    }
    assert len({kernel for kernel, _ in named}) > 5
    assert {one for one in named if one[1] not in CONSTANTS} == set()


def test_whoever_lets_the_next_grid_start_waits_for_the_one_before() -> None:
    starting = [(kernel, body) for kernel, _, body in kernels() if "pdl_launch()" in body]
    assert len(starting) > 10
    assert [kernel for kernel, body in starting if "pdl_wait()" not in body] == []


@pytest.mark.parametrize(("major", "early"), [(8, False), (9, True), (12, True)])
def test_grids_start_early_from_sm_90_on(major: int, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = object()
    monkeypatch.setattr(cupy_device, "_launcher", lambda: driver)
    properties = {
        "name": b"GPU", "major": major, "minor": 0, "multiProcessorCount": 1, "sharedMemPerBlockOptin": 1 << 16,
    }  # fmt: skip
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=False, getDeviceProperties=lambda index: properties),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        Device=lambda index: SimpleNamespace(use=lambda: None),
    )
    device = cupy_device.CupyDevice(SimpleNamespace(cuda=cuda), 0)
    assert (device.driver is driver) is early
