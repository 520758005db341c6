from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.scheduling.digest_index import DigestIndex


def test_the_longest_run_of_leading_digests() -> None:
    index = DigestIndex(8)
    for block, digest in ((5, b"a"), (2, b"b"), (7, b"d")):
        index.add(block, digest)
    assert index.find([b"a", b"b", b"c", b"d"]).tolist() == [5, 2]
    assert index.find([b"x", b"a"]).tolist() == []
    assert index.find(iter([b"d"])).tolist() == [7]
    index.check([2, 5, 7])


def test_the_first_block_has_the_digest_until_it_goes() -> None:
    index = DigestIndex(8)
    for block in (6, 3, 1, 4):
        index.add(block, b"a")
    assert index.find([b"a"]).tolist() == [6]
    assert [index.first(block) for block in (6, 3, 1, 4)] == [6] * 4
    assert index.duplicate.tolist() == [0, 1, 0, 1, 1, 0, 0, 0]
    index.drop([1])
    index.drop([6])
    assert index.find([b"a"]).tolist() == [3]
    assert index.duplicate.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    index.check([3, 4])
    index.drop([3, 0, 4])
    assert index.find([b"a"]).tolist() == []
    index.check([])
    index.add(6, b"a")
    index.check([6])


def _lost_digest(index: DigestIndex) -> None:
    index._digests[1] = None


def _wrong_first(index: DigestIndex) -> None:
    index._first[b"a"] = 2


def _lost_duplicate(index: DigestIndex) -> None:
    index._later[b"a"].remove(2)


def _unmarked(index: DigestIndex) -> None:
    index.duplicate[2] = 0


def _marked(index: DigestIndex) -> None:
    index.duplicate[7] = 1


def _orphans(index: DigestIndex) -> None:
    index.drop([3])
    index._first.pop(b"a")
    index._digests[1] = None


@pytest.mark.parametrize("spoil", [_lost_digest, _wrong_first, _lost_duplicate, _unmarked, _marked, _orphans])
def test_check_finds_what_is_spoilt(spoil: Callable[[DigestIndex], None]) -> None:
    index = DigestIndex(8)
    for block, digest in ((1, b"a"), (2, b"a"), (3, b"b")):
        index.add(block, digest)
    index.check([1, 2, 3])
    hashed = [2] if spoil is _orphans else [1, 2, 3]
    spoil(index)
    with pytest.raises(AssertionError, match="digest"):
        index.check(hashed)


@pytest.mark.parametrize(("hashed", "named"), [([1, 3], 2), ([1, 2, 3, 5], 5), ([1, 2, 5], 3)])
def test_check_names_the_first_block_that_should_have_no_digest_or_one(hashed: list[int], named: int) -> None:
    index = DigestIndex(8)
    for block, digest in ((1, b"a"), (2, b"a"), (3, b"b")):
        index.add(block, digest)
    with pytest.raises(
        AssertionError, match=f"block {named} has a digest and no hashed state, or the reverse"
    ):
        index.check(hashed)
