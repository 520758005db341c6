"""Documents: tables are the program's own, links lead somewhere, files that are named exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.reference_tables import PAGES, filled

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`((?:luce|tests|tools|benchmarks|statecharts|docs)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date(page: Path) -> None:
    assert page.read_text() == filled(page), "run python -m tools.reference_tables"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_file_names_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [t for t in targets if t and "://" not in t and not (document.parent / t).exists()]
    missing += [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    assert not missing, missing


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in DOCUMENTS if (ROOT / "docs") in path.parents]
    assert [str(page) for page in pages if str(page) != "README.md" and f"({page})" not in index] == []
