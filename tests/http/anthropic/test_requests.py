"""Bodies of POST /v1/messages: what reaches the model, what is refused and how, and counting their tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.http.anthropic.talk import USER, body, client, post
from tests.http.conftest import Server, data_url, serving
from tests.http.stubs import StubEngine, StubPreparer, StubService, make_model, saying

pytestmark = pytest.mark.trio

PICTURE = data_url()
BASE64 = PICTURE.split(",")[1]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
TEXT = {"type": "text", "text": "Look"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def used(name: str = "f", number: int = 1) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"b": 1, "a": "é"}}


def result(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content} | more


async def seen(asked: dict[str, Any], thinking: bool = False) -> dict[str, Any]:
    """What the template is given."""
    preparer = StubPreparer(thinking)
    async with serving(model=make_model(preparer=preparer)) as server:
        response = await post(server, asked)
    assert response.status_code == 200, response.text
    (one,) = preparer.seen
    return one


async def test_every_kind_of_block_reaches_the_template() -> None:
    messages = [
        {"role": "user", "content": [IMAGE | CACHED, TEXT | CACHED, {"type": "text", "text": "!"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "text", "text": "I ask", "citations": None},
                used() | CACHED,
                used("g", 2) | {"caller": {"type": "direct"}},
                {"type": "text", "text": " twice"},
            ],
        },
        {
            "role": "user",
            "content": [
                result(1, "one"),
                result(2, [TEXT, IMAGE], is_error=True) | CACHED,
                result(3, None, is_error=False),
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    given = await seen(
        body(messages, system=[TEXT, {"type": "text", "text": " well"} | CACHED], tools=[TOOL])
    )
    system, asking, answering, first, second, third, last = given["messages"]
    assert system == {"role": "system", "content": "Look well"}
    assert asking == {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look!"}]}
    assert answering["content"] == "I ask twice" and answering["reasoning_content"] == "hm\nso"
    assert [call["function"] for call in answering["tool_calls"]] == [
        {"name": "f", "arguments": {"b": 1, "a": "é"}},
        {"name": "g", "arguments": {"b": 1, "a": "é"}},
    ]
    assert [call["id"] for call in answering["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert list(answering["tool_calls"][0]["function"]["arguments"]) == ["b", "a"], "in their order"
    assert first == {"role": "tool", "content": "one", "tool_call_id": "toolu_1"}
    assert second["content"] == [{"type": "text", "text": "Error: Look"}, {"type": "image"}]
    assert third["content"] == ""
    assert last == {"role": "user", "content": "And?"}
    assert len(given["images"]) == 2


async def test_plain_strings_and_system_messages() -> None:
    messages = [
        {"role": "system", "content": [TEXT]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    given = await seen(body(messages, system="s"))
    assert list(given["messages"]) == [
        {"role": "system", "content": "s\n\nLook"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "d"},
    ]


async def test_results_keep_their_place_between_texts() -> None:
    messages = [*USER, {"role": "assistant", "content": [used()]}]
    messages += [{"role": "user", "content": [TEXT, result(1, "x"), TEXT, TEXT]}]
    given = await seen(body(messages))
    assert [(m["role"], m["content"]) for m in given["messages"][2:]] == [
        ("user", "Look"),
        ("tool", "x"),
        ("user", "LookLook"),
    ]
    assert given["messages"][1]["content"] == "" and "reasoning_content" not in given["messages"][1]


@pytest.mark.parametrize(
    ("thinking", "options"),
    [
        (None, {}),
        ({"type": "adaptive"}, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
async def test_thinking_is_the_template_s(thinking: Any, options: dict[str, Any]) -> None:
    assert (await seen(body(thinking=thinking)))["template_kwargs"] == options


async def test_a_template_without_the_switch() -> None:
    preparer = StubPreparer()
    preparer.options = frozenset()
    async with serving(model=make_model(preparer=preparer)) as server:
        assert (await post(server, body(thinking={"type": "adaptive"}))).status_code == 200
        error = await refused(server, body(thinking={"type": "disabled"}))
        assert error == "thinking: the chat template of stub has no switch for thinking; leave it out"
        assert (await post(server, body([*USER, {"role": "assistant", "content": "x"}]))).status_code == 200
    assert preparer.seen[-1]["template_kwargs"] == {}


@pytest.mark.parametrize(
    ("thinking", "options"),
    [
        (None, {"reasoning_effort": "max"}),
        ({"type": "adaptive"}, {"reasoning_effort": "max", "enable_thinking": True}),
        ({"type": "disabled"}, {"reasoning_effort": "max", "enable_thinking": False}),
    ],
)
async def test_effort_goes_to_templates_that_know_levels(thinking: Any, options: dict[str, Any]) -> None:
    preparer = StubPreparer()
    asked = body(output_config={"effort": "max"}, thinking=thinking)
    async with serving(model=make_model(preparer=preparer)) as server:
        assert (await post(server, asked)).status_code == 200
        assert "reasoning_effort" not in preparer.seen[-1]["template_kwargs"]
        preparer.options = frozenset({"reasoning_effort", "enable_thinking"})
        assert (await post(server, asked)).status_code == 200
    assert preparer.seen[-1]["template_kwargs"] == options


@pytest.mark.parametrize(
    "content", ["It is", [{"type": "text", "text": "It"}, {"type": "text", "text": " is"}]]
)
@pytest.mark.parametrize("thinking", [False, True])
async def test_an_answer_may_have_begun(content: Any, thinking: bool) -> None:
    """The last message is the assistant's: the model goes on, without thinking first."""
    given = await seen(body([*USER, {"role": "assistant", "content": content}]), thinking)
    assert list(given["messages"]) == [{"role": "user", "content": "Hi"}]
    assert given["continuation"] == "It is" and given["template_kwargs"] == {"enable_thinking": False}


