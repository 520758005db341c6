"""Imports go downwards (CONTRIBUTING.md): a package may import its own layer's allowed peers and those below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "luce"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "paused_collector", "stamped_stream", "tuples", "_version"}),
    frozenset({"charts", "trace"}),
    frozenset({"weights", "text", "vision"}),
    frozenset({"compute", "constraints", "sampling", "speculation"}),
    frozenset({"scheduling", "engines"}),
    frozenset({"actors"}),
    frozenset({"http", "replay", "demo", "bench", "composition"}),
    frozenset({"cli"}),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

SEAM = "luce.engines.seam"
"""Imports nothing of luce; everybody may import it."""

FORBIDDEN_PEERS = {("scheduling", "engines"), ("engines", "scheduling")}
"""Policy and mechanism never import each other's insides; the seam apart."""


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append(node.module)
    return [name for name in found if name == "luce" or name.startswith("luce.")]


def violations(package: str, names: list[str]) -> list[str]:
    wrong = []
    for name in names:
        if name == SEAM:
            continue
        target = name.split(".")[1] if "." in name else ""
        if target == package or not target:
            continue
        if LEVEL[target] > LEVEL[package] or (package, target) in FORBIDDEN_PEERS:
            wrong.append(name)
    return wrong


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    if len(parts) == 1 and parts[0] in {"__init__.py", "__main__.py"}:
        return
    package = parts[0].removesuffix(".py")
    assert violations(package, imports(path)) == []


def test_seam_imports_nothing_of_luce() -> None:
    assert imports(ROOT / "engines" / "seam.py") == []


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("scheduling", "luce.engines.qwen35.engine"),
        ("engines", "luce.scheduling.plan"),
        ("text", "luce.actors.request"),
    ],
)
def test_a_planted_upward_import_is_found(package: str, name: str) -> None:
    assert violations(package, [name]) == [name]


def test_modules_stay_small() -> None:
    long = {str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}
