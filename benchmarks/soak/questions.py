"""What the soak asks: the demo model's tasks as bodies of POST /v1/chat/completions, drawn from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from luce.demo.case import Case, image_part, user
from luce.demo.drawing import draw, random_chart
from luce.demo.evaluate import with_data_urls
from luce.demo.tasks import make_case

__all__ = ["GALLERY", "Body", "bad_body", "body_of", "conversation", "gallery", "picture_case", "text_case"]

Body = dict[str, Any]

TEXT = ("count", "copy", "recall", "arithmetic", "arithmetic_think", "tool_call", "json_text", "small_talk")
PICTURE = ("describe", "value", "tallest", "many_describe", "many_which", "many_value", "later_picture")
AGAIN = 10
"""Cases of each task that come again and again; all others come once."""
FRESH = 10**9
GALLERY = 16
"""Pictures: as many as a server takes in one request if nobody says otherwise."""
WAYS = 4
"""Of asking for an answer; few, so that equal bodies come again."""


def _index(rng: Random) -> int:
    return rng.randrange(AGAIN) if rng.random() < 0.5 else AGAIN + rng.randrange(FRESH)


def text_case(rng: Random) -> Case:
    return make_case(rng.choice(TEXT), _index(rng), test=True)


def picture_case(rng: Random) -> Case:
    """About one picture or several."""
    return make_case(rng.choice(PICTURE), _index(rng), test=True)


def body_of(case: Case, rng: Random) -> Body:
    """Some greedy, some sampled with a seed: either way one body has one answer."""
    rng = Random(rng.randrange(WAYS))
    body: Body = {
        "messages": with_data_urls(case.messages, case.pictures()),
        "max_tokens": min(case.max_tokens, 160),
        "chat_template_kwargs": {"enable_thinking": case.enable_thinking},
    }
    if case.tools:
        body["tools"] = case.tools
    if rng.random() < 0.5:
        body |= {"temperature": 0}
    else:
        body |= {"temperature": 1.0, "top_p": 0.9, "seed": rng.randrange(3)}
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(5)}
    return body


def gallery(rng: Random) -> Body:
    """As many new pictures as one request may hold, and hardly any answer: what fills the caches quickly."""
    pictures = [draw(random_chart(rng, test=True)) for _ in range(GALLERY)]
    messages = with_data_urls([user(*(image_part() for _ in pictures))], pictures)
    return {"messages": messages, "temperature": 0, "max_tokens": 1}


def conversation(rng: Random) -> list[Case]:
    """The turns of a chat that grows: later ones with pictures of their own. What was said before comes on top."""
    cases = (picture_case(rng) if rng.random() < 0.3 else text_case(rng) for _ in range(rng.randrange(2, 7)))
    return [case for case in cases if len(case.messages) == 1 and not case.tools]


def bad_body(rng: Random) -> tuple[bytes, frozenset[int]]:
    """A body that is to be refused, and the statuses that are right for it."""
    return rng.choice(_BAD)


_REFUSED = frozenset({400, 404, 413, 422})
_PICTURE = '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "%s"}}]}]}'
_BAD: tuple[tuple[bytes, frozenset[int]], ...] = tuple(
    (text.encode(), _REFUSED)
    for text in (
        "",
        "{",
        "[]",
        "null",
        '{"messages": []}',
        '{"messages": [{"role": "user"}], "max_tokens": 0}',
        '{"messages": [{"role": "nobody", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}',
        '{"messages": [{"role": "user", "content": "x"}], "nonsense": 1}',
        '{"messages": [{"role": "user", "content": "x"}], "model": "another"}',
        '{"messages": [{"role": "user", "content": "x"}], "n": 1000}',
        '{"messages": [{"role": "user", "content": "%s"}]}' % ("many words " * 20_000),
        _PICTURE % "http://127.0.0.1/picture.png",
        _PICTURE % "data:image/png;base64,bm8gcGljdHVyZQ==",
        _PICTURE % "data:image/png;base64,***",
        _PICTURE % ("data:image/png;base64," + "iVBORw0KGgo" * 50_000),
        "[" * 100_000,
    )
)
