"""`python -m tools.openapi` writes the server's OpenAPI document into docs/reference/openapi.json."""

from __future__ import annotations

from pathlib import Path

from luce.http.openapi.document import encoded

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "openapi.json"

if __name__ == "__main__":
    DOCUMENT.write_bytes(encoded())
