"""langchain-openai: ChatOpenAI with base_url."""

from __future__ import annotations

import asyncio

import openai
from checks import BASE, FACTS, KEY, MODEL, check, equal, main
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


def model(**fields):
    defaults = {"model": MODEL, "base_url": BASE, "api_key": KEY, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(**(defaults | fields))


@tool
def get_weather(city: str) -> str:
    """Weather in a city"""
    equal(city, "Oslo")
    return FACTS["weather"]["result"]


@tool
def multiply(a: int, b: int) -> str:
    """Product of two numbers"""
    return str(a * b)


@check
def answers():
    answer = model().invoke(FACTS["count"]["question"])
    equal(answer.content, FACTS["count"]["answer"])
    usage = answer.usage_metadata
    equal(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
    equal(answer.response_metadata["finish_reason"], "stop")


@check
def streams_with_usage():
    chunks = list(model(stream_usage=True).stream(FACTS["count"]["question"]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    equal(whole.content, FACTS["count"]["answer"])
    equal(
        whole.usage_metadata["output_tokens"],
        model().invoke(FACTS["count"]["question"]).usage_metadata["output_tokens"],
    )
    assert len(chunks) > 5, chunks


@check
async def streams_asynchronously():
    text = "".join([chunk.content async for chunk in model().astream(FACTS["count"]["question"])])
    equal(text, FACTS["count"]["answer"])


@check
def answers_a_batch():
    tasks = [FACTS["count"], FACTS["copy"], FACTS["count"]]
    answers = model().batch([task["question"] for task in tasks])
    equal([answer.content for answer in answers], [task["answer"] for task in tasks])


@check
def reads_a_picture():
    chart = FACTS["chart"]
    _, _, data = chart["url"].partition(",")
    for part in (
        {"type": "image_url", "image_url": {"url": chart["url"]}},
        {"type": "image", "base64": data, "mime_type": "image/png"},
    ):
        message = HumanMessage([part, {"type": "text", "text": chart["question"]}])
        equal(model().invoke([message]).content, chart["answer"])


@check
def runs_tools():
    tools = {"get_weather": get_weather, "multiply": multiply}
    agent = model().bind_tools(list(tools.values()))
    for task in (FACTS["weather"], FACTS["product"]):
        messages = [HumanMessage(task["question"])]
        asked = agent.invoke(messages)
        (call,) = asked.tool_calls
        equal((call["name"], call["args"]), (task["name"], task["arguments"]))
        result = tools[call["name"]].invoke(call)
        assert isinstance(result, ToolMessage), result
        equal(agent.invoke([*messages, asked, result]).content, task["answer"])


@check
def streams_a_tool_call():
    task = FACTS["product"]
    chunks = list(model().bind_tools([get_weather, multiply]).stream(task["question"]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    equal([(call["name"], call["args"]) for call in whole.tool_calls], [(task["name"], task["arguments"])])


@check
def speaks_the_responses_api():
    """What ChatOpenAI falls back to by itself for some settings."""
    newer = model(use_responses_api=True)
    equal(newer.invoke(FACTS["count"]["question"]).text, FACTS["count"]["answer"])
    equal("".join(chunk.text for chunk in newer.stream(FACTS["count"]["question"])), FACTS["count"]["answer"])
    agent = newer.bind_tools([multiply])
    asked = agent.invoke(FACTS["product"]["question"])
    messages = [HumanMessage(FACTS["product"]["question"]), asked, multiply.invoke(asked.tool_calls[0])]
    equal(agent.invoke(messages).text, FACTS["product"]["answer"])


@check
def maps_errors():
    for kind, fields in (
        (openai.NotFoundError, {"model": "gpt-9"}),
        (openai.AuthenticationError, {"api_key": "wrong"}),
    ):
        try:
            model(**fields).invoke("Hello!")
        except kind:
            pass
        else:
            raise AssertionError(f"{fields} was not refused")
    try:
        model().invoke(FACTS["too_long"])
    except ContextOverflowError as error:
        assert isinstance(error, openai.BadRequestError), error
    else:
        raise AssertionError("it was not refused")


main(lambda function: asyncio.run(function()))
