"""The openai package, synchronous, against chat completions."""

from __future__ import annotations

import json
import math

import openai
from checks import BASE, FACTS, KEY, MODEL, TIGHT, check, equal, main, nothing_runs, requests_are, user
from openai.lib.streaming.chat import ChatCompletionStreamState

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
chat = client.chat.completions
GREEDY = {"model": MODEL, "temperature": 0}


@check
def lists_models():
    equal([model.id for model in client.models.list()], [MODEL])
    equal(client.models.retrieve(MODEL).id, MODEL)


@check
def answers():
    answer = chat.create(messages=user(FACTS["count"]["question"]), **GREEDY)
    equal(answer.choices[0].message.content, FACTS["count"]["answer"])
    equal(answer.choices[0].finish_reason, "stop")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
    equal((answer.object, answer.model), ("chat.completion", MODEL))


@check
def streams_with_usage():
    whole = chat.create(messages=user(FACTS["count"]["question"]), **GREEDY)
    chunks = list(
        chat.create(
            messages=user(FACTS["count"]["question"]),
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
        )
    )
    *body, last = chunks
    equal("".join(chunk.choices[0].delta.content or "" for chunk in body), FACTS["count"]["answer"])
    equal([chunk.choices[0].finish_reason for chunk in body if chunk.choices[0].finish_reason], ["stop"])
    equal(last.choices, [])
    equal(last.usage.completion_tokens, whole.usage.completion_tokens)
    equal([chunk.usage for chunk in body], [None] * len(body))
    equal(len({chunk.id for chunk in chunks}), 1)


@check
def streams_without_usage():
    chunks = list(chat.create(messages=user(FACTS["copy"]["question"]), stream=True, **GREEDY))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), chunks
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), FACTS["copy"]["answer"])


@check
def helper_streams():
    with chat.stream(messages=user(FACTS["count"]["question"]), **GREEDY) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    equal(text, FACTS["count"]["answer"])
    equal(final.choices[0].message.content, text)


@check
def reads_a_picture():
    chart = FACTS["chart"]
    answer = chat.create(messages=user(chart["question"], chart["url"]), **GREEDY)
    equal(answer.choices[0].message.content, chart["answer"])


@check
def reads_several_pictures():
    several = FACTS["several"]
    answer = chat.create(messages=user(several["question"], *several["urls"]), **GREEDY)
    equal(answer.choices[0].message.content, several["answer"])


@check
def keeps_a_conversation():
    chart = FACTS["chart"]
    messages = user(chart["question"], chart["url"])
    first = chat.create(messages=messages, **GREEDY).choices[0].message
    messages += [first, {"role": "user", "content": "What is the title?"}]
    second = chat.create(messages=messages, **GREEDY)
    equal(second.choices[0].message.content, chart["title"])
    assert second.usage.prompt_tokens_details.cached_tokens > 0, second.usage


@check
def calls_a_tool():
    for task in (FACTS["weather"], FACTS["product"]):
        messages = user(task["question"])
        choice = chat.create(messages=messages, tools=FACTS["tools"], **GREEDY).choices[0]
        equal(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        equal((call.type, call.function.name), ("function", task["name"]))
        equal(json.loads(call.function.arguments), task["arguments"])
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": task["result"]}]
        final = chat.create(messages=messages, tools=FACTS["tools"], **GREEDY).choices[0]
        equal((final.message.content, final.finish_reason), (task["answer"], "stop"))


@check
def streams_a_tool_call():
    task = FACTS["product"]
    state = ChatCompletionStreamState()
    for chunk in chat.create(messages=user(task["question"]), tools=FACTS["tools"], stream=True, **GREEDY):
        state.handle_chunk(chunk)
    choice = state.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), (task["name"], task["arguments"]))
    assert call.id, call
    equal(choice.finish_reason, "tool_calls")


