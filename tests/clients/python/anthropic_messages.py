"""The anthropic package: messages, events, tools, pictures, counting."""

from __future__ import annotations

import asyncio

import anthropic
from checks import FACTS, KEY, MODEL, check, equal, main, nothing_runs, requests_are
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=FACTS["base"], api_key=KEY, max_retries=0, timeout=120)
# This client no longer knows temperatures. The model is greedy by itself.
GREEDY = {"model": MODEL, "max_tokens": 1000}
TOOLS = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in FACTS["tools"]
]


def user(text, *urls):
    pictures = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]},
        }
        for url in urls
    ]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}] if urls else text}]


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


@check
def lists_models():
    # that is OpenAI's list, in which the names are where Anthropic has them
    equal([model.id for model in client.models.list()], [MODEL])


@check
def answers():
    answer = client.messages.create(messages=user(FACTS["count"]["question"]), **GREEDY)
    equal([(block.type, block.text) for block in answer.content], [("text", FACTS["count"]["answer"])])
    equal((answer.role, answer.stop_reason, answer.model), ("assistant", "end_turn", MODEL))


@check
def streams_events_in_order():
    kinds, text, open_block = [], "", None
    for event in client.messages.create(messages=user(FACTS["count"]["question"]), stream=True, **GREEDY):
        kinds.append(event.type)
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
        elif event.type == "content_block_delta":
            equal((event.index, event.delta.type), (open_block, "text_delta"))
            text += event.delta.text
        elif event.type == "content_block_stop":
            equal(event.index, open_block)
            open_block = None
        elif event.type == "message_delta":
            equal(event.delta.stop_reason, "end_turn")
            usage = event.usage
    equal(text, FACTS["count"]["answer"])
    kinds = [kind for kind in kinds if kind not in ("ping", "content_block_delta")]
    equal(
        kinds,
        ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"],
    )
    whole = client.messages.create(messages=user(FACTS["count"]["question"]), **GREEDY)
    equal(usage.output_tokens, whole.usage.output_tokens)


