"""Copies of a slot's state in host memory: saved slots and prefix snapshots (design §6).

They are taken and put back while steps go on. One kernel packs what a copy keeps into device memory of its own, so that
the steps behind it wait for that alone and not for the bus; a thread and a stream of their own take it to the host, and
further threads into memory of the copy (:mod:`.staging`). The same way leads back.

A copy has one form, whatever way the slot came to its rows: rings and windows hold exact zeros in the place of rows
that are not there. So two copies at the same position of the same content are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Event
from luce.engines.digest import content_digest
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS
from luce.engines.qwen35.device.layouts import CONV_TAPS, block_rows, rows_block
from luce.engines.qwen35.device.packed_state import (
    PackedPart,
    PackedPieces,
    copy_arrays,
    packed_bytes,
    packed_parts,
    piece_bytes,
)
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.device.staging import BUFFERS, Buffer, Staged, Staging
from luce.engines.qwen35.memory_parts import ArraySpec
from luce.engines.qwen35.slots import Slot

__all__ = ["DeviceCopies", "DeviceSnapshot", "download_kv", "pinned_arrays", "upload_kv"]

Host = npt.NDArray[Any]

BUS_PIECE = 16 << 20
"""Bytes of one copy over the bus, a third of a millisecond: what steps and pictures bring comes between."""


def pinned_arrays(config: TextConfig, packed: int) -> Iterator[ArraySpec]:
    """Host memory that copies pass through, where the device has room for ``packed`` ones."""
    part = "copies of states, host"
    yield ArraySpec(part, "packed states", (BUFFERS, packed_bytes(config)), "uint8")
    yield ArraySpec(part, "pieces", (packed, piece_bytes(config)), "uint8")


@attrs.frozen(eq=False)
class DeviceSnapshot:
    """State after exactly ``position`` tokens, in host memory and read-only."""

    position: int
    first: int
    """First position whose keys and values are here; those before it stand in shared blocks."""
    digest: bytes
    """Of the token ids and M-RoPE positions of the ``position`` rows."""
    _states: dict[str, Host]
    """By name, [DeltaNet layers, …]."""
    _kv: tuple[tuple[Host, Host], ...]
    _staged: Staged = attrs.field(factory=Staged)
    """What fills the arrays."""

    @property
    def layers(self) -> tuple[dict[str, Host], ...]:
        """Per DeltaNet layer the parts of :func:`.layouts.state_parts` by name: S, the ring rows of the 64-chunk that
        ``position`` lies in, and the 3 rows before convolution. Waits until they are there."""
        states = self.states
        count = len(next(iter(states.values())))
        return tuple({name: values[layer] for name, values in states.items()} for layer in range(count))

    @property
    def states(self) -> dict[str, Host]:
        """The same of all layers together, by name, [layers, …]. Waits until they are there."""
        self._staged.wait()
        for values in self._states.values():
            values.setflags(write=False)
        return self._states

    @property
    def kv(self) -> tuple[tuple[Host, Host], ...]:
        """Per attention layer keys and values [position - first, Hkv, D], bfloat16 bits. Waits until they are there."""
        self._staged.wait()
        for pair in self._kv:
            for values in pair:
                values.setflags(write=False)
        return self._kv

    def arrays(self) -> Iterator[Host]:
        """Waits until they are there."""
        yield from self.states.values()
        for pair in self.kv:
            yield from pair

    @property
    def nbytes(self) -> int:
        states = sum(values.nbytes for values in self._states.values())
        return states + sum(values.nbytes for pair in self._kv for values in pair)


def download_kv(
    pool: DevicePool, table: tuple[int, ...], first: int, end: int
) -> tuple[tuple[Host, Host], ...]:
    """Per attention layer keys and values [end - first, Hkv, D] of the positions ``first`` … ``end`` - 1."""
    config, found = pool.config, []
    low = first // BLOCK_ROWS
    for layer in range(sum(config.full_attention)):
        pair = []
        for name in ("keys", "values"):
            rows = [
                block_rows(
                    pool.device.numpy(pool.kv[name][layer, table[index]]),
                    config.head_dim,
                    values=name == "values",
                )
                for index in range(low, -(-end // BLOCK_ROWS))
            ]
            joined = (
                np.concatenate(rows) if rows else np.zeros((0, config.kv_heads, config.head_dim), np.uint16)
            )
            pair.append(joined[first - low * BLOCK_ROWS : end - low * BLOCK_ROWS].copy())
        found.append((pair[0], pair[1]))
    return tuple(found)


def upload_kv(
    pool: DevicePool, table: tuple[int, ...], first: int, kv: tuple[tuple[Host, Host], ...]
) -> None:
    """Put keys and values of the positions from ``first``, a multiple of 64, into the blocks of ``table``. The rest of
    the last block becomes zeros."""
    assert first % BLOCK_ROWS == 0
    for layer, pair in enumerate(kv):
        for name, rows in zip(("keys", "values"), pair, strict=True):
            for at in range(0, len(rows), BLOCK_ROWS):
                target = pool.kv[name][layer, table[(first + at) // BLOCK_ROWS]]
                pool.device.upload(target, _tiles(rows[at : at + BLOCK_ROWS], name))


def _tiles(rows: Host, name: str) -> Host:
    """A block's tiles of up to 64 rows."""
    block = np.zeros((BLOCK_ROWS, *rows.shape[1:]), np.uint16)
    block[: len(rows)] = rows
    return rows_block(block, values=name == "values")


