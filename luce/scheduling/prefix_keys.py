"""What a prompt is called in caches: digests of its prefixes that are equal exactly when their content is.

Content is the token ids and, inside an image span, the picture instead of the pad id: its digest (decoded pixels, size,
mode, every preprocessing option), its number of rows and the row's place among them. So the same picture at the same
place is the same content and any other one is not, and two pictures of one prompt have nothing to do with each other.
Before all content stands a namespace: other weights, another adapter or another salt have no prefix in common.

Blocks are hashed in a chain: the digest of a block covers everything before it, so one look at a block's digest
compares whole prefixes. Pure; appending tokens hashes only the blocks that they complete.
"""

from __future__ import annotations

import copy
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import blake2b

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.seam import ImageSpan

__all__ = ["Counts", "PrefixKeys", "prefix_namespace"]

DIGEST_SIZE = 32
"""Bytes. Prompts come from strangers: finding two with one digest must be out of anybody's reach."""


@attrs.frozen
class Counts:
    """What stands in a prefix."""

    tokens: int
    images: int
    """Pictures that end in it."""


def prefix_namespace(model: bytes, adapter: bytes = b"", salt: bytes = b"") -> bytes:
    """The namespace of one model (its fingerprint), adapter and cache salt: different for different triples."""
    digest = blake2b(b"luce prefix namespace 1", digest_size=DIGEST_SIZE)
    for part in (model, adapter, salt):
        digest.update(struct.pack("<q", len(part)) + part)
    return digest.digest()


