"""Conversations and the prefix cache, on both engines (B53, B54, B58, B59, B111), and every snapshot looked into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from luce.actors.submission import Submission, prefix_keys
from luce.engines.seam import SampledToken, SlotSpec
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_index import PrefixIndex
from tests.actors.harness import Prompt, read, settled
from tests.actors.harness import ask as submission
from tests.actors.test_prefix_cache import longer
from tests.faults.whole import (
    ENGINES,
    Live,
    alone,
    alone_at_service,
    ask,
    cached,
    live,
    picture,
    same_part,
    text_of,
    turn,
)

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("engine", ENGINES)]

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


async def asked(server: Live, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The answer, and how much of its prompt came from the cache."""
    response = await server.post(body)
    assert response.status_code == 200, response.text
    return same_part(response.json()), cached(response)


def prompt_tokens(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens"]
    return found


# -- the edge of a block -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "budget", "depth"), [(1, None, 1), (4, 7, 2)])
@pytest.mark.parametrize("rows", [31, 32, 33, 48])
async def test_b53_prompts_of_whole_blocks(
    engine: str, rows: int, slots: int, budget: int | None, depth: int
) -> None:
    """Blocks of 16: twice the same prompt, then one token more. All but the last row come from the cache."""
    first = submission(1, rows=rows, tokens=6, logprobs=2)
    more = longer(first, [3])
    async with live(engine=engine, slots=slots, prefill_budget=budget, depth=depth) as server:
        assert server.model.engine.capabilities.block_size == 16
        found = []
        for each in (first, first, more):
            before = server.service.loop.metrics.rows
            handle = server.service.submit(each)
            answer = await read(handle)
            await settled(server.service)
            computed = server.service.loop.metrics.rows - before
            found.append((answer.tokens, handle.usage.cached_tokens, computed))
    one, other = [(await alone_at_service(each, engine)).tokens for each in (first, more)]
    assert one != other, "the trap: one token more shows"
    assert found == [(one, 0, rows + 5), (one, rows - 1, 1 + 5), (other, rows - 1, 2 + 5)]


async def test_b53_a_prompt_that_ends_with_its_picture(engine: str) -> None:
    """It cannot be cut inside the picture, so all of the picture is computed again: never a row less than one."""
    tokens = 6
    async with live(engine=engine) as server:
        (image,) = server.submission(ask(picture(1))).images
        assert image.num_tokens == tokens
        plain = submission(1, rows=32 - tokens, tokens=5)
        whole = submission(1, rows=32, tokens=5).prompt
        pad = server.submission(ask(picture(1))).prompt
        span = attrs.evolve(pad.spans[0], start=32 - tokens)
        ids = whole.token_ids.copy()
        ids[span.start :] = pad.token_ids[pad.spans[0].start]
        both = attrs.evolve(
            plain, prompt=Prompt(ids, whole.positions, 0, (span,)), images=(image,), params=plain.params
        )
        answers = []
        for _ in range(2):
            handle = server.service.submit(both)
            answers.append((await read(handle)).tokens)
            await settled(server.service)
        assert handle.usage.cached_tokens == span.start, "the trap: it hits up to the picture"
    assert answers == [(await alone_at_service(both, engine)).tokens] * 2


# -- whether it works at all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
async def test_b54_the_cache_works_and_says_so(engine: str, depth: int) -> None:
    """Ten blocks twice, on the model with DeltaNet layers, with what a server has by itself; then with no memory."""
    body = ask("word " * 60, max_tokens=3)
    (reference,) = await alone([body], engine)
    assert prompt_tokens(reference) >= 160, "the trap: ten blocks"
    async with live(engine=engine, depth=depth) as server:
        assert server.model.engine.capabilities.snapshots
        assert [await asked(server, body) for _ in range(2)] == [
            (reference, 0),
            (reference, server.submission(body).prompt.answer_start),
        ]
    async with live(engine=engine, depth=depth, snapshots=0) as server:
        assert [await asked(server, body) for _ in range(2)] == [(reference, 0)] * 2


# -- chats that grow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chats", [1, 2])
async def test_b58_a_growing_chat_goes_on_from_its_last_turn(engine: str, chats: int) -> None:
    """Room for four snapshots and 16 turns: each turn hits deeper than the last, also when two chats take turns."""
    talks = [[turn(f"chat {n}: hello")] for n in range(chats)]
    reached, ends = [0] * chats, [0] * chats
    async with live(engine=engine, snapshots=4, context=1024) as server:
        index = server.service.loop.memory.cache.index
        for number in range(16):
            for n, messages in enumerate(talks):
                body = ask(max_tokens=8) | {"messages": list(messages)}
                answer, hit = await asked(server, body)
                if number in (7, 15):
                    assert [answer] == await alone([body], engine, context=1024)
                if number:
                    assert hit > reached[n] and hit == ends[n], f"turn {number} of chat {n}"
                reached[n], ends[n] = hit, server.submission(body).prompt.answer_start
                messages += [{"role": "assistant", "content": text_of(answer)}, turn(f"and {number}?")]
        assert index.stats.evictions >= 16 and len(index) <= 4, "the trap: there is no room for all"


@pytest.mark.parametrize(("slots", "budget", "depth"), [(1, 16, 1), (4, None, 2)])
async def test_b59_a_turn_costs_what_is_new_in_it(
    engine: str, slots: int, budget: int | None, depth: int
) -> None:
    """Five turns over the real template, one of them about a picture, and the last answer asked for again."""
    messages: list[dict[str, Any]] = []
    before = 0
    async with live(engine=engine, slots=slots, prefill_budget=budget, depth=depth) as server:
        metrics = server.service.loop.metrics
        for number in range(6):
            if number < 5:
                parts = [picture(1, 48, 64)] if number == 1 else []
                messages.append(turn(*parts, f"turn {number}, told at some length"))
            body = ask(max_tokens=7) | {"messages": list(messages)}
            rows = metrics.rows
            answer, hit = await asked(server, body)
            assert [answer] == await alone([body], engine)
            length = prompt_tokens(answer)
            await settled(server.service)
            assert metrics.rows - rows == length - hit + 6, "what is not from the cache is computed once"
            generation_prompt = length - server.submission(body).prompt.answer_start
            # before: where the last turn's prompt ended; its generation prompt is written otherwise this time
            new = length - before if number < 5 else 0
            assert length - hit <= new + generation_prompt, (
                f"turn {number}: {length - hit} rows for {new} new ones"
            )
            assert number == 0 or hit >= before - generation_prompt > 0, "the trap: it does hit"
            before = length
            if number < 4:
                messages.append({"role": "assistant", "content": text_of(answer)})


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("with_tools", [True, False])
async def test_b111_a_next_turn_hits_up_to_the_last_question(
    engine: str, thinking: bool, with_tools: bool
) -> None:
    """The template writes past turns without the think block of the generation prompt, and a loop of tool calls anew
    once the next question has come: neither takes more from the hit than the answer itself."""
    fields = ask(max_tokens=6) | {"chat_template_kwargs": {"enable_thinking": thinking}}
    if with_tools:
        fields["tools"] = TOOLS
    messages = [{"role": "system", "content": "Be brief."}, turn("What is in the box?")]
    async with live(engine=engine) as server:
        first = fields | {"messages": list(messages)}
        question_end = server.submission(first).prompt.answer_start
        answer, _ = await asked(server, first)
        if with_tools:
            call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "box"}}}
            messages.append({"role": "assistant", "content": "Let me look.", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "1", "content": "a cat"})
            body = fields | {"messages": list(messages)}
            answer, hit = await asked(server, body)
            assert [answer] == await alone([body], engine)
            assert hit >= question_end
        messages += [{"role": "assistant", "content": text_of(answer)}, turn("And under it?")]
        second = fields | {"messages": list(messages)}
        one, other = (server.submission(body).prompt.token_ids for body in (first, second))
        assert (one[:question_end] == other[:question_end]).all()
        if thinking:
            assert (one != other[: len(one)]).any(), "the trap: the generation prompt is not rendered again"
        answer, hit = await asked(server, second)
        assert [answer] == await alone([second], engine)
        assert hit >= question_end


