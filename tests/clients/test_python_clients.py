"""Clients in Python: every check of every script is a test."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Check
from tests.clients.scripts import Script, all_checks


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("script", "check"),
    all_checks(
        Script("sdk", "openai_sync.py"),
        Script("sdk", "openai_trio.py"),
        Script("sdk", "openai_forms.py"),
        Script("sdk", "openai_responses.py"),
        Script("sdk", "anthropic_messages.py"),
        Script("sdk", "litellm_openai.py"),
        Script("sdk", "langchain_openai_chat.py"),
        Script("sdk", "frameworks_forms.py"),
        Script("instructor", "instructor_forms.py"),
    ),
)
def test_client(script: Script, check: str, passes: Check) -> None:
    passes(script, check)
