"""Clients for Node.js: every check of every script is a test."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Check
from tests.clients.scripts import Script, all_checks


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("script", "check"),
    all_checks(
        Script("node", "openai.mjs"),
        Script("node", "ai-sdk.mjs"),
        Script("node", "ai-sdk-apis.mjs"),
        Script("node", "ai-sdk-forms.mjs"),
    ),
)
def test_client(script: Script, check: str, passes: Check) -> None:
    passes(script, check)