# -- what is stored ------------------------------------------------------------------------------------------------


async def test_every_snapshot_is_the_state_after_its_prefix(engine: str) -> None:
    """The invariant behind all rows of the prefix cache: each stored state is computed again from its content."""
    parts = ["Look: ", picture(1), " and ", picture(2, 48, 64), " what do you see?"]
    bodies = [ask(*parts[: n + 1], max_tokens=20) for n in range(len(parts))] + [ask("Other words")]
    looked_at = 0
    async with live(engine=engine, prefill_budget=9, depth=2) as server:
        service = server.service
        asked = [server.submission(body, f"r{n}") for n, body in enumerate(bodies)]
        answers = [(await read(service.submit(each))).tokens for each in asked]
        await settled(service)
        auditing: Any = server.model.engine
        index = service.loop.memory.cache.index
        seen: set[int] = set()
        for each, tokens in zip(asked, answers, strict=True):
            keys = prefix_keys(each, auditing.capabilities)
            keys.extend([token.token for token in tokens])
            for entry in _found(index, keys):
                spec = _spec(server, each, tokens)
                assert auditing.audit_stored(entry.snapshot, spec) == [], (each.id, entry.position)
                seen.add(entry.number)
                looked_at += 1
        assert seen == {entry.number for entry in index} and len(seen) > 8
        assert looked_at > len(seen), "the trap: prompts share prefixes"
        wrong = _spec(server, asked[-1], answers[-1])
        entry = next(e for e in index if 8 < e.position < len(wrong.token_ids) and e.number in seen)
        wrong.token_ids[3] += 1
        assert auditing.audit_stored(entry.snapshot, wrong) != [], "the trap: an audit can fail"


def _found(index: PrefixIndex, keys: Any) -> Iterator[Entry]:
    """Every prefix of these keys that is stored, longest first."""
    limit = len(keys)
    while (entry := index.lookup(keys, limit)) is not None:
        yield entry
        limit = entry.position - 1


def _spec(server: Live, asked: Submission, tokens: tuple[SampledToken, ...]) -> SlotSpec:
    prompt = asked.prompt
    rows = [server.model.engine.encode(image) for image in asked.images]
    return SlotSpec(
        prompt.token_ids,
        prompt.positions,
        prompt.rope_delta,
        asked.params,
        len(tokens),
        prompt.spans,
        list(rows),
    ).with_generated([token.token for token in tokens])
