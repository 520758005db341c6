"""Is what the engine has stored what its content gives? As :mod:`luce.engines.qwen35.audit`, on a device.

Everything is recomputed alone, in one fresh prefill, and compared bit for bit. Each function returns one line for each
array that differs, naming array, layer and the first differing position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.audit import Part, compare, compare_progress
from luce.engines.qwen35.device.copies import DeviceCopies, DeviceSnapshot, download_kv
from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, CONV_ROWS, RING_ROWS
from luce.engines.qwen35.device.inspection import alone
from luce.engines.qwen35.device.layouts import CONV_TAPS, state_parts
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.runner import Runner
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import new_sampler
from luce.engines.qwen35.stored_states import Stored
from luce.engines.seam import SlotSpec
from luce.errors import DeviceError

__all__ = ["audit_blocks", "audit_slot", "audit_stored"]

_NAMES = {"s": "S", "k": "ring k", "u": "ring u", "g": "ring G", "conv": "convolution rows"}


def audit_slot(runner: Runner, slot: DeviceSlot) -> list[str]:
    """An open slot: S, ring and convolution rows that a next segment could read, every key and value."""
    solo, copy = alone(runner, slot.spec, slot.ids.copy(), max(slot.high, 1))
    _run(solo, copy, slot.start)
    solo.commit(copy, slot.start)
    if slot.high > slot.start:
        solo.alone(copy, slot.start, slot.high - slot.start)
    assert (copy.base, copy.start, copy.high) == (slot.base, slot.start, slot.high)
    return compare(_slot_parts(runner.pool, slot), _slot_parts(solo.pool, copy))


def audit_stored(
    runner: Runner, stored: Stored[DeviceSnapshot], spec: SlotSpec, num_token_ids: int
) -> list[str]:
    """A snapshot or a saved slot, with the latter's fed ids, sampled token and sampler state; see
    :func:`luce.engines.qwen35.audit.audit_stored`."""
    snapshot, progress = stored.snapshot, stored.progress
    position = snapshot.position
    if len(spec.token_ids) < position:
        raise DeviceError(f"the state has {position} rows, the content given {len(spec.token_ids)}")
    solo, copy = alone(runner, spec, np.asarray(spec.token_ids, np.int64), position)
    copy.sampler = new_sampler(spec, position, num_token_ids)
    token = _run(solo, copy, position)
    solo.commit(copy, position)
    with closing(DeviceCopies(solo.pool, solo.commit)) as copies:
        fresh = copies.take(copy, snapshot.first)
    wrong = compare(_snapshot_parts(snapshot), _snapshot_parts(fresh))
    if snapshot.digest != fresh.digest:
        wrong.append("token ids or positions: they are not those of the content")
    if progress is not None:
        wrong += compare_progress(progress, spec, token)
    return wrong


def audit_blocks(runner: Runner, spec: SlotSpec, table: tuple[int, ...], rows: int) -> list[str]:
    """Keys and values of the first ``rows`` positions of ``spec`` in the blocks of ``table``."""
    solo, copy = alone(runner, spec, np.asarray(spec.token_ids, np.int64), rows)
    _run(solo, copy, rows)
    return compare(_kv_parts(runner.pool, table, rows), _kv_parts(solo.pool, copy.table, rows))


def _run(solo: Runner, copy: DeviceSlot, stop: int) -> int | None:
    """Prefill ``stop`` rows in whole chunks; the token drawn after them.

    The draw counts its tokens where the engine's slot of the same number has its own: those are counted anew.

    Raises:
        DeviceError: the content lacks the rows of an image.
    """
    for span in copy.spec.spans:
        if span.start < stop and copy.spec.image_rows[span.image] is None:
            raise DeviceError(f"image {span.image} has no rows: the content is not complete")
    token = None
    size = solo.program.chunk_rows // CHUNK_ROWS * CHUNK_ROWS
    for start in range(0, stop, size):
        count = min(size, stop - start)
        part = solo.alone(copy, start, count, sample=start + count == stop)
        if part.draws:
            (draw,) = part.draws
            token = draw.token.token if draw.token is not None else int(part.results.drawn["token"][0])
            solo.recount(copy.index)
    return token


def _slot_parts(pool: DevicePool, slot: DeviceSlot) -> Iterator[Part]:
    base = slot.base
    ring = np.arange(base, slot.high) % RING_ROWS
    early = max(slot.start - CONV_TAPS, 0)
    kept = np.arange(early, slot.high) % CONV_ROWS
    for layer in range(pool.state["s"].shape[0]):
        for part in state_parts(pool.config):
            name = f"DeltaNet layer {layer}: {_NAMES[part.name]}"
            whole = pool.device.numpy(pool.state[part.name][layer, slot.index])
            if part.axis is None:
                yield Part(name, whole if base else np.zeros_like(whole))
            else:
                rows, first = (kept, early) if part.name == "conv" else (ring, base)
                yield Part(name, np.moveaxis(whole, part.axis, 0)[rows], first)
    yield from _kv_parts(pool, slot.table, slot.high)


def _kv_parts(pool: DevicePool, table: tuple[int, ...], rows: int) -> Iterator[Part]:
    yield from _kv_rows(download_kv(pool, table, 0, rows), 0)


def _kv_rows(kv: tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], ...], first: int) -> Iterator[Part]:
    for layer, (keys, values) in enumerate(kv):
        yield Part(f"attention layer {layer}: keys", keys, first)
        yield Part(f"attention layer {layer}: values", values, first)


def _snapshot_parts(snapshot: DeviceSnapshot) -> Iterator[Part]:
    base = snapshot.position // CHUNK_ROWS * CHUNK_ROWS
    for number, layer in enumerate(snapshot.layers):
        for name, values in layer.items():
            title = f"DeltaNet layer {number}: {_NAMES[name]}"
            if name == "s":
                yield Part(title, values)
            elif name == "conv":
                yield Part(title, values, snapshot.position - CONV_TAPS)
            else:
                yield Part(title, np.moveaxis(values, 1, 0), base)
    yield from _kv_rows(snapshot.kv, snapshot.first)