@check
def takes_results_of_parallel_calls():
    calls = [
        {
            "id": f"call_{task['name']}",
            "type": "function",
            "function": {"name": task["name"], "arguments": json.dumps(task["arguments"])},
        }
        for task in (FACTS["weather"], FACTS["product"])
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call_{task['name']}", "content": task["result"]}
        for task in (FACTS["weather"], FACTS["product"])
    ]
    asked = user(FACTS["weather"]["question"])
    messages = [*asked, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    answer = chat.create(messages=messages, tools=FACTS["tools"], parallel_tool_calls=True, **GREEDY)
    equal(answer.choices[0].finish_reason, "stop")
    # the model was never taught two calls at once, and answers one of them
    assert answer.choices[0].message.content in [FACTS[task]["answer"] for task in ("weather", "product")], (
        answer
    )


@check
def keeps_tools_out():
    messages = user(FACTS["weather"]["question"])
    answer = chat.create(messages=messages, tools=FACTS["tools"], tool_choice="none", **GREEDY)
    assert not answer.choices[0].message.tool_calls, answer
    assert answer.usage.prompt_tokens == chat.create(messages=messages, **GREEDY).usage.prompt_tokens


@check
def tells_reasoning_apart():
    task = FACTS["sum"]
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    answer = chat.create(messages=user(task["question"]), extra_body=thinking, **GREEDY)
    message = answer.choices[0].message
    equal((message.reasoning_content, message.content), (task["reasoning"], task["answer"]))
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0, answer.usage
    parts = {"reasoning_content": "", "content": ""}
    for chunk in chat.create(messages=user(task["question"]), extra_body=thinking, stream=True, **GREEDY):
        delta = chunk.choices[0].delta
        for name in parts:
            parts[name] += getattr(delta, name, None) or ""
    equal(parts, {"reasoning_content": task["reasoning"], "content": task["answer"]})


@check
def gives_log_probabilities():
    answer = chat.create(messages=user(FACTS["copy"]["question"]), logprobs=True, top_logprobs=3, **GREEDY)
    rows = answer.choices[0].logprobs.content
    spelled = b"".join(bytes(row.bytes) for row in rows).decode()
    equal(spelled.removesuffix("<|im_end|>"), FACTS["copy"]["answer"])
    for row in rows:
        equal(len(row.top_logprobs), 3)
        equal((row.top_logprobs[0].token, row.top_logprobs[0].logprob), (row.token, row.logprob))
        assert row.logprob <= 0 and sum(math.exp(top.logprob) for top in row.top_logprobs) <= 1.001, row


@check
def seeds_reproduce():
    def sample(seed):
        answer = chat.create(
            model=MODEL, messages=user("Hello!"), temperature=4, seed=seed, max_tokens=24, logprobs=True
        )
        return [(row.token, row.logprob) for row in answer.choices[0].logprobs.content]

    first = sample(11)
    equal(sample(11), first)
    assert sample(12) != first


@check
def gives_several_choices():
    fields = {
        "model": MODEL,
        "messages": user("Hello!"),
        "n": 3,
        "temperature": 9,
        "seed": 5,
        "max_tokens": 16,
    }
    whole = chat.create(**fields)
    texts = [choice.message.content for choice in whole.choices]
    equal([choice.index for choice in whole.choices], [0, 1, 2])
    equal(len(set(texts)), 3)
    state = ChatCompletionStreamState()
    for chunk in chat.create(**fields, stream=True):
        state.handle_chunk(chunk)
    choices = sorted(state.get_final_completion().choices, key=lambda choice: choice.index)
    equal([choice.message.content for choice in choices], texts)
    greedy = chat.create(messages=user(FACTS["count"]["question"]), n=2, **GREEDY)
    equal([choice.message.content for choice in greedy.choices], [FACTS["count"]["answer"]] * 2)
    equal(greedy.usage.prompt_tokens, 23)


@check
def completes_text():
    """The older API: the prompt is what chat completions would have made of the messages."""
    task = FACTS["count"]
    prompt = f"<|im_start|>user\n{task['question']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    fields = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 200}
    whole = client.completions.create(**fields)
    equal((whole.choices[0].text, whole.choices[0].finish_reason), (task["answer"], "stop"))
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    equal("".join(choice.text for chunk in chunks for choice in chunk.choices), task["answer"])
    equal(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)


@check
def stops():
    answer = chat.create(messages=user(FACTS["count"]["question"]), stop=[", 12", "never"], **GREEDY)
    equal((answer.choices[0].message.content, answer.choices[0].finish_reason), ("7, 8, 9, 10, 11", "stop"))
    cut = chat.create(messages=user(FACTS["count"]["question"]), max_completion_tokens=4, **GREEDY)
    equal((cut.choices[0].finish_reason, cut.usage.completion_tokens), ("length", 4))


def refused(kind, **fields):
    try:
        chat.create(**({"messages": user("Hello!")} | GREEDY | fields))
    except openai.APIStatusError as error:
        equal(type(error), kind)
        assert error.body and error.message, error
        assert error.request_id, error
        return error
    raise AssertionError("it was not refused")


@check
def maps_errors():
    error = refused(openai.NotFoundError, model="gpt-9")
    equal((error.code, error.param), ("model_not_found", "model"))
    error = refused(openai.BadRequestError, messages=user(FACTS["too_long"]))
    equal(error.code, "context_length_exceeded")
    error = refused(openai.BadRequestError, temperature=-1)
    equal(error.param, "temperature")
    error = refused(openai.BadRequestError, messages=user("Look", "data:image/png;base64,AAAA"))
    equal(error.param, "messages[0].content[0].image_url.url")
    error = refused(openai.BadRequestError, extra_body={"temprature": 1})
    equal((error.code, error.param), ("unknown_field", "temprature"))
    stranger = client.with_options(api_key="wrong")
    try:
        stranger.models.list()
    except openai.AuthenticationError as error:
        equal(error.code, "invalid_api_key")
    else:
        raise AssertionError("the wrong key was taken")


@check
def is_refused_in_a_stream_before_it_begins():
    error = refused(openai.BadRequestError, stream=True, messages=user(FACTS["too_long"]))
    equal(error.code, "context_length_exceeded")


@check
def asks_again_when_the_server_is_full():
    """One runs, one waits, the third is refused, and comes in with the retry after the first two left."""
    statuses, running = [], []

    def leave(response):
        statuses.append(response.status_code)
        if response.status_code == 503:
            assert int(response.headers["retry-after"]) >= 1
            while running:
                running.pop().close()
            nothing_runs("tight")

    fast = openai.OpenAI(base_url=TIGHT, api_key=KEY, max_retries=0, timeout=120)
    for index in range(2):
        running.append(
            fast.chat.completions.create(
                messages=user(FACTS["long_count"]["question"]),
                stream=True,
                extra_body={"ignore_eos": True},
                **GREEDY,
            )
        )
        requests_are(index + 1, "tight")
    patient = openai.OpenAI(
        base_url=TIGHT,
        api_key=KEY,
        max_retries=2,
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [leave]}),
    )
    answer = patient.chat.completions.create(messages=user(FACTS["copy"]["question"]), **GREEDY)
    equal(answer.choices[0].message.content, FACTS["copy"]["answer"])
    equal(statuses, [503, 200])


