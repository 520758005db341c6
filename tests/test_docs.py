"""Documents: tables are the program's own, links lead somewhere, files that are named exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reference_tables import PAGES, filled

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`((?:luce|tests|tools|benchmarks|statecharts|docs)/[\w./-]+)`")
MADE = {"tests/.data/", "tests/clients/node/node_modules"}
"""Folders that `make test` makes, the second one not with LUCE_TEST_CLIENTS=none."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date(page: Path) -> None:
    assert page.read_text() == filled(page), "run python -m tools.reference_tables"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_file_names_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [t for t in targets if t and "://" not in t and not (document.parent / t).exists()]
    missing += [name for name in NAMED.findall(text) if name not in MADE and not (ROOT / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize(("page", "memory"), [("serve.md", "300MiB"), ("models.md", "400MB")])
def test_the_refusal_of_a_plan_is_the_one_that_is_shown(page: str, memory: str) -> None:
    shown = re.findall(
        r"^luce: --max-memory: .*?fit$", (ROOT / "docs/how-to" / page).read_text(), re.M | re.S
    )
    command = [sys.executable, "-m", "luce", "inspect", "--slots", "64", "--max-memory", memory]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr
    assert [" ".join(line.split()) for line in shown] == [" ".join(said.split())]


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in DOCUMENTS if (ROOT / "docs") in path.parents]
    assert [str(page) for page in pages if str(page) != "README.md" and f"({page})" not in index] == []


TABLE = ROOT / "docs" / "reference" / "feature-table.md"


def _features() -> list[tuple[str, str, str]]:
    """(topic, what luce does, tests) of every row."""
    rows = [line.strip("|").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip(), row[2].strip()) for row in rows if row[1].strip() != "luce"]


def test_every_yes_of_the_feature_table_has_a_test_that_exists() -> None:
    features = _features()
    assert len(features) == 64
    for topic, says, tests in features:
        assert says, topic
        no = says == "N" or says.startswith("not yet")
        assert bool(tests) != no, f"{topic}: {says!r} and its test"
        for file, name in re.findall(r"`([\w/.]+)::(\w+)`", tests):
            path = ROOT / "tests" / file
            assert path.exists(), f"{topic}: {file}"
            assert f"def {name}(" in path.read_text(), f"{topic}: {file}::{name}"
        assert len(re.findall(r"::", tests)) == len(tests.split(", ")) or no, topic


def test_flags_of_the_feature_table_exist() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    for topic, says, _ in _features():
        for flag in re.findall(r"--[a-z-]+", says):
            assert f"| `{flag}` |" in page, f"{topic}: {flag}"
