"""The OpenAPI document: what is kept is what the code makes, and it knows every address."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from luce.http.app import create_app
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.unsupported import CHAT
from luce.http.openapi.document import document, encoded
from luce.http.openapi.operations import OPERATIONS
from luce.http.options import HttpOptions
from luce.http.route_names import address
from tests.http.conftest import serving
from tests.http.stubs import StubService, make_model, saying
from tools.openapi import DOCUMENT

FOUND = document()


def test_the_kept_document_is_up_to_date() -> None:
    assert DOCUMENT.read_bytes() == encoded(), "run python -m tools.openapi"


def test_every_address_of_the_app_is_in_it() -> None:
    app = create_app(StubService(), make_model(), HttpOptions())  # type: ignore[arg-type]
    served = {
        (method, address(rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.rule.startswith("/ui")  # the page's own
    }
    described = {
        (method.upper(), path) for path, operations in FOUND["paths"].items() for method in operations
    }
    assert described == served
    assert len(OPERATIONS) == len(served)


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _nodes(item)


def test_every_reference_leads_somewhere() -> None:
    references = {node["$ref"] for node in _nodes(FOUND) if "$ref" in node}
    references |= {one for node in _nodes(FOUND) if "mapping" in node for one in node["mapping"].values()}
    assert len(references) > 50
    for reference in references:
        target = FOUND
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_names_are_short_and_unlike() -> None:
    names = [*FOUND["components"]["schemas"]]
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]+", name) for name in names), names
    assert len(names) == len(set(names))
    ids = [operation.name for operation in OPERATIONS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", FOUND["components"]["schemas"])
def test_schemas_are_json_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(FOUND["components"]["schemas"][name])


def _validator(operation: Any) -> jsonschema.Draft202012Validator:
    body = FOUND["paths"][operation.path][operation.method.lower()]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator(schema | {"components": FOUND["components"]})


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.request], ids=lambda one: one.name)
def test_examples_fit_and_other_fields_do_not(operation: Any) -> None:
    validator = _validator(operation)
    assert operation.examples
    for example in operation.examples.values():
        validator.validate(example)
        assert not validator.is_valid(example | {"no_such_field": 1})
        msgspec.convert(example, operation.request)


def test_fields_that_are_refused_are_not_offered() -> None:
    """But for those of which some values are served."""
    offered = set(FOUND["components"]["schemas"]["ChatRequest"]["properties"])
    served = {field.encode_name for field in msgspec.structs.fields(ChatRequest)}
    assert offered == served
    assert {field for field in offered & set(CHAT) if not CHAT[field][0]} == set()


@pytest.mark.trio
async def test_it_is_served() -> None:
    async with serving() as server, server.http() as client:
        response = await client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.content == encoded()
    assert json.loads(response.content)["openapi"] == "3.1.0"


@pytest.mark.trio
async def test_it_wants_a_key_as_all_else() -> None:
    async with serving(api_keys=("k",)) as server, server.http() as client:
        assert (await client.get("/openapi.json")).status_code == 401
    assert FOUND["security"] == [{"bearer": []}, {"apiKey": []}]
    probes = {path for path, one in FOUND["paths"].items() if one.get("get", {}).get("security") == []}
    assert probes == {"/health", "/ready"}


def _data(content: dict[str, Any]) -> dict[str, Any]:
    """The schema of an event's data, where it is JSON."""
    data: dict[str, Any] = content["text/event-stream"]["schema"]["properties"]["data"]
    return data["anyOf"][0] if "anyOf" in data else data


def test_streams_are_described() -> None:
    for operation in OPERATIONS:
        if operation.generates:
            content = FOUND["paths"][operation.path]["post"]["responses"]["200"]["content"]
            events = _data(content)["contentSchema"]["anyOf"]
            assert len(events) == len(operation.events) > 1


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "logprobs": True,
        "top_logprobs": 1,
    },
    "/v1/completions": {"prompt": ["a", "b"], "logprobs": 1, "echo": None},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"model": "stub", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
}


@pytest.mark.trio
@pytest.mark.parametrize("path", [one.path for one in OPERATIONS if one.generates])
async def test_answers_and_events_fit(path: str) -> None:
    """The whole of each, which no outside tool looks at: it takes the data of events for text."""
    content = FOUND["paths"][path]["post"]["responses"]["200"]["content"]
    components = {"components": FOUND["components"]}
    whole = jsonschema.Draft202012Validator(content["application/json"]["schema"] | components)
    event = jsonschema.Draft202012Validator(_data(content)["contentSchema"] | components)
    script = saying("Hello", pause=0.003)
    async with serving(StubService(script), keep_alive=0.002) as server, server.http() as client:
        response = await client.post(path, json=BODIES[path])
        whole.validate(response.json())
        stream = await client.post(path, json=BODIES[path] | {"stream": True})
    lines = [
        line[6:] for line in stream.text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"
    ]
    assert len(lines) > 5
    for line in lines:
        event.validate(json.loads(line))
    assert not event.is_valid({"choices": 3})
    assert not whole.is_valid({})
