"""The openai package, asynchronous, on trio."""

from __future__ import annotations

import json

import openai
import trio
from checks import BASE, FACTS, KEY, MODEL, TIGHT, check, equal, main, nothing_runs, requests_are, user

GREEDY = {"model": MODEL, "temperature": 0}
ENDLESS = {"ignore_eos": True}


def connect(url=BASE, **options):
    defaults = {"base_url": url, "api_key": KEY, "max_retries": 0, "timeout": 120}
    return openai.AsyncOpenAI(**(defaults | options))


async def streamed(client, messages, **fields):
    text = ""
    async for chunk in await client.chat.completions.create(
        messages=messages, stream=True, **GREEDY, **fields
    ):
        text += chunk.choices[0].delta.content or ""
    return text


@check
async def lists_models():
    async with connect() as client:
        equal([model.id async for model in client.models.list()], [MODEL])


@check
async def answers_many_at_once():
    """Twelve streams on four slots: each gets its own answer."""
    tasks = [(user(FACTS[name]["question"]), FACTS[name]["answer"]) for name in ("count", "copy")]
    charts = (FACTS["chart"], FACTS["other_chart"])
    tasks += [(user(chart["question"], chart["url"]), chart["answer"]) for chart in charts]
    found = {}

    async def one(index):
        found[index] = await streamed(client, tasks[index % len(tasks)][0])

    async with connect() as client, trio.open_nursery() as nursery:
        for index in range(12):
            nursery.start_soon(one, index)
    equal([found[index] for index in range(12)], [tasks[index % len(tasks)][1] for index in range(12)])


@check
async def helper_streams_a_tool_call():
    task = FACTS["product"]
    async with (
        connect() as client,
        client.chat.completions.stream(
            messages=user(task["question"]), tools=FACTS["tools"], **GREEDY
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), (task["name"], task["arguments"]))
    assert "tool_calls.function.arguments.done" in kinds, kinds


@check
async def maps_errors():
    async with connect() as client:
        for kind, fields in (
            (openai.NotFoundError, {"model": "gpt-9"}),
            (openai.BadRequestError, {"messages": user(FACTS["too_long"])}),
        ):
            try:
                await client.chat.completions.create(**({"messages": user("Hello!")} | GREEDY | fields))
            except kind as error:
                assert error.code and error.param, error
            else:
                raise AssertionError(f"{fields} was not refused")
    async with connect(api_key="wrong") as client:
        try:
            await client.models.list()
        except openai.AuthenticationError as error:
            equal(error.code, "invalid_api_key")
        else:
            raise AssertionError("the wrong key was taken")


@check
async def is_cancelled_in_mid_stream():
    async with connect() as client:
        with trio.CancelScope() as scope:
            async for chunk in await client.chat.completions.create(
                messages=user(FACTS["long_count"]["question"]), stream=True, extra_body=ENDLESS, **GREEDY
            ):
                if chunk.choices[0].delta.content:
                    scope.cancel()
        assert scope.cancelled_caught
        # the client's connections are still open: only this request is gone
        await trio.to_thread.run_sync(nothing_runs)
        equal(await streamed(client, user(FACTS["copy"]["question"])), FACTS["copy"]["answer"])


@check
async def is_cancelled_before_an_answer():
    async with connect() as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def leave():
                    await trio.to_thread.run_sync(requests_are, 1)
                    scope.cancel()

                await client.chat.completions.create(
                    messages=user(FACTS["long_count"]["question"]), extra_body=ENDLESS, **GREEDY
                )
        assert scope.cancelled_caught
        await trio.to_thread.run_sync(nothing_runs)


@check
async def asks_again_when_the_server_is_full():
    statuses = []
    refused = trio.Event()

    async def look(response):
        statuses.append(response.status_code)
        if response.status_code == 503:
            refused.set()

    async def fill(client, *, task_status):
        async with await client.chat.completions.create(
            messages=user(FACTS["long_count"]["question"]), stream=True, extra_body=ENDLESS, **GREEDY
        ):
            task_status.started()
            await refused.wait()

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [look]})
    async with (
        connect(TIGHT) as client,
        connect(TIGHT, max_retries=3, http_client=http) as patient,
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            await nursery.start(fill, client)
        answer = await patient.chat.completions.create(messages=user(FACTS["copy"]["question"]), **GREEDY)
    equal(answer.choices[0].message.content, FACTS["copy"]["answer"])
    equal(statuses, [503, 200])
    await trio.to_thread.run_sync(nothing_runs, "tight")


main(trio.run)