def _blank(part: PackedPart, values: Host, position: int) -> None:
    """Zeros in the place of rows that are not there; ``values`` [layers, …] of a copy."""
    base = position // CHUNK_ROWS * CHUNK_ROWS
    if part.name == "s":
        if not base:
            values[...] = 0
    elif part.name == "conv":
        values[:, : max(CONV_TAPS - position, 0)] = 0
    else:
        values[:, :, position - base :] = 0


@attrs.frozen(eq=False)
class _Place:
    """Of a packed state on its way."""

    packed: Array
    pieces: Array
    """Both on the device."""
    table: Host
    """Pinned; the pieces before they are there."""


class DeviceCopies:
    """:class:`luce.engines.qwen35.stored_states.Copies` of a device's pool."""

    def __init__(
        self,
        pool: DevicePool,
        commit: Callable[[DeviceSlot, int], None],
        arrays: dict[str, Array] | None = None,
    ) -> None:
        """Args:
        commit: ``commit(slot, position)``, see :meth:`commit`.
        arrays: those of :func:`copy_arrays` by name; None: made when they are needed, for one copy at a time.
        """
        self._pool, self._commit, self._device = pool, commit, pool.device
        self._arrays = arrays
        self._parts = packed_parts(pool.config)
        self._states = self._parts[:-2]
        self._pieces = PackedPieces(pool)
        self._stream = pool.device.stream()
        """Of the bus."""
        self._places: SimpleQueue[_Place] = SimpleQueue()
        """Where nothing is on its way."""
        self._placed = False
        self._staging = Staging(pool.device, {"packed": ((packed_bytes(pool.config),), "uint8")})

    @property
    def nbytes(self) -> int:
        """Device memory that copies pass through."""
        return sum(int(array.nbytes) for array in (self._arrays or {}).values())

    def prepare(self) -> None:
        """Take the memory that copies need on their way."""
        self._staging.prepare()
        self._make_places()

    def close(self) -> None:
        """Wait for copies under way; there must be no more of them."""
        self._staging.close()

    def commit(self, slot: Slot, position: int) -> None:
        assert isinstance(slot, DeviceSlot) and slot.start <= position <= slot.high
        self._commit(slot, position)

    def take(self, slot: Slot, first: int) -> DeviceSnapshot:
        """The state is packed when the steps' stream is past what it has when this returns, or a little later where all
        places are in use; only keys and values of more than a block are waited for."""
        pool, position = self._pool, slot.start
        assert slot.base == position // CHUNK_ROWS * CHUNK_ROWS and 0 <= first <= position
        blocks = slot.table[first // BLOCK_ROWS : -(-position // BLOCK_ROWS)]
        block = blocks[0] if len(blocks) == 1 else None
        config = pool.config
        # One allocation, which is large enough for huge pages: memory comes page by page when it is first written,
        # which takes several times as long with small ones.
        room = np.empty(self._parts[-2].offset, np.uint8)
        states = {part.name: part.of(room) for part in self._states}
        if len(blocks) > 1:
            kv = download_kv(pool, slot.table, first, position)
        else:
            shape = (sum(config.full_attention), position - first, config.kv_heads, config.head_dim)
            keys, values = np.empty(shape, np.uint16), np.empty(shape, np.uint16)
            kv = tuple(zip(keys, values, strict=True))

        place = self._places_free()
        try:
            count = self._pieces.fill(place.table, slot.index, position, block, packing=True)
            self._device.upload(place.pieces, place.table)
            self._pieces.launch(place.pieces, count, place.packed, packing=True)
            ready = self._device.event()
            ready.record()
        except BaseException:
            self._device.synchronize()
            self._places.put(place)
            raise

        def launch(buffer: Buffer) -> Event:
            ended = self._device.event()
            with self._device.using(self._stream):
                ready.wait()
                for piece in _bus_pieces(len(place.packed)):
                    self._device.download(buffer["packed"][piece], place.packed[piece])
                ended.record()
            return ended

        def finish(buffer: Buffer, number: int, count: int) -> None:
            for part in self._states:
                some = _share(part.shape[0], number, count)
                to = states[part.name][some]
                to[...] = part.of(buffer["packed"])[some]
                _blank(part, to, position)
            if block is None:
                return
            skipped = first % BLOCK_ROWS
            for part, column in zip(self._parts[-2:], range(2), strict=True):
                tiles = part.of(buffer["packed"])
                for layer in range(number, len(kv), count):
                    rows = block_rows(tiles[layer], config.head_dim, values=part.name == "values")
                    kv[layer][column][...] = rows[skipped : skipped + position - first]

        return DeviceSnapshot(
            position,
            first,
            content_digest(slot.ids[:position], slot.positions(0, position)),
            states,
            kv,
            self._staging.bring(launch, finish, lambda: self._places.put(place)),
        )

    def put(self, slot: Slot, snapshot: DeviceSnapshot, table: tuple[int, ...]) -> None:
        """The copies are launched when it returns. Rows that the copy has not are left as they are."""
        assert isinstance(slot, DeviceSlot)
        position, first, states, kv = snapshot.position, snapshot.first, snapshot.states, snapshot.kv
        blocks = table[first // BLOCK_ROWS : -(-position // BLOCK_ROWS)]
        block = blocks[0] if len(blocks) == 1 and first % BLOCK_ROWS == 0 else None

        def fill(buffer: Buffer, number: int, count: int) -> None:
            for part in self._states:
                some = _share(part.shape[0], number, count)
                part.of(buffer["packed"])[some] = states[part.name][some]
            if block is None:
                return
            for part, column in zip(self._parts[-2:], range(2), strict=True):
                tiles = part.of(buffer["packed"])
                for layer in range(number, len(kv), count):
                    tiles[layer] = _tiles(kv[layer][column], part.name)

        place = self._places_free()

        def launch(buffer: Buffer) -> Event:
            count = self._pieces.fill(place.table, slot.index, position, block, packing=False)
            there, ended = self._device.event(), self._device.event()
            with self._device.using(self._stream):
                for piece in _bus_pieces(len(place.packed)):
                    self._device.upload(place.packed[piece], buffer["packed"][piece])
                self._device.upload(place.pieces, place.table)
                there.record()
            there.wait()
            self._pieces.launch(place.pieces, count, place.packed, packing=False)
            ended.record()
            return ended

        self._staging.send(fill, launch, lambda: self._places.put(place))
        if block is None:
            upload_kv(self._pool, table, first, kv)
        slot.advance(position, position, position // CHUNK_ROWS * CHUNK_ROWS, table)

    def _places_free(self) -> _Place:
        """A place where nothing is on its way; waits for one where there is none."""
        self._make_places()
        if self._places.empty():
            self._staging.hand_over()  # so that one becomes free
        return self._places.get()

    def holding(self) -> AbstractContextManager[None]:
        """Within the block copies that are taken are packed, and go on their way at its end."""
        return self._staging.holding()

    def _make_places(self) -> None:
        if self._placed:
            return
        self._placed = True
        if self._arrays is None:
            specs = copy_arrays(self._pool.config, 1)
            self._arrays = {spec.name: self._device.passing(spec.shape, spec.dtype) for spec in specs}
        for packed, pieces in zip(self._arrays["packed states"], self._arrays["pieces"], strict=True):
            self._places.put(_Place(packed, pieces, self._device.pinned(pieces.shape, np.uint8)))


def _bus_pieces(size: int) -> Iterator[slice]:
    """Of so many bytes."""
    for at in range(0, size, BUS_PIECE):
        yield slice(at, min(at + BUS_PIECE, size))


def _share(layers: int, number: int, count: int) -> slice:
    """Layers in a row that part ``number`` of ``count`` sees to."""
    return slice(layers * number // count, layers * (number + 1) // count)
