"""The table of `README.md` names tests that exist, for every fault; and the ones that are tested nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from quart import Quart

from tests.http.conftest import serving
from tests.http.stubs import StubService, saying

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| H(\d+): .*\|(.*)\|$", (HERE / "README.md").read_text(), re.M)


def test_every_fault_has_a_row_and_tests() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 13))


@pytest.mark.parametrize(("number", "cell"), ROWS)
def test_the_tests_of_a_fault_exist(number: str, cell: str) -> None:
    named = re.findall(r"`([\w./]+)::(\w+)`", cell)
    assert named and len(named) == cell.count("`") // 2
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (HERE / file).read_text(), re.M), f"{file}::{name}"


@pytest.mark.trio
async def test_streams_have_no_limit_of_the_framework(monkeypatch: pytest.MonkeyPatch, user: Any) -> None:
    """The framework's default, made so short that the answer takes several times as long."""
    defaults = {**Quart.default_config, "RESPONSE_TIMEOUT": 0.1}
    monkeypatch.setattr(Quart, "default_config", type(Quart.default_config)(defaults))
    async with serving(StubService(saying("slow", pause=0.15))) as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": user, "stream": True})
        assert response.text.endswith("data: [DONE]\n\n")