async def test_what_answers_cannot_begin_with() -> None:
    for content, said in [
        ("It is ", "must not end with whitespace"),
        ([{"type": "text", "text": "It\n"}], "must not end with whitespace"),
        ([used()], "messages[1].content[0]: the last message is the assistant's"),
        (
            [{"type": "thinking", "thinking": "x"}],
            "messages[1].content[0]: the last message is the assistant's",
        ),
    ]:
        async with serving() as server:
            assert said in await refused(server, body([*USER, {"role": "assistant", "content": content}]))
    model = make_model(preparer=StubPreparer(thinking=True))
    async with serving(model=model) as server:
        asked = body([*USER, {"role": "assistant", "content": "x"}], thinking={"type": "adaptive"})
        assert "switch its thinking off" in await refused(server, asked)


async def test_parameters_reach_the_service() -> None:
    service = StubService()
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "seed": 0,
        "stop_sequences": ["a", "b"],
        "timeout": 9.5,
    }
    async with serving(service) as server:
        assert (await post(server, body(**fields, max_tokens=9, cache_salt="s"))).status_code == 200
        nulls = dict.fromkeys(
            ["temperature", "system", "tools", "tool_choice", "thinking", "metadata", "stream", "container"]
        )
        assert (await post(server, body(**nulls))).status_code == 200
    first, second = service.submissions
    params = first.params
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.max_tokens) == (
        0.5,
        0.25,
        7,
        0,
        9,
    )
    assert (first.stop, first.timeout, first.cache_salt) == (("a", "b"), 9.5, b"s")
    assert first.stop_in_reasoning is False
    assert (second.params.temperature, second.params.top_k, second.params.eos_token_ids) == (0.7, 20, (299,))


async def test_harmless_fields_are_taken() -> None:
    fields = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "inference_geo": None,
        "speed": "standard",
        "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "tools": [
            TOOL
            | CACHED
            | {
                "type": "custom",
                "strict": False,
                "eager_input_streaming": True,
                "allowed_callers": ["direct"],
            }
            | {"defer_loading": False, "input_examples": [], "description": "d"}
        ],
        "user_profile_id": "p",
    }
    async with serving() as server:
        assert (await post(server, body(**fields))).status_code == 200


async def refused(server: Server, asked: Any, status: int = 400) -> str:
    """The message of the error, in Anthropic's shape; the server goes on."""
    for path in ("/v1/messages/count_tokens", "/v1/messages"):
        response = await post(server, asked, path)
        if response.status_code == 200 and path.endswith("count_tokens"):
            continue  # what is wrong with the answer alone
        assert response.status_code == status, response.text
        said = response.json()
        assert said.keys() == {"type", "error", "request_id"} and said["type"] == "error"
        assert said["error"].keys() == {"type", "message"}
    assert (await post(server, body())).status_code == 200
    message: str = said["error"]["message"]
    return message


def pictured(**source: Any) -> dict[str, Any]:
    return body([{"role": "user", "content": [TEXT, {"type": "image", "source": source}]}])


