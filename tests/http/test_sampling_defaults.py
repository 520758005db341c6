"""What a request leaves open is the server's default, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from luce.engines.sampling_defaults import GenerationDefaults
from tests.http.conftest import serving
from tests.http.stubs import StubService, make_model

pytestmark = pytest.mark.trio

DEFAULTS = GenerationDefaults(0.25, 7, 0.5, 0.125, 1.5, 0.75, -0.5)
HI: Any = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", HI), ("/v1/messages", HI | {"model": "stub"})],
    ids=["openai", "anthropic"],
)
async def test_every_default_reaches_the_engine(path: str, body: Any) -> None:
    async with serving(StubService(), make_model(defaults=DEFAULTS)) as server, server.http() as client:
        for asked, expected in (({}, 0.25), ({"temperature": 1.0}, 1.0), ({"temperature": 0}, 0.0)):
            assert (await client.post(path, json=body | asked)).status_code == 200
            params = server.service.submissions[-1].params
            found = {name: getattr(params, name) for name in DEFAULTS.values}
            assert found == {**DEFAULTS.values, "temperature": expected}
