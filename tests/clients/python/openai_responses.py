"""The openai package against the Responses API, synchronous and on trio."""

from __future__ import annotations

import json

import openai
import trio
from checks import BASE, FACTS, KEY, MODEL, check, equal, main, nothing_runs
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
GREEDY = {"model": MODEL, "temperature": 0, "store": False}
TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in FACTS["tools"]]


def user(text, *urls):
    pictures = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    return [{"role": "user", "content": [*pictures, {"type": "input_text", "text": text}]}]


@check
def answers():
    answer = client.responses.create(input=FACTS["count"]["question"], **GREEDY)
    equal((answer.output_text, answer.status), (FACTS["count"]["answer"], "completed"))
    usage = answer.usage
    equal(usage.total_tokens, usage.input_tokens + usage.output_tokens)


@check
def streams_every_event():
    events = list(client.responses.create(input=FACTS["count"]["question"], stream=True, **GREEDY))
    equal([event.sequence_number for event in events], list(range(len(events))))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    equal(text, FACTS["count"]["answer"])
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    equal(
        [kind.removeprefix("response.") for kind in kinds],
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ],
    )
    equal(events[-1].response.output_text, text)


@check
def helper_streams():
    with client.responses.stream(input=FACTS["count"]["question"], **GREEDY) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_response().output_text, FACTS["count"]["answer"])


@check
def reads_a_picture_and_goes_on():
    chart = FACTS["chart"]
    asked = user(chart["question"], chart["url"])
    first = client.responses.create(input=asked, **GREEDY)
    equal(first.output_text, chart["answer"])
    second = client.responses.create(input=[*asked, *first.output, *user("What is the title?")], **GREEDY)
    equal(second.output_text, chart["title"])
    assert second.usage.input_tokens_details.cached_tokens > 0, second.usage


@check
def calls_a_tool():
    for task in (FACTS["weather"], FACTS["product"]):
        asked = user(task["question"])
        first = client.responses.create(input=asked, tools=TOOLS, **GREEDY)
        (call,) = first.output
        equal((call.type, call.name), ("function_call", task["name"]))
        equal(json.loads(call.arguments), task["arguments"])
        result = {"type": "function_call_output", "call_id": call.call_id, "output": task["result"]}
        final = client.responses.create(input=[*asked, *first.output, result], tools=TOOLS, **GREEDY)
        equal(final.output_text, task["answer"])


@check
def streams_a_tool_call():
    task = FACTS["product"]
    with client.responses.stream(input=user(task["question"]), tools=TOOLS, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_response().output
    equal((call.name, json.loads(call.arguments)), (task["name"], task["arguments"]))
    assert "response.function_call_arguments.done" in kinds, kinds


@check
def reasons():
    task = FACTS["sum"]
    answer = client.responses.create(input=task["question"], reasoning={"effort": "medium"}, **GREEDY)
    thoughts, said = answer.output
    equal((thoughts.type, thoughts.content[0].text), ("reasoning", task["reasoning"]))
    equal(said.content[0].text, task["answer"])
    assert answer.usage.output_tokens_details.reasoning_tokens > 0, answer.usage


@check
def parses_into_a_class():
    class Person(BaseModel):
        name: str
        age: int

    record = FACTS["record"]
    answer = client.responses.parse(input=record["question"], text_format=Person, **GREEDY)
    equal(answer.output_parsed, Person(**record["value"]))


@check
def requires_calls():
    for choice in ("required", {"type": "function", "name": "multiply"}):
        answer = client.responses.create(
            input=FACTS["count"]["question"], tools=TOOLS, tool_choice=choice, **GREEDY
        )
        assert {item.type for item in answer.output} == {"function_call"}, answer
        assert choice == "required" or answer.output[0].name == "multiply", answer


@check
def parses_arguments_into_a_class():
    class get_weather(BaseModel):  # noqa: N801 - the tool's name
        """Weather in a city"""

        city: str

    task = FACTS["weather"]
    tools = [openai.pydantic_function_tool(get_weather)["function"] | {"type": "function"}]
    answer = client.responses.parse(input=task["question"], tools=tools, **GREEDY)
    (call,) = answer.output
    equal((call.name, json.loads(call.arguments)), (task["name"], task["arguments"]))


@check
def is_cut_off():
    cut = client.responses.create(input=FACTS["count"]["question"], max_output_tokens=4, **GREEDY)
    equal((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))


@check
def maps_errors():
    for kind, code, fields in (
        (openai.NotFoundError, "model_not_found", {"model": "gpt-9"}),
        (openai.BadRequestError, "context_length_exceeded", {"input": FACTS["too_long"]}),
        (openai.BadRequestError, None, {"previous_response_id": "resp_1"}),
    ):
        try:
            client.responses.create(**({"input": "Hello!"} | GREEDY | fields))
        except kind as error:
            assert code in (None, error.code), error
            assert error.param, error
        else:
            raise AssertionError(f"{fields} was not refused")


@check
def hears_of_an_error_in_a_stream():
    try:
        for _ in client.responses.create(
            input=FACTS["long_count"]["question"], stream=True, extra_body={"timeout": 0.5}, **GREEDY
        ):
            pass
    except openai.APIError as error:
        equal(error.code, "timeout")
    else:
        raise AssertionError("the stream ended as if it were whole")
    nothing_runs()


@check
async def is_cancelled_in_mid_stream():
    async with openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120) as connected:
        with trio.CancelScope() as scope:
            async for event in await connected.responses.create(
                input=FACTS["long_count"]["question"], stream=True, **GREEDY
            ):
                if event.type == "response.output_text.delta":
                    scope.cancel()
        assert scope.cancelled_caught
        await trio.to_thread.run_sync(nothing_runs)


main(trio.run)
