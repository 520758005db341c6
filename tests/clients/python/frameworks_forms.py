"""Answers of a form through langchain-openai and litellm."""

from __future__ import annotations

import json

import litellm
from checks import BASE, FACTS, KEY, MODEL, check, equal, main, user
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

RECORD = FACTS["record"]


class Person(BaseModel):
    """A person"""

    name: str
    age: int


def model():
    return ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, temperature=0, max_retries=0, max_tokens=200)


@check
def langchain_holds_answers_to_a_class():
    for method in ("json_schema", "json_mode"):
        structured = model().with_structured_output(Person, method=method)
        equal(structured.invoke(RECORD["question"]), Person(**RECORD["value"]))


@check
def langchain_streams_a_class():
    *_, last = model().with_structured_output(Person).stream(RECORD["question"])
    equal(last, Person(**RECORD["value"]))


@check
def langchain_holds_calls_to_a_class():
    """By a tool that has to be called. The model was taught other tools: only the form is sure."""
    structured = model().with_structured_output(Person, method="function_calling")
    assert isinstance(structured.invoke(RECORD["question"]), Person)


@check
def langchain_requires_calls():
    tools = FACTS["tools"]
    for choice in ("any", "required", "multiply"):
        asked = model().bind_tools(tools, tool_choice=choice).invoke(FACTS["count"]["question"])
        assert asked.tool_calls, asked
        assert choice != "multiply" or asked.tool_calls[0]["name"] == "multiply", asked


@check
def litellm_holds_answers_to_a_class():
    answer = litellm.completion(
        model=f"openai/{MODEL}",
        api_base=BASE,
        api_key=KEY,
        temperature=0,
        max_tokens=200,
        messages=user(RECORD["question"]),
        response_format=Person,
    )
    equal(json.loads(answer.choices[0].message.content), RECORD["value"])


main()
