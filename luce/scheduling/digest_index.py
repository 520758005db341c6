"""Which block holds the content with a given chain digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["DigestIndex"]


class DigestIndex:
    """Digests of blocks. Of several blocks with one digest, look-ups find the one that had it first.

    Two requests that compute the same prefix at the same time have a block each for it. The later one is a duplicate:
    it stays its holder's and takes over when the first one is given up, and nothing else is to be gained from it.

    Args:
        num_blocks: blocks are 0 <= block < num_blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.duplicate = np.zeros(num_blocks, np.uint8)
        """uint8 (num_blocks,): 1 where an earlier block has the same digest."""
        self._digests: list[bytes | None] = [None] * num_blocks
        self._first: dict[bytes, int] = {}
        self._later: dict[bytes, list[int]] = {}
        """Duplicates in the order in which they came."""

    def find(self, digests: Iterable[bytes]) -> NDArray[np.intp]:
        """The blocks of the longest run of leading digests that are all known: intp (n,)."""
        found: list[int] = []
        for digest in digests:
            block = self._first.get(digest)
            if block is None:
                break
            found.append(block)
        return np.array(found, np.intp)

    def first(self, block: int) -> int:
        """The block that look-ups find for the digest of ``block``: itself, unless it is a duplicate."""
        digest = self._digests[block]
        assert digest is not None, block
        return self._first[digest]

    def add(self, block: int, digest: bytes) -> None:
        """``block``, which has no digest, gets this one."""
        assert self._digests[block] is None, block
        self._digests[block] = digest
        if self._first.setdefault(digest, block) != block:
            self._later.setdefault(digest, []).append(block)
            self.duplicate[block] = 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Forgets the digests of ``blocks``, where they have one."""
        for block in blocks:
            digest = self._digests[block]
            if digest is None:
                continue
            self._digests[block] = None
            later = self._later.get(digest)
            if later is None:
                del self._first[digest]
                continue
            if self.duplicate[block]:
                later.remove(block)
                self.duplicate[block] = 0
            else:
                self._first[digest] = later.pop(0)
                self.duplicate[self._first[digest]] = 0
            if not later:
                del self._later[digest]

    def check(self, hashed: Sequence[int]) -> None:
        """Raises AssertionError unless exactly the blocks ``hashed`` have digests, and the maps agree. Linear."""
        known = {block: digest for block in hashed if (digest := self._digests[block]) is not None}
        if len(known) != len(hashed) or len(known) + self._digests.count(None) != len(self._digests):
            having = {block for block, digest in enumerate(self._digests) if digest is not None}
            wrong = min(having ^ set(hashed))
            raise AssertionError(f"block {wrong} has a digest and no hashed state, or the reverse")
        entries = [(block, digest, 0) for digest, block in self._first.items()]
        entries += [(block, digest, 1) for digest, blocks in self._later.items() for block in blocks]
        for block, digest, duplicate in entries:
            if known.pop(block, None) != digest or self.duplicate[block] != duplicate:
                raise AssertionError(f"block {block} is not what the index says of digest {digest.hex()}")
        if known:
            raise AssertionError(f"block {min(known)} has a digest that the index does not know")
        if set(self._later) - set(self._first):
            raise AssertionError("a digest has duplicates and no first block")
        if int(self.duplicate.sum()) != sum(map(len, self._later.values())):
            raise AssertionError("a block without a digest is marked as a duplicate")