class PrefixKeys:
    """The keys of one sequence. It only grows: what was said of a position stays true.

    Args:
        token_ids: int32 [T], inside image spans whatever stands there.
        block_size: tokens in a KV block.
        namespace: see :func:`prefix_namespace`; sequences of different ones never have a key in common.
        spans: where pictures stand, in order.
        image_digests: full digest of each picture; ``span.image`` indexes them.

    Raises:
        ValueError: ids are negative or not one row, or spans overlap, leave the prompt or name no digest.
    """

    def __init__(
        self,
        token_ids: npt.NDArray[np.int32],
        block_size: int,
        namespace: bytes,
        spans: Sequence[ImageSpan] = (),
        image_digests: Sequence[bytes] = (),
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block has at least one token, not {block_size}")
        self.block_size = block_size
        self._content = _checked(token_ids).copy()
        self._length = len(self._content)
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._pictures: list[bytes] = []
        for span in spans:
            self._place(span, image_digests)
        root = struct.pack("<q", block_size) + namespace
        self._chain = [blake2b(b"luce prefix 1" + root, digest_size=DIGEST_SIZE).digest()]
        self._whole = struct.pack("<i", block_size)
        self._hash_blocks()

    def copy(self) -> PrefixKeys:
        """The same keys, of a sequence that goes on in another way. Hashes nothing."""
        twin = copy.copy(self)
        twin._content = self._content[: self._length].copy()
        twin._chain = self._chain.copy()
        return twin

    def __len__(self) -> int:
        """Tokens."""
        return self._length

    def extend(self, token_ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Committed tokens follow. An image pad among them is a token like any other.

        Raises:
            ValueError: an id is negative; nothing has changed.
        """
        if isinstance(token_ids, np.ndarray):
            token_ids = _checked(token_ids)
        elif len(token_ids) and (least := min(token_ids)) < 0:  # for a few ids cheaper than an array
            raise ValueError(f"token id {least} is negative")
        length = self._length + len(token_ids)
        if length > len(self._content):
            grown = np.empty(max(length, 2 * self._length, 64), np.int32)
            grown[: self._length] = self._content[: self._length]
            self._content = grown
        self._content[self._length : length] = token_ids
        self._length = length
        self._hash_blocks()

    # -- keys ---------------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Whole blocks."""
        return len(self._chain) - 1

    def block_digests(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Chain digests of the whole blocks ``start`` to ``stop``; each covers everything up to its block's end."""
        return self._chain[1 + start : None if stop is None else 1 + stop]

    def boundary(self, blocks: int) -> bytes:
        """Digest of the prefix of ``blocks`` whole blocks; of none, what all sequences of the namespace start with."""
        return self._chain[blocks]

    def digest(self, position: int) -> bytes:
        """Digest of the prefix of ``position`` tokens, 0 to T; at a block boundary the chain digest."""
        assert 0 <= position <= self._length, (position, self._length)
        blocks, rest = divmod(position, self.block_size)
        if not rest:
            return self._chain[blocks]
        start = position - rest
        content = self._content[start:position].tobytes()
        return _link(
            self._chain[blocks], struct.pack("<i", rest) + content + self._pictures_in(start, position)
        )

    def counts(self, position: int) -> Counts:
        """What stands in the prefix of ``position`` tokens."""
        return Counts(position, bisect_right(self._ends, position))

    # -- positions ----------------------------------------------------------------------------------------------------

    @property
    def image_ends(self) -> Sequence[int]:
        """Positions after the last row of each picture, ascending."""
        return self._ends

    def splits_image(self, position: int) -> bool:
        """Does a picture begin before ``position`` and end after it?"""
        return self.before_image(position) != position

    def before_image(self, position: int) -> int:
        """``position``, or where the picture begins that it would split."""
        span = bisect_left(self._starts, position) - 1
        return self._starts[span] if span >= 0 and position < self._ends[span] else position

    def may_end_hit(self, position: int) -> bool:
        """May what is taken from a cache end here: between pictures, with a token left to compute?"""
        return 0 < position < self._length and not self.splits_image(position)

    # -- for trees of prefixes ----------------------------------------------------------------------------------------

    def element(self, position: int) -> int | bytes:
        """Content at ``position``: a token id, or bytes that name a picture's row."""
        value = int(self._content[position])
        if value >= 0:
            return value
        span = bisect_right(self._starts, position) - 1
        return self._pictures[span] + struct.pack("<i", -1 - value)

    def common_prefix(self, other: PrefixKeys, start: int, stop: int) -> int:
        """Tokens that both have in common, at most ``stop``. The first ``start`` are known to be equal."""
        stop = min(stop, self._length, other._length)
        low, high = start // self.block_size, stop // self.block_size
        while low < high:  # equal chain digests are equal prefixes, so one may bisect
            middle = (low + high + 1) // 2
            if self._chain[middle] == other._chain[middle]:
                low = middle
            else:
                high = middle - 1
        first = max(start, low * self.block_size)
        last = max(first, min(stop, (low + 1) * self.block_size))
        different = np.flatnonzero(self._content[first:last] != other._content[first:last])
        if len(different):
            last = first + int(different[0])
        # Equal places in pictures are equal rows only in equal pictures.
        for span in range(bisect_right(self._ends, first), bisect_left(self._starts, last)):
            row = max(self._starts[span], first)
            if self.element(row) != other.element(row):
                return row
        return last

    # -- inside -------------------------------------------------------------------------------------------------------

    def _place(self, span: ImageSpan, digests: Sequence[bytes]) -> None:
        end = span.start + span.length
        if span.start < (self._ends[-1] if self._ends else 0) or span.length < 1 or end > self._length:
            raise ValueError(
                f"{span} of {self._length} tokens: spans are in order, not empty, and do not overlap"
            )
        if not 0 <= span.image < len(digests) or not digests[span.image]:
            raise ValueError(f"{span} has no digest among {len(digests)}")
        # Ids are not negative, so no token looks like a picture's row.
        self._content[span.start : end] = -1 - np.arange(span.length, dtype=np.int32)
        self._starts.append(span.start)
        self._ends.append(end)
        digest = digests[span.image]
        self._pictures.append(struct.pack("<2q", len(digest), span.length) + digest)

    def _hash_blocks(self) -> None:
        done, size = len(self._chain) - 1, self.block_size
        whole = self._length // size
        if done == whole:
            return
        data = self._content[done * size : whole * size].tobytes()
        digest, head, width = self._chain[-1], self._whole, 4 * size
        pictures = self._pictures_of_blocks(done, whole) if self._starts else {}
        for block in range(done, whole):
            at = (block - done) * width
            digest = _link(digest, head + data[at : at + width] + pictures.get(block, b""))
            self._chain.append(digest)

    def _pictures_of_blocks(self, start: int, stop: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        size = self.block_size
        for span in range(bisect_right(self._ends, start * size), len(self._starts)):
            first, last = self._starts[span] // size, (self._ends[span] - 1) // size
            for block in range(max(first, start), min(last + 1, stop)):
                found[block] = found.get(block, b"") + self._pictures[span]
        return found

    def _pictures_in(self, start: int, stop: int) -> bytes:
        """Names of the pictures with rows there, in order: together with the content it says whose row each is."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, stop)
        return b"".join(self._pictures[first:last])


def _link(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=DIGEST_SIZE).digest()


def _checked(token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    ids = np.asarray(token_ids, "<i4")
    if ids.ndim != 1:
        raise ValueError(f"token ids are one row, not an array of shape {ids.shape}")
    if len(ids) and int(ids.min()) < 0:
        raise ValueError(f"token id {int(ids.min())} is negative")
    return ids
