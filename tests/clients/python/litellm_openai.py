"""litellm, which many programs call instead of an SDK: model names as openai/NAME."""

from __future__ import annotations

import asyncio
import json

import litellm
from checks import BASE, FACTS, KEY, MODEL, check, equal, main, nothing_runs, user

litellm.suppress_debug_info = True
SERVER = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "num_retries": 0, "max_retries": 0}
GREEDY = SERVER | {"temperature": 0, "timeout": 120}


@check
def answers():
    answer = litellm.completion(messages=user(FACTS["count"]["question"]), **GREEDY)
    equal(answer.choices[0].message.content, FACTS["count"]["answer"])
    equal(answer.choices[0].finish_reason, "stop")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


@check
def streams_with_usage():
    chunks = list(
        litellm.completion(
            messages=user(FACTS["count"]["question"]),
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    built = litellm.stream_chunk_builder(chunks)
    equal(built.choices[0].message.content, FACTS["count"]["answer"])
    equal(built.choices[0].finish_reason, "stop")
    whole = litellm.completion(messages=user(FACTS["count"]["question"]), **GREEDY)
    equal(built.usage.completion_tokens, whole.usage.completion_tokens)


@check
def reads_a_picture():
    chart = FACTS["chart"]
    answer = litellm.completion(messages=user(chart["question"], chart["url"]), **GREEDY)
    equal(answer.choices[0].message.content, chart["answer"])


@check
def calls_a_tool():
    task = FACTS["weather"]
    messages = user(task["question"])
    for stream in (False, True):
        answer = litellm.completion(messages=messages, tools=FACTS["tools"], stream=stream, **GREEDY)
        choice = (litellm.stream_chunk_builder(list(answer)) if stream else answer).choices[0]
        (call,) = choice.message.tool_calls
        equal((call.function.name, json.loads(call.function.arguments)), (task["name"], task["arguments"]))
        equal(choice.finish_reason, "tool_calls")
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": task["result"]}]
    final = litellm.completion(messages=messages, tools=FACTS["tools"], **GREEDY)
    equal(final.choices[0].message.content, task["answer"])


@check
def tells_reasoning_apart():
    task = FACTS["sum"]
    answer = litellm.completion(
        messages=user(task["question"]),
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        **GREEDY,
    )
    message = answer.choices[0].message
    equal((message.reasoning_content, message.content), (task["reasoning"], task["answer"]))


@check
def gives_log_probabilities():
    answer = litellm.completion(
        messages=user(FACTS["copy"]["question"]), logprobs=True, top_logprobs=2, **GREEDY
    )
    rows = answer.choices[0].logprobs.content
    spelled = b"".join(bytes(row.bytes) for row in rows).decode()
    equal(spelled.removesuffix("<|im_end|>"), FACTS["copy"]["answer"])


@check
def speaks_the_messages_api():
    """Names as anthropic/NAME go to the other address, and come back as OpenAI's answers."""
    fields = {"model": f"anthropic/{MODEL}", "api_base": FACTS["base"], "api_key": KEY, "max_tokens": 400}
    chart, task = FACTS["chart"], FACTS["weather"]
    answer = litellm.completion(messages=user(chart["question"], chart["url"]), **fields)
    equal(answer.choices[0].message.content, chart["answer"])
    asked = litellm.completion(messages=user(task["question"]), tools=FACTS["tools"], **fields)
    (call,) = asked.choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), (task["name"], task["arguments"]))
    chunks = list(litellm.completion(messages=user(FACTS["count"]["question"]), stream=True, **fields))
    equal(litellm.stream_chunk_builder(chunks).choices[0].message.content, FACTS["count"]["answer"])


@check
def maps_errors():
    for kind, fields in (
        (litellm.NotFoundError, {"model": "openai/gpt-9"}),
        (litellm.ContextWindowExceededError, {"messages": user(FACTS["too_long"])}),
        (litellm.BadRequestError, {"temperature": -1}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
    ):
        try:
            litellm.completion(**({"messages": user("Hello!")} | GREEDY | fields))
        except kind as error:
            assert kind is not litellm.BadRequestError or "temperature" in str(error), error
        else:
            raise AssertionError(f"{fields} was not refused")


@check
def gives_up_waiting():
    try:
        litellm.completion(
            messages=user(FACTS["long_count"]["question"]),
            extra_body={"ignore_eos": True},
            **(GREEDY | {"timeout": 0.3}),
        )
    except litellm.Timeout:
        nothing_runs()
    else:
        raise AssertionError("4,000 tokens came within 0.3 s")


@check
async def streams_asynchronously():
    answer = await litellm.acompletion(messages=user(FACTS["count"]["question"]), stream=True, **GREEDY)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
    equal(text, FACTS["count"]["answer"])


main(lambda function: asyncio.run(function()))
