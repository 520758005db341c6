"""Is what the fake engine has stored what its content gives? Everything is recomputed alone and compared.

Each function returns one line per difference, naming what differs and the first row; an empty list is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import attrs
import numpy as np

from luce.engines.digest import content_digest
from luce.engines.fake.content import EMPTY, MASK, mix, prompt_content
from luce.engines.fake.lanes import FakeModel, Lane
from luce.engines.fake.reference import reference_answer
from luce.engines.fake.stored_states import Stored
from luce.engines.seam import SlotSpec, WorkKind

__all__ = ["audit_blocks", "audit_lane", "audit_stored"]


def audit_lane(model: FakeModel, lane: Lane) -> list[str]:
    """An open slot: its states, and the sums in its blocks."""
    content = lane.spec.with_generated([token.token for token in lane.tokens])
    states, sums = _alone(content, lane.rows, model.block_size)
    return [
        *_differs("states", lane.states, [EMPTY, *states][lane.first :], lane.first - 1),
        *_differs("sums", *_in_blocks(model, lane.table, sums), 0),
    ]


def audit_stored(stored: Stored, spec: SlotSpec, block_size: int) -> list[str]:
    """A saved slot or a snapshot."""
    states, sums = _alone(spec, stored.position, block_size)
    wrong = [
        *_differs("states", [stored.state], states[-1:], stored.position - 1),
        *_differs("sums", stored.sums, sums[stored.first :], stored.first),
    ]
    rows = slice(stored.position)
    if stored.digest != content_digest(spec.token_ids[rows], spec.positions[:, rows]):
        wrong.append("token ids or positions: they are not those of the content")
    if stored.kind is WorkKind.SAVE:
        first = len(spec.token_ids) - spec.num_generated
        if stored.first_generated != first:
            wrong.append(f"the answer begins at {stored.first_generated}; in the content at {first}")
        tokens = [token.token for token in stored.tokens]
        expected = spec.token_ids[stored.length : stored.length + len(tokens)].tolist()
        wrong += _differs("tokens", tokens, expected, stored.length)
        if tokens and len(tokens) > stored.position - stored.length:
            wrong += _differs(
                "tokens", stored.tokens[-1:], _next_token(spec, stored.position), stored.position
            )
    return wrong


def audit_blocks(model: FakeModel, spec: SlotSpec, table: Sequence[int], rows: int) -> list[str]:
    """The first ``rows`` rows of ``spec`` in the blocks of ``table``."""
    _, sums = _alone(spec, rows, model.block_size)
    return _differs("sums", *_in_blocks(model, table, sums), 0)


def _alone(spec: SlotSpec, rows: int, block_size: int) -> tuple[list[int], list[int]]:
    """States and sums inside blocks of the first rows."""
    states, sums = list[int](), list[int]()
    state, before, inside = EMPTY, 0, 0
    for row, content in enumerate(prompt_content(spec, 0, rows)):
        if row % block_size == 0:
            before, inside = (before + inside) & MASK, 0
        state = mix(state, content)
        inside = (inside + mix(state, (before + inside) & MASK)) & MASK
        states.append(state)
        sums.append(inside)
    return states, sums


def _in_blocks(model: FakeModel, table: Sequence[int], sums: list[int]) -> tuple[list[int], list[int]]:
    """Sums of rows, then of whole blocks, as stored and as they should be."""
    size = model.block_size
    whole = len(sums) // size
    stored = [model.sums[table[row // size] * size + row % size] for row in range(len(sums))]
    stored += [model.whole[block] for block in islice(table, whole)]
    return stored, sums + sums[size - 1 : whole * size : size]


def _next_token(spec: SlotSpec, position: int) -> list[object]:
    """The token that is sampled after the first ``position`` rows."""
    first = len(spec.token_ids) - spec.num_generated
    content = attrs.evolve(
        spec,
        token_ids=spec.token_ids[:position],
        positions=np.ascontiguousarray(spec.positions[:, :position]),
        num_generated=position - first,
        spans=tuple(span for span in spec.spans if span.start < position),
    )
    return list(reference_answer(content, 1))


def _differs(name: str, mine: Iterable[object], fresh: Iterable[object], first: int) -> list[str]:
    for row, (a, b) in enumerate(zip(mine, fresh, strict=True), first):
        if a != b:
            return [f"{name}, row {row}"]
    return []