@check
def waits_in_the_queue():
    """Comment lines come while a stream waits, and nothing of the answer is lost."""
    fast = openai.OpenAI(base_url=TIGHT, api_key=KEY, max_retries=0, timeout=120).chat.completions
    first = fast.create(messages=user(FACTS["long_count"]["question"]), stream=True, **GREEDY)
    second = fast.create(messages=user(FACTS["count"]["question"]), stream=True, **GREEDY)
    for stream, task in ((second, "count"), (first, "long_count")):
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        equal(text, FACTS[task]["answer"])


@check
def leaves_a_stream():
    stream = chat.create(
        messages=user(FACTS["long_count"]["question"]), stream=True, extra_body={"ignore_eos": True}, **GREEDY
    )
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    requests_are(1)
    stream.close()
    nothing_runs()


@check
def gives_up_waiting():
    impatient = client.with_options(timeout=0.3)
    try:
        impatient.chat.completions.create(
            messages=user(FACTS["long_count"]["question"]), extra_body={"ignore_eos": True}, **GREEDY
        )
    except openai.APITimeoutError:
        nothing_runs()
    else:
        raise AssertionError("4,000 tokens came within 0.3 s")


@check
def hears_of_the_time_limit():
    """The server's own limit: an error that is not asked again."""
    asked = []
    patient = openai.OpenAI(
        base_url=BASE,
        api_key=KEY,
        max_retries=2,
        http_client=openai.DefaultHttpxClient(event_hooks={"request": [asked.append]}),
    )
    try:
        patient.chat.completions.create(
            messages=user(FACTS["long_count"]["question"]),
            extra_body={"ignore_eos": True, "timeout": 0.3},
            **GREEDY,
        )
    except openai.InternalServerError as error:
        equal((error.status_code, error.code, len(asked)), (504, "timeout", 1))
    else:
        raise AssertionError("4,000 tokens came within 0.3 s")


@check
def hears_of_an_error_in_a_stream():
    stream = chat.create(
        messages=user(FACTS["long_count"]["question"]),
        stream=True,
        extra_body={"ignore_eos": True, "timeout": 1.0},
        **GREEDY,
    )
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        equal(error.code, "timeout")
        assert "timeout" in error.message, error
    else:
        raise AssertionError("the stream ended as if it were whole")
    nothing_runs()


main()