@check
def helper_streams():
    with client.messages.stream(messages=user(FACTS["count"]["question"]), **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal((text, final.content[0].text), (FACTS["count"]["answer"],) * 2)
    equal(final.stop_reason, "end_turn")


@check
def reads_pictures():
    chart, several = FACTS["chart"], FACTS["several"]
    answer = client.messages.create(messages=user(chart["question"], chart["url"]), **GREEDY)
    equal(answer.content[0].text, chart["answer"])
    answer = client.messages.create(messages=user(several["question"], *several["urls"]), **GREEDY)
    equal(answer.content[0].text, several["answer"])


@check
def keeps_a_conversation():
    chart = FACTS["chart"]
    messages = user(chart["question"], chart["url"])
    first = client.messages.create(messages=messages, **GREEDY)
    messages += [{"role": "assistant", "content": first.content}, *user("What is the title?")]
    second = client.messages.create(messages=messages, **GREEDY)
    equal(second.content[0].text, chart["title"])
    assert second.usage.cache_read_input_tokens > 0, second.usage


@check
def counts_tokens():
    for fields in (
        {"messages": user(FACTS["count"]["question"])},
        {"messages": user(FACTS["weather"]["question"]), "tools": TOOLS, "system": "Be brief."},
        {"messages": user(FACTS["chart"]["question"], FACTS["chart"]["url"])},
    ):
        counted = client.messages.count_tokens(model=MODEL, **fields).input_tokens
        equal(counted, prompt_tokens(client.messages.create(**fields, **GREEDY).usage))


@check
def calls_a_tool():
    for task in (FACTS["weather"], FACTS["product"]):
        messages = user(task["question"])
        asked = client.messages.create(messages=messages, tools=TOOLS, **GREEDY)
        equal(asked.stop_reason, "tool_use")
        (call,) = asked.content
        equal((call.type, call.name, call.input), ("tool_use", task["name"], task["arguments"]))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": task["result"]}
        messages += [
            {"role": "assistant", "content": asked.content},
            {"role": "user", "content": [result]},
        ]
        final = client.messages.create(messages=messages, tools=TOOLS, **GREEDY)
        equal((final.content[0].text, final.stop_reason), (task["answer"], "end_turn"))


@check
def streams_a_tool_call():
    task = FACTS["product"]
    with client.messages.stream(messages=user(task["question"]), tools=TOOLS, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    (call,) = final.content
    equal((call.name, call.input), (task["name"], task["arguments"]))
    assert "input_json" in kinds, kinds


@check
def thinks():
    task = FACTS["sum"]
    fields = {"messages": user(task["question"]), "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with client.messages.stream(**fields, **(GREEDY | {"max_tokens": 2000})) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    thought, said = final.content
    equal((thought.type, thought.thinking, said.text), ("thinking", task["reasoning"], task["answer"]))
    assert thought.signature and {"thinking", "signature", "text"} <= kinds, (thought, kinds)
    assert final.usage.output_tokens_details.thinking_tokens > 0, final.usage
    # thoughts go back with the turn that they belong to
    messages = [*fields["messages"], {"role": "assistant", "content": final.content}, *user("Thanks!")]
    equal(client.messages.create(messages=messages, **GREEDY).content[0].text, "You are welcome.")


@check
def requires_calls():
    for choice in ({"type": "any"}, {"type": "tool", "name": "multiply"}):
        answer = client.messages.create(
            messages=user(FACTS["count"]["question"]), tools=TOOLS, tool_choice=choice, **GREEDY
        )
        equal(answer.stop_reason, "tool_use")
        assert choice["type"] == "any" or answer.content[0].name == "multiply", answer


@check
def parses_into_a_class():
    class Person(BaseModel):
        name: str
        age: int

    record = FACTS["record"]
    answer = client.messages.parse(messages=user(record["question"]), output_format=Person, **GREEDY)
    equal(answer.parsed_output, Person(**record["value"]))


@check
def runs_tools_by_itself():
    task = FACTS["product"]

    @anthropic.beta_tool
    def multiply(a: int, b: int) -> str:
        """Product of two numbers"""
        return str(a * b)

    runner = client.beta.messages.tool_runner(messages=user(task["question"]), tools=[multiply], **GREEDY)
    equal(runner.until_done().content[0].text, task["answer"])


@check
def stops():
    answer = client.messages.create(
        messages=user(FACTS["count"]["question"]), stop_sequences=[", 12"], **GREEDY
    )
    equal(
        (answer.content[0].text, answer.stop_reason, answer.stop_sequence),
        ("7, 8, 9, 10, 11", "stop_sequence", ", 12"),
    )
    cut = client.messages.create(messages=user(FACTS["count"]["question"]), **(GREEDY | {"max_tokens": 4}))
    equal((cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 4))


@check
def goes_on_from_a_beginning():
    messages = [*user(FACTS["count"]["question"]), {"role": "assistant", "content": "7, 8,"}]
    answer = client.messages.create(messages=messages, **GREEDY)
    equal("7, 8," + answer.content[0].text, FACTS["count"]["answer"])


@check
def maps_errors():
    for kind, name, fields in (
        (anthropic.NotFoundError, "not_found_error", {"model": "claude-9"}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": user(FACTS["too_long"])}),
        (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": -1}}),
    ):
        try:
            client.messages.create(**({"messages": user("Hello!")} | GREEDY | fields))
        except kind as error:
            equal((error.body["type"], error.body["error"]["type"]), ("error", name))
            assert error.request_id, error
        else:
            raise AssertionError(f"{fields} was not refused")
    try:
        client.with_options(api_key="wrong").messages.create(messages=user("Hello!"), **GREEDY)
    except anthropic.AuthenticationError as error:
        equal(error.body["error"]["type"], "authentication_error")
    else:
        raise AssertionError("the wrong key was taken")


@check
def asks_again_when_the_server_is_full():
    statuses, running = [], []

    def leave(response):
        statuses.append(response.status_code)
        if response.status_code == 503:
            while running:
                running.pop().close()
            nothing_runs("tight")

    fast = anthropic.Anthropic(base_url=FACTS["tight"], api_key=KEY, max_retries=0, timeout=120)
    for index in range(2):
        running.append(
            fast.messages.create(messages=user(FACTS["long_count"]["question"]), stream=True, **GREEDY)
        )
        requests_are(index + 1, "tight")
    patient = anthropic.Anthropic(
        base_url=FACTS["tight"],
        api_key=KEY,
        max_retries=2,
        http_client=anthropic.DefaultHttpxClient(event_hooks={"response": [leave]}),
    )
    answer = patient.messages.create(messages=user(FACTS["copy"]["question"]), **GREEDY)
    equal((answer.content[0].text, statuses), (FACTS["copy"]["answer"], [503, 200]))


@check
def leaves_a_stream():
    with client.messages.stream(messages=user(FACTS["long_count"]["question"]), **GREEDY) as stream:
        next(iter(stream.text_stream))
    nothing_runs()


@check
def hears_of_an_error_in_a_stream():
    try:
        for _ in client.messages.create(
            messages=user(FACTS["long_count"]["question"]),
            stream=True,
            extra_body={"timeout": 0.5},
            **GREEDY,
        ):
            pass
    except anthropic.APIStatusError as error:
        equal(error.body["error"]["type"], "timeout_error")
    else:
        raise AssertionError("the stream ended as if it were whole")
    nothing_runs()


@check
async def streams_asynchronously():
    async with (
        anthropic.AsyncAnthropic(base_url=FACTS["base"], api_key=KEY, max_retries=0) as connected,
        connected.messages.stream(messages=user(FACTS["count"]["question"]), **GREEDY) as stream,
    ):
        equal("".join([text async for text in stream.text_stream]), FACTS["count"]["answer"])


main(lambda function: asyncio.run(function()))