SOURCE = "messages[0].content[1].source"
BAD: list[tuple[Any, str]] = [
    ({"messages": USER}, "max_tokens is missing"),
    (body(max_tokens=0), "max_tokens must be at least 1"),
    (body(max_tokens=None), "max_tokens"),
    (body([]), "messages must hold a message of the user's"),
    (body([{"role": "assistant", "content": "x"}]), "messages must hold a message of the user's"),
    (body([{"role": "wizard", "content": "x"}]), "messages[0].role"),
    (body([{"role": "tool", "content": "x"}]), "messages[0].role"),
    (body([{"role": "user", "content": []}]), "messages[0].content must hold at least one block"),
    (body([{"role": "user", "content": None}]), "messages[0].content"),
    (body([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text is missing"),
    (
        body([{"role": "user", "content": [{"type": "document", "source": {}}]}]),
        "messages[0].content[0].type",
    ),
    (body([{"role": "user", "content": [used()]}]), "messages[0].content[0].type"),
    (body([{"role": "user", "content": [TEXT | {"citations": [{}]}]}]), "messages[0].content[0].citations"),
    (body([*USER, {"role": "assistant", "content": [IMAGE]}, *USER]), "messages[1].content[0].type"),
    (
        body([*USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *USER]),
        "messages[1].content[0]: redacted thinking",
    ),
    (
        body([*USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]),
        "messages[1].content[0]: redacted thinking",
    ),
    (
        body([*USER, {"role": "assistant", "content": [used() | {"input": "{}"}]}]),
        "messages[1].content[0].input",
    ),
    (body([{"role": "user", "content": [result(1, [used()])]}]), "messages[0].content[0].content[0].type"),
    (body([{"role": "user", "content": "x", "name": "Ann"}]), "messages[0].name is not a known field"),
    (
        pictured(type="base64", media_type="image/png", data="!!!!"),
        f"{SOURCE}.data: the base64 data hold '!'",
    ),
    (pictured(type="base64", media_type="image/png", data=""), f"{SOURCE}.data"),
    (pictured(type="base64", media_type="image/png", data="AAAA"), f"{SOURCE}.data: not a picture"),
    (pictured(type="base64", media_type="text/plain", data=BASE64), f"{SOURCE}.media_type: the media type"),
    (pictured(type="base64", media_type="", data=BASE64), f"{SOURCE}.media_type: the media type is ''"),
    (pictured(type="base64", media_type="image/png;base64,AAAA", data=BASE64), f"{SOURCE}.media_type: "),
    (pictured(type="base64", data=BASE64), f"{SOURCE}.media_type is missing"),
    (pictured(type="url", url="ftp://x/y.png"), f"{SOURCE}.url"),
    (pictured(type="url", url="https://example.org/y.png"), f"{SOURCE}.url"),
    (pictured(type="file", file_id="x"), f"{SOURCE}.type"),
    (body(system=3), "system"),
    (body(system=[IMAGE]), "system[0].type"),
    (body(stop_sequences=[""]), "stop_sequences must not hold an empty string"),
    (body(stop_sequences="x"), "stop_sequences"),
    (body(stop_sequences=["x"] * 17), "stop_sequences holds 17 strings"),
    (body(temperature=-1), "temperature"),
    (body(top_p=2), "top_p"),
    (body(top_k=-2), "top_k"),
    (body(metadata={"user": "x"}), "metadata.user"),
    (body(service_tier="priority"), "service_tier"),
    (body(tools=[{"name": "f"}]), "tools[0].input_schema is missing"),
    (body(tools=[{"name": "", "input_schema": {}}]), "tools[0].name"),
    (
        body(tools=[TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]),
        "tools[1].type: tools of the type 'web_search_20250305' are not supported",
    ),
    (
        body(tools=[{"type": "bash_20250124", "name": "bash"}]),
        "tools[0].type: tools of the type 'bash_20250124'",
    ),
    (body(tools=[TOOL | {"defer_loading": True}]), "tools[0].defer_loading"),
    (body(tools=[TOOL | {"input_examples": [{}]}]), "tools[0].input_examples"),
    (body(tool_choice={"type": "maybe"}), "tool_choice.type"),
    (body(tool_choice="auto"), "tool_choice"),
    (body(thinking={"type": "between_tools"}), "thinking.type"),
    (body(thinking={"type": "enabled"}), "thinking.budget_tokens is missing"),
    (body(container="c"), "container is not supported"),
    (body(context_management={"edits": [{}]}), "this value of context_management is not supported"),
    (body(mcp_servers=[{}]), "this value of mcp_servers is not supported"),
    (body(speed="fast"), "this value of speed is not supported"),
    (body(n=2), "n is not a known field"),
]


@pytest.mark.parametrize(("asked", "said"), BAD, ids=[said[:40] for _, said in BAD])
async def test_bad_requests_name_the_field_of_this_api(asked: Any, said: str) -> None:
    async with serving() as server:
        message = await refused(server, asked)
    assert message.startswith(said), message
    assert "image_url" not in message and "chat_template_kwargs" not in message


async def test_a_model_that_is_not_here_and_pictures_for_one_that_reads_none() -> None:
    async with serving() as server:
        assert "'claude' is not served here" in await refused(server, body(model="claude"), 404)
    async with serving(model=make_model(engine=StubEngine(images=False))) as server:
        asked = body([{"role": "user", "content": [IMAGE]}])
        assert await refused(server, asked) == "the model stub does not read pictures"
    async with serving(aliases=("claude",)) as server, client(server) as sdk:
        await sdk.messages.create(**body(model="claude"))


async def test_too_many_pictures_and_too_large_ones() -> None:
    async with serving(max_images=2, max_image_bytes=100) as server:
        message = await refused(
            server, body([{"role": "user", "content": [IMAGE, result(1, [IMAGE]), IMAGE]}])
        )
        assert message == "the request holds 3 pictures; at most 2 are taken in one request"
        large = base64.b64encode(bytes(200)).decode()
        message = await refused(server, pictured(type="base64", media_type="image/png", data=large))
        assert message.startswith(f"{SOURCE}.data: has about 20")


async def test_a_picture_may_be_larger_than_all_text() -> None:
    """Bare base64 is no text that fills the context; text under the same name is."""
    large = base64.b64encode(bytes(3 << 20)).decode()
    async with serving() as server:
        for space in ("", " ", "\n  "):
            data = json.dumps(pictured(type="base64", media_type="image/png", data="@")).replace(
                '"@"', f'{space}"{large}"'
            )
            async with server.http() as http:
                response = await http.post("/v1/messages", content=data)
            assert response.status_code == 400 and "not a picture" in response.text
        text = "x" * (3 << 20)
        for asked in (
            body([{"role": "user", "content": text}]),
            body(system=text),
            body([*USER, {"role": "assistant", "content": [used() | {"input": {"data": text}}]}, *USER]),
            body([*USER, {"role": "assistant", "content": [used() | {"input": {"image_url": text}}]}, *USER]),
            body(tools=[TOOL | {"description": text}]),
        ):
            response = await post(server, asked)
            assert response.status_code == 400
            assert "characters of text" in response.text or "beside its pictures" in response.text


async def test_counting() -> None:
    """The same prompt, without running it, and without looking at the pictures but for their size."""
    tools = [TOOL | {"description": "d"}]
    picture = [{"role": "user", "content": [IMAGE, TEXT]}]
    begun = [*USER, {"role": "assistant", "content": "It"}]
    service = StubService(saying("x"))
    async with serving(service) as server:
        for fields in (
            {},
            {"messages": picture, "system": "be brief"},
            {"messages": begun, "tools": tools, "tool_choice": {"type": "none"}},
        ):
            asked = body() | fields
            answer = (await post(server, asked)).json()
            bare = {name: value for name, value in asked.items() if name != "max_tokens"}
            for one in (asked, bare, asked | {"stream": True, "temperature": 1}):
                counted = await post(server, one, "/v1/messages/count_tokens")
                assert counted.json() == {"input_tokens": answer["usage"]["input_tokens"]}
        assert len(service.submissions) == 3
        async with client(server) as sdk:
            found = await sdk.messages.count_tokens(model="stub", messages=USER, tools=tools)  # type: ignore[arg-type]
        assert found.input_tokens == 2


async def test_what_does_not_fit_can_still_be_counted() -> None:
    """Up to what is looked at; an answer to it is refused with the numbers."""
    asked = body([{"role": "user", "content": "x" * 100}])
    async with serving() as server:
        counted = await post(server, asked, "/v1/messages/count_tokens")
        answer = await post(server, asked)
    assert counted.json() == {"input_tokens": 100}
    assert answer.status_code == 400 and "the prompt has 100 tokens; this model's maximum" in answer.text
