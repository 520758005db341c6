"""Is what the engine has stored what its content gives? Everything is recomputed alone and compared bit for bit.

The content of a state is its token ids, their M-RoPE positions and its image rows, nothing else: whatever splits,
neighbours, copies and drops it went through, one fresh prefill must give the same bits (design §6). Each function
returns one line for each array that differs, naming array, layer and the first differing position; an empty list is
the expected result. All run on the engine thread between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.inspection import alone
from luce.engines.qwen35.slots import Slot, cut, new_sampler
from luce.engines.qwen35.snapshots import CONV_TAPS, Snapshot, commit, take
from luce.engines.qwen35.state import CHUNK, CONV_ROWS, RING, StatePool
from luce.engines.qwen35.step import StepRunner
from luce.engines.qwen35.stored_states import Progress, Stored
from luce.engines.seam import SlotSpec
from luce.errors import DeviceError

__all__ = ["Part", "audit_blocks", "audit_slot", "audit_stored", "compare", "compare_progress"]

F32 = npt.NDArray[np.float32]


class Part(NamedTuple):
    """One array of a state."""

    name: str
    values: npt.NDArray[Any]
    """[rows, ...], or any shape where there are no rows."""
    first: int | None = None
    """Position of the first row; None: not by rows."""


def audit_slot(runner: StepRunner, slot: Slot) -> list[str]:
    """An open slot: S at the committed chunk, the ring rows and log decays after it, the convolution rows that a next
    segment could read, and every key and value."""
    solo, copy = alone(runner, slot.spec, slot.ids.copy(), max(slot.high, 1))
    _run(solo, copy, [*cut(0, slot.start), *_rows(slot.start, slot.high)])
    commit(solo.pool, copy, slot.start)
    assert (copy.base, copy.start, copy.high) == (slot.base, slot.start, slot.high)
    return compare(_slot_parts(runner.pool, slot), _slot_parts(solo.pool, copy))


def audit_stored(
    runner: StepRunner, stored: Stored[Snapshot], spec: SlotSpec, num_token_ids: int
) -> list[str]:
    """A snapshot or a saved slot, with the latter's fed ids, sampled token and sampler state.

    Args:
        spec: the content: its first ``position`` rows are those of the stored state. For a saved slot that is what it
            was opened with and, by :meth:`SlotSpec.with_generated`, all tokens since, with the one not fed yet.
        num_token_ids: ids that may be sampled.
    """
    snapshot, progress = stored.snapshot, stored.progress
    position = snapshot.position
    if len(spec.token_ids) < position:
        raise DeviceError(f"the state has {position} rows, the content given {len(spec.token_ids)}")
    solo, copy = alone(runner, spec, np.asarray(spec.token_ids, np.int64), position)
    last = _run(solo, copy, cut(0, position))
    commit(solo.pool, copy, position)
    fresh = take(solo.pool, copy, snapshot.first)
    wrong = compare(_snapshot_parts(snapshot), _snapshot_parts(fresh))
    if snapshot.digest != fresh.digest:
        wrong.append("token ids or positions: they are not those of the content")
    if progress is not None:
        drawn = None
        if progress.sampled is not None and last is not None:
            sampler = new_sampler(spec, position, num_token_ids)
            drawn = sampler.sample(runner.model.logits(last[None])[0], position).token
        wrong += compare_progress(progress, spec, drawn)
    return wrong


def audit_blocks(runner: StepRunner, spec: SlotSpec, table: tuple[int, ...], rows: int) -> list[str]:
    """Keys and values of the first ``rows`` positions of ``spec`` in the blocks of ``table``."""
    solo, copy = alone(runner, spec, np.asarray(spec.token_ids, np.int64), rows)
    _run(solo, copy, cut(0, rows))
    return compare(_kv_parts(runner.pool, table, rows), _kv_parts(solo.pool, copy.table, rows))


def _rows(start: int, stop: int) -> list[tuple[int, int]]:
    return [(start, stop - start)] if stop > start else []


def _run(solo: StepRunner, copy: Slot, pieces: Iterable[tuple[int, int]]) -> F32 | None:
    """Prefill pieces of (start, rows); the last row [hidden] of the last one.

    Raises:
        DeviceError: the content lacks the rows of an image.
    """
    last = None
    for start, rows in pieces:
        if rows < 1:
            continue
        for span in copy.spec.spans:
            if span.start < start + rows and copy.spec.image_rows[span.image] is None:
                raise DeviceError(f"image {span.image} has no rows: the content is not complete")
        hidden, _ = solo.forward([(copy, copy.table, start, rows)])
        last = hidden[-1].copy()
    return last


def compare_progress(progress: Progress, spec: SlotSpec, drawn: int | None) -> list[str]:
    """``drawn``: the token that the content gives for the position, if it gives one."""
    wrong, position = [], len(progress.ids)
    ids = np.asarray(spec.token_ids, np.int64)
    first = len(ids) - spec.num_generated
    if not np.array_equal(progress.ids, ids[:position]):
        wrong.append(f"fed ids, position {int(np.argmax(progress.ids != ids[:position]))}")
    if progress.first_generated != first:
        wrong.append(f"the answer begins at {progress.first_generated}; in the content at {first}")
    if list(progress.generated) != ids[first : first + len(progress.generated)].tolist():
        wrong.append("the tokens that the sampler remembers")
    if progress.sampled is not None and drawn is not None and progress.sampled != (position, drawn):
        wrong.append(f"the token sampled last, position {progress.sampled[0]}")
    return wrong


def compare(mine: Iterator[Part], fresh: Iterator[Part]) -> list[str]:
    """One line for each part whose bits differ."""
    wrong = []
    for (name, a, first), (_, b, _) in zip(mine, fresh, strict=True):
        if a.tobytes() == b.tobytes():
            continue
        bits = f"u{a.itemsize}"
        place = np.argwhere(np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits))[0]
        at = f"element {tuple(place.tolist())}" if first is None else f"position {first + int(place[0])}"
        wrong.append(f"{name}, {at}")
    return wrong


def _slot_parts(pool: StatePool, slot: Slot) -> Iterator[Part]:
    index, base = slot.index, slot.base
    ring = np.arange(base, slot.high) % RING
    early = max(slot.start - CONV_TAPS, 0)
    kept = np.arange(early, slot.high) % CONV_ROWS
    for number, layer in enumerate(pool.deltanet):
        name = f"DeltaNet layer {number}: "
        yield Part(name + "S", layer.s[index])
        yield Part(name + "ring k", layer.k[index][:, ring].transpose(1, 0, 2), base)
        yield Part(name + "ring u", layer.u[index][:, :, ring].transpose(2, 0, 1, 3), base)
        yield Part(name + "ring G", layer.g[index][:, ring].T, base)
        yield Part(name + "convolution rows", layer.conv[index][kept], early)
    yield from _kv_parts(pool, slot.table, slot.high)


def _kv_parts(pool: StatePool, table: tuple[int, ...], rows: int) -> Iterator[Part]:
    at = pool.rows_at(table, 0, rows)
    for number, kv in enumerate(pool.kv):
        yield Part(f"attention layer {number}: keys", kv.k[at], 0)
        yield Part(f"attention layer {number}: values", kv.v[at], 0)


def _snapshot_parts(snapshot: Snapshot) -> Iterator[Part]:
    base = snapshot.position // CHUNK * CHUNK
    for number, layer in enumerate(snapshot.layers):
        name = f"DeltaNet layer {number}: "
        yield Part(name + "S", layer.s)
        yield Part(name + "ring k", layer.k.transpose(1, 0, 2), base)
        yield Part(name + "ring u", layer.u.transpose(2, 0, 1, 3), base)
        yield Part(name + "ring G", layer.g.T, base)
        yield Part(name + "convolution rows", layer.conv, snapshot.position - CONV_TAPS)
    for number, kv in enumerate(snapshot.kv):
        yield Part(f"attention layer {number}: keys", kv.k, snapshot.first)
        yield Part(f"attention layer {number}: values", kv.v, snapshot.first)
