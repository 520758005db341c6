"""Tool calls and reasoning in answers (B91, B95, B98, B100), scripted behind the real HTTP side."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from luce.engines.fake.engine import FakeEngine
from tests.faults import whole
from tests.faults.whole import ask, load
from tests.http.conftest import serving
from tests.http.stubs import StubPreparer, StubService, make_model, saying
from tests.http.test_answer_parts import both
from tests.text.answers import TOOLS, render
from tests.text.test_argument_types import SAME, VALUES
from tests.text.test_argument_types import TABLE as TYPES

pytestmark = pytest.mark.trio

TWO = f"hm\n</think>\n\nI ask.\n\n{render('f', {'a': '1', 'b': '2'})}\n{render('g', {})}"
USER: Any = [{"role": "user", "content": "Hi"}]


async def test_b95_the_sdks_accumulator_has_the_whole_answer_in_the_end() -> None:
    """Rebuilt by the openai package from the chunks, and compared with the body that is not streamed."""
    model = make_model(preparer=StubPreparer(thinking=True))
    async with serving(StubService(saying(TWO)), model) as server, server.openai() as client:
        body = await client.chat.completions.create(model="stub", messages=USER, tools=TOOLS)
        state = ChatCompletionStreamState()
        stream = await client.chat.completions.create(model="stub", messages=USER, tools=TOOLS, stream=True)
        async for chunk in stream:
            state.handle_chunk(chunk)
    rebuilt = state.current_completion_snapshot.choices[0]
    assert rebuilt.finish_reason == body.choices[0].finish_reason == "tool_calls"
    assert rebuilt.message.content == body.choices[0].message.content == "I ask."
    calls, expected = rebuilt.message.tool_calls or (), body.choices[0].message.tool_calls or ()
    assert [(c.function.name, c.function.arguments) for c in calls] == [  # type: ignore[union-attr]
        (c.function.name, c.function.arguments)  # type: ignore[union-attr]
        for c in expected
    ]
    assert [json.loads(c.function.arguments) for c in calls] == [{"a": "1", "b": 2}, {}]  # type: ignore[union-attr]
    assert len({c.id for c in calls}) == 2, "the trap: two calls, told apart"


async def test_b98_types_come_from_the_schema() -> None:
    schemas = {f"p{n}": schema for n, (schema, _) in enumerate(TYPES) if isinstance(schema, dict)}
    changed = {f"p{n}": changes for n, (_, changes) in enumerate(TYPES)}
    defs = {"flag": {"type": "boolean"}}
    parameters = {"type": "object", "properties": schemas, "$defs": defs}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    read = [json.loads(value) for value in VALUES if value[0] in '15tn{"']
    assert len(read) == 5, "the trap: these look like something else than text"
    for value in VALUES:
        said = await both(render("f", dict.fromkeys(schemas, value)), thinking=False, tools=tools)
        ((_, arguments),) = said.calls
        expected = {name: (SAME | changed[name])[value] for name in schemas}
        assert arguments == json.dumps(expected, ensure_ascii=False), value


@pytest.mark.parametrize("start", ["<think>\n", ""])
@pytest.mark.parametrize("end", ["", "\n</think>", "\n</think>\n\n"])
async def test_b100_a_call_in_an_open_think_block(start: str, end: str) -> None:
    call = render("f", {"a": "1"})
    said = await both(f"{start}hm\n{call}{end}", thinking=not start, tools=TOOLS)
    assert (said.reasoning, said.content) == ("hm", None)
    assert (said.calls, said.finish) == ([("f", '{"a": "1"}')], "tool_calls")


QUESTION = "Question: what?\n\nQu"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
async def test_b91_stop_strings_apply_to_the_answer(stream: bool, depth: int) -> None:
    """Scripted tokens behind the real detokenizer, template, actors and HTTP: a byte or a tag for each token."""

    async def said(text: str, **fields: Any) -> tuple[str, str, str]:
        opened = load("fake", whole.opened())
        tags = opened.tokenizer.special_ids
        tokens = [
            tags[part] if part in tags else opened.tokenizer.encode_text(part)[0]
            for part in re.findall(r"</?think>|.", text, re.DOTALL)
        ]
        engine = FakeEngine(
            opened.engine.capabilities,
            script=lambda spec, index: tokens[index] if index < len(tokens) else None,
        )
        asked = ask("Say", max_tokens=len(tokens), reasoning_format="auto", **fields)
        async with whole.live(model=attrs.evolve(opened, engine=engine), depth=depth) as server:
            if not stream:
                choice = (await server.post(asked)).json()["choices"][0]
                message = choice["message"]
                return message.get("reasoning_content", ""), message["content"], choice["finish_reason"]
            chunks = [json.loads(event) for event in (await server.events(asked))[:-1]]
        deltas = [choice for chunk in chunks for choice in chunk["choices"]]
        return (
            "".join(one["delta"].get("reasoning_content", "") for one in deltas),
            "".join(one["delta"].get("content", "") for one in deltas),
            deltas[-1]["finish_reason"],
        )

    text = f"{QUESTION}</think>\n\nThe answer. Question: more"
    thought = QUESTION
    assert await said(text) == (thought, "The answer. Question: more", "length"), "the trap: it is in both"
    assert await said(text, stop=["Question:"]) == (thought, "The answer. ", "stop")
    assert await said(text, stop=["what", "Qu\n"]) == (thought, "The answer. Question: more", "length")
    assert await said(text, stop=["think", "<", "Qu</think>"]) == (
        thought,
        "The answer. Question: more",
        "length",
    )
    again = f"{QUESTION}</think>\n<think>{QUESTION}</think>\n\nThe answer. Question: more"
    assert await said(again, stop=["Question:"]) == (f"{thought}\n{thought}", "The answer. ", "stop")
    assert await said(text, stop=["Question:"], chat_template_kwargs={"enable_thinking": False}) == (
        "",
        "",
        "stop",
    )
