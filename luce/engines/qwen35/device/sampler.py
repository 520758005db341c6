"""The sampler on a device: its memory and its three launches (kernels/sampler.cu).

Tokens are those of :class:`luce.sampling.sampler.Sampler` for equal logits; ``kernels/sampler.h`` says where the last
bit of a logarithm may decide otherwise.
"""

from __future__ import annotations

import numpy as np

from luce.compute.device import Array, Device

__all__ = ["DeviceSampler"]

CHUNK_IDS = 2048
GROUPS, WARPS = 32, 8
"""Groups of a chunk, and warps."""
PART_BYTES, BETTER_BYTES = 32, 24
BLOCK_CHUNKS = 8
"""Most chunks of a block of a scan."""
SCAN_THREADS, SCAN_SHARED = 256, 256 + BLOCK_CHUNKS * 1024
SCAN_RESIDENT = 4
"""Blocks of a scan that a multiprocessor holds at once: rows are cut into no more pieces than keep all of them busy."""
FINISH_THREADS, FINISH_SHARED = 512, 512 + 2048 * 16 + 1024 * 12


class DeviceSampler:
    """Draws for up to ``max_samples`` rows of logits a pass; each of ``num_slots`` slots has its own counts."""

    def __init__(self, device: Device, num_ids: int, num_slots: int, max_samples: int) -> None:
        """``num_ids``: ids that may be drawn, those of the tokenizer."""
        self.chunks = -(-num_ids // CHUNK_IDS)
        self.num_ids = num_ids
        self._resident = SCAN_RESIDENT * device.multiprocessors
        self.counts = device.zeros((num_slots, num_ids), np.uint32)
        self.counted = device.zeros(num_slots, np.int32)
        self._parts = device.empty((max_samples, self.chunks * PART_BYTES), np.uint8)
        self._groups = device.empty((max_samples, 2, self.chunks * GROUPS), np.float32)
        self._sums = device.empty((max_samples, self.chunks * WARPS, 2), np.float32)
        self._better = device.empty((max_samples, 3), np.uint64)
        names = ("scan", "weights", "finish", "clear")
        self._scan, self._weights, self._finish, self._clear = (
            device.kernel("sampler.cu", f"sampler_{name}") for name in names
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All of its memory."""
        return self.counts, self.counted, self._parts, self._groups, self._sums, self._better

    @staticmethod
    def num_bytes(num_ids: int, num_slots: int, max_samples: int) -> int:
        """Device memory that one takes."""
        chunks = -(-num_ids // CHUNK_IDS)
        return num_slots * (num_ids + 1) * 4 + max_samples * (
            chunks * (PART_BYTES + 8 * GROUPS + 8 * WARPS) + BETTER_BYTES
        )

    def open(self, slot: int) -> None:
        """Forget what was counted in a slot. Before its first draw with penalties; the history tells the rest."""
        args = [self.counts, self.counted, np.int32(slot), np.int32(self.num_ids)]
        self._clear((self.chunks, 1, 1), SCAN_THREADS, args)

    def launch(
        self,
        header: Array,
        samples: Array,
        lists: Array,
        masks: Array,
        history: Array,
        logits: Array,
        drawn: Array,
        most: int,
        *,
        early: bool = False,
    ) -> None:
        """Queue the draws of a pass: of its ``header.samples``, at most ``most`` (a bucket).

        Args:
            header, samples, lists: the pass's PASS, SAMPLE and ADJUST records, as bytes.
            masks: uint32 [.][ceil(num_ids / 32)], no bit set past the last id.
            history: int32 [slots][positions]; gets the tokens.
            logits: float32 [most][width], a row for each sample in their order; width a multiple of 4, >= num_ids.
            drawn: DRAWN records, as bytes.
        """
        stride, ids, ahead = np.int32(logits.shape[1]), np.int32(self.num_ids), np.int32(history.shape[1])
        assert logits.shape[1] % 4 == 0 and logits.shape[1] >= self.num_ids
        blocks = max(-(-self.chunks // BLOCK_CHUNKS), min(self.chunks, self._resident // most))
        grid = (blocks, most, 1)
        plan = [header, samples, lists, masks]
        row = [logits, stride, ids]
        kept = [self._parts, self._groups, self._sums, self._better]
        self._scan(
            grid,
            SCAN_THREADS,
            [*plan, history, ahead, self.counts, self.counted, *row, *kept],
            shared=SCAN_SHARED,
            early=early,
        )
        self._weights(
            grid,
            SCAN_THREADS,
            [*plan, self.counts, *row, self._parts, self._better],
            shared=SCAN_SHARED,
            early=early,
        )
        self._finish(
            (most, 1, 1),
            FINISH_THREADS,
            [*plan, history, ahead, self.counts, self.counted, *row, np.int32(blocks), *kept, drawn],
            shared=FINISH_SHARED,
            early=early,
        )
