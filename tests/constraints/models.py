"""A tokenizer for constraints: the bundled model's, 2,047 ids with the family's added tokens."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

from luce.constraints.answer import AnswerConstraint
from luce.constraints.constrainer import Constrainer
from luce.engines.load_model import LoadOptions, OpenedModel, demo_model, open_model
from luce.sampling.masks import allowed_ids


@functools.cache
def opened() -> OpenedModel:
    return open_model(demo_model(), LoadOptions())


@functools.cache
def constrainer() -> Constrainer:
    model = opened()
    assert model.tokenizer is not None and model.template is not None
    return Constrainer(model.tokenizer, model.config.eos_token_ids, model.template.source.text)


def ids_of(*parts: str | int) -> list[int]:
    """Ids of text, and of added tokens by their text in angle brackets as they are."""
    tokenizer = opened().tokenizer
    assert tokenizer is not None
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        elif part in tokenizer.special_ids:
            ids.append(tokenizer.special_ids[part])
        else:
            ids += tokenizer.encode_text(part)
    return ids


def text_of(ids: Sequence[int]) -> str:
    tokenizer = opened().tokenizer
    assert tokenizer is not None
    return tokenizer.decode(ids)


def legal(constraint: AnswerConstraint, token: int) -> bool:
    mask = constraint.mask
    return mask is None or bool(allowed_ids(mask, constrainer().compiler.num_ids)[token])


def feed(constraint: AnswerConstraint, ids: Sequence[int]) -> int:
    """How many of the ids are legal, one after the other; they are taken."""
    for place, token in enumerate(ids):
        if not legal(constraint, token):
            return place
        if constraint.take(token):
            constraint.compute()
    return len(ids)


def written(
    constraint: AnswerConstraint, rng: random.Random, most: int = 400, *, steer: float = 0.5
) -> list[int]:
    """What a model with random weights writes: any token that may come, up to the answer's end. ``steer``: how often it
    takes one that ends something, so that answers end at all."""
    tokenizer = opened().tokenizer
    assert tokenizer is not None
    eos = opened().config.eos_token_ids
    ids: list[int] = []
    while len(ids) < most and not constraint.complete:
        assert constraint.mask is not None, "a free token"
        allowed = allowed_ids(constraint.mask, constrainer().compiler.num_ids).nonzero()[0].tolist()
        closing = [t for t in allowed if t in eos or tokenizer.token_bytes(t)[:1] in (b'"', b"}", b"]", b"<")]
        token = rng.choice(closing if closing and rng.random() < steer else allowed)
        ids.append(token)
        if constraint.take(token):
            constraint.compute()
    return ids
