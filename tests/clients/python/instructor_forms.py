"""instructor: classes out of answers, by its several ways, around another release of the openai package."""

from __future__ import annotations

import instructor
import openai
from checks import BASE, FACTS, KEY, MODEL, check, equal, main, user
from instructor import Mode
from pydantic import BaseModel

RECORD = FACTS["record"]


class Person(BaseModel):
    """A person"""

    name: str
    age: int


def extract(mode, kind=Person, **fields):
    client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL,
        temperature=0,
        max_tokens=200,
        max_retries=1,
        response_model=kind,
        messages=user(RECORD["question"]),
        **fields,
    )


@check
def by_schema():
    equal(extract(Mode.JSON_SCHEMA).model_dump(), RECORD["value"])


@check
def by_a_required_call():
    # the model was taught other tools: only the form is sure
    assert isinstance(extract(Mode.TOOLS), Person)
    assert isinstance(extract(Mode.TOOLS_STRICT), Person)


@check
def by_a_stream_of_partial_answers():
    *_, last = extract(Mode.JSON_SCHEMA, instructor.Partial[Person], stream=True)
    equal(last.model_dump(), RECORD["value"])


main()
