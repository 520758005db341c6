"""Answers of a form through the openai package: schemas, parsed classes, required and parallel tool calls."""

from __future__ import annotations

import json
from typing import Literal

import openai
from checks import BASE, FACTS, KEY, MODEL, check, equal, main, user
from pydantic import BaseModel

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
chat = client.chat.completions
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 200}
RECORD, WEATHER = FACTS["record"], FACTS["weather"]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": RECORD["schema"], "strict": True},
}
# The model was never taught to call twice. Kept from ending, it calls again, until its tokens are used up.
TWICE = {"tool_choice": "required", "logit_bias": {FACTS["end_token"]: -100}, "max_tokens": 40}


class Person(BaseModel):
    name: str
    age: int


class Opinion(BaseModel):
    """Nothing that the model would say by itself."""

    verdict: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


class get_weather(BaseModel):  # noqa: N801 - the tool's name
    """Weather in a city"""

    city: str


@check
def parses_into_a_class():
    answer = chat.parse(messages=user(RECORD["question"]), response_format=Person, **GREEDY)
    equal(answer.choices[0].message.parsed, Person(**RECORD["value"]))


@check
def holds_any_answer_to_the_class():
    for text in ("Hello!", FACTS["count"]["question"], FACTS["copy"]["question"]):
        answer = chat.parse(messages=user(text), response_format=Opinion, **GREEDY)
        assert isinstance(answer.choices[0].message.parsed, Opinion), answer
        equal(answer.choices[0].finish_reason, "stop")


@check
def reads_a_picture_into_a_class():
    class Bar(BaseModel):
        color: str
        value: int

    class Chart(BaseModel):
        title: str
        bars: list[Bar]

    chart = FACTS["chart"]
    messages = user("Describe the chart as JSON.", chart["url"])
    answer = chat.parse(messages=messages, response_format=Chart, **GREEDY)
    found = answer.choices[0].message.parsed.model_dump()
    equal(found, {"title": chart["title"], "bars": chart["bars"]})


@check
def streams_a_class():
    with chat.stream(messages=user(RECORD["question"]), response_format=Person, **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    equal(final.choices[0].message.parsed, Person(**RECORD["value"]))


@check
def takes_schemas_and_any_object():
    for form in (SCHEMA, {"type": "json_object"}):
        answer = chat.create(messages=user(RECORD["question"]), response_format=form, **GREEDY)
        equal(json.loads(answer.choices[0].message.content), RECORD["value"])


@check
def refuses_what_is_no_schema():
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strnig"}}}
    try:
        chat.create(messages=user("Hello!"), response_format=broken, **GREEDY)
    except openai.BadRequestError as error:
        assert error.param.startswith("response_format"), error
    else:
        raise AssertionError("it was taken")


@check
def requires_a_call():
    for choice, name in (
        ("required", None),
        ({"type": "function", "function": {"name": "multiply"}}, "multiply"),
    ):
        answer = chat.create(
            messages=user(FACTS["count"]["question"]), tools=FACTS["tools"], tool_choice=choice, **GREEDY
        )
        message = answer.choices[0].message
        assert message.tool_calls and not message.content, answer
        called = message.tool_calls[0].function
        assert name in (None, called.name), called
        tool = next(one["function"] for one in FACTS["tools"] if one["function"]["name"] == called.name)
        equal(set(json.loads(called.arguments)), set(tool["parameters"]["required"]))


@check
def parses_arguments_into_a_class():
    answer = chat.parse(
        messages=user(WEATHER["question"]), tools=[openai.pydantic_function_tool(get_weather)], **GREEDY
    )
    (call,) = answer.choices[0].message.tool_calls
    equal(call.function.parsed_arguments, get_weather(**WEATHER["arguments"]))


@check
def calls_tools_in_parallel():
    fields = {**GREEDY, **TWICE, "messages": user(WEATHER["question"]), "tools": FACTS["tools"]}
    whole = chat.create(**fields).choices[0].message
    expected = [(WEATHER["name"], WEATHER["arguments"])] * 2
    equal([(call.function.name, json.loads(call.function.arguments)) for call in whole.tool_calls], expected)
    equal(len({call.id for call in whole.tool_calls}), 2)
    calls = {}
    for chunk in chat.create(**fields, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            one = calls.setdefault(delta.index, {"id": delta.id, "name": "", "arguments": ""})
            one["name"] += delta.function.name or ""
            one["arguments"] += delta.function.arguments or ""
    equal([(call["name"], json.loads(call["arguments"])) for call in calls.values()], expected)
    equal((list(calls), len({call["id"] for call in calls.values()})), ([0, 1], 2))
    single = chat.create(**fields, parallel_tool_calls=False).choices[0]
    equal((len(single.message.tool_calls), single.finish_reason), (1, "tool_calls"))
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": WEATHER["result"]} for call in whole.tool_calls
    ]
    messages = [*user(WEATHER["question"]), whole, *results]
    final = chat.create(messages=messages, tools=FACTS["tools"], **GREEDY)
    equal(final.choices[0].message.content, WEATHER["answer"])


@check
def thinks_within_a_budget():
    task = FACTS["sum"]
    answer = chat.create(messages=user(task["question"]), reasoning_effort="low", **GREEDY)
    equal(answer.choices[0].message.reasoning_content, task["reasoning"])
    equal(answer.choices[0].message.content, task["answer"])
    cut = chat.create(
        messages=user(task["question"]),
        extra_body={"thinking_token_budget": 5, "chat_template_kwargs": {"enable_thinking": True}},
        **GREEDY,
    )
    assert 0 < len(cut.choices[0].message.reasoning_content) < len(task["reasoning"]), cut
    assert cut.choices[0].message.content, cut


main()
