"""Encoded pictures: one encode however many ask, nobody's leaving costs another, and what makes room."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from luce.scheduling.image_cache import Asked, Encoded, ImageCache

A, B, C = b"a", b"b", b"c"


def test_many_ask_and_one_encode_serves_them() -> None:
    cache = ImageCache(100)
    assert cache.ask(A, 1) is Asked.QUEUED
    assert cache.ask(A, 2) is Asked.JOINED
    assert cache.next_encode() == A and not cache.more and cache.next_encode() is None
    assert cache.ask(A, 3) is Asked.JOINED
    assert cache.waiting(A) == (1, 2, 3)
    assert cache.encoded(A, "rows", 10) == Encoded((1, 2, 3), ())
    assert cache.ask(A, 4) is Asked.READY and cache.rows(A) == "rows"
    assert (cache.stats.queued, cache.stats.joins, cache.stats.hits, cache.stats.encoded) == (1, 2, 1, 1)


def test_the_first_to_ask_may_die() -> None:
    """In the queue and at work: the place in the queue and the work are nobody's in particular."""
    cache = ImageCache(100)
    for request in (1, 2):
        cache.ask(A, request)
    cache.ask(B, 3)
    cache.leave(1)
    assert cache.next_encode() == A, "its place is as it was"
    cache.ask(A, 4)
    cache.leave(2)
    assert cache.encoded(A, "rows", 10).waiting == (4,)
    cache.check_integrity()


def test_dead_work_is_not_begun_and_begun_work_is_kept() -> None:
    cache = ImageCache(100)
    cache.ask(A, 1)
    cache.ask(B, 1)
    cache.ask(C, 2)
    assert cache.next_encode() == A
    assert cache.leave(1) == ()
    assert cache.next_encode() == C, "nobody wants B any more"
    assert cache.encoded(A, "rows", 10) == Encoded((), ())
    assert cache.ask(A, 5) is Asked.READY
    assert cache.ask(B, 5) is Asked.QUEUED
    cache.check_integrity()


def test_whoever_comes_while_a_dead_requests_picture_is_encoded_joins() -> None:
    cache = ImageCache(100)
    cache.ask(A, 1)
    cache.next_encode()
    cache.leave(1)
    assert cache.ask(A, 2) is Asked.JOINED
    assert cache.encoded(A, "rows", 10).waiting == (2,)


def test_a_failure_is_told_to_those_who_wait_and_not_kept() -> None:
    cache = ImageCache(100)
    cache.ask(A, 1)
    cache.ask(A, 2)
    cache.ask(B, 1)
    cache.next_encode()
    assert cache.failed(A) == (1, 2)
    assert cache.waiting(A) == () and cache.waiting(B) == (1,)
    assert cache.ask(A, 2) is Asked.QUEUED, "tried again"
    assert [cache.next_encode(), cache.next_encode()] == [B, A]
    cache.check_integrity()


def test_what_is_needed_stays_and_what_was_needed_longest_ago_goes() -> None:
    cache = ImageCache(25)
    for digest in (A, B, C):
        cache.ask(digest, digest)
        cache.next_encode()
        assert cache.encoded(digest, digest.decode(), 10).evicted == ()
    assert cache.bytes == 30, "all are needed"
    assert cache.release(B, B) == ("b",)
    assert cache.release(A, A) == () and cache.release(C, C) == ()
    assert cache.ask(A, 9) is Asked.READY
    cache.release(A, 9)
    assert cache.evict_until(10) == ("c",) and cache.evict_until(0) == ("a",) and cache.evict_until(0) == ()
    assert cache.bytes == 0 and cache.stats.evicted == 3
    cache.check_integrity()


def test_a_picture_beyond_the_budget_does_not_push_out_the_others() -> None:
    cache = ImageCache(25)
    for digest, nbytes in ((A, 10), (B, 30)):
        cache.ask(digest, 1)
        cache.next_encode()
        cache.encoded(digest, digest.decode(), nbytes)
    assert cache.release(A, 1) == ("a",), "there is no room beside what is needed"
    assert cache.release(B, 1) == ("b",)
    cache.ask(A, 1)
    cache.next_encode()
    cache.encoded(A, "a", 10)
    cache.leave(1)
    cache.ask(B, 2)
    cache.next_encode()
    cache.leave(2)
    assert cache.encoded(B, "b", 30).evicted == ("b",)
    assert cache.ask(A, 3) is Asked.READY


def test_a_picture_twice_in_a_prompt_is_held_once() -> None:
    cache = ImageCache(100)
    assert cache.ask(A, 1) is Asked.QUEUED
    assert cache.ask(A, 1) is Asked.JOINED
    cache.next_encode()
    assert cache.encoded(A, "rows", 10).waiting == (1,)
    cache.release(A, 1)
    assert cache.evict_until(0) == ("rows",)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cache: cache.release(A, 2),
        lambda cache: cache.release(B, 1),
        lambda cache: cache.rows(A),
        lambda cache: cache.rows(B),
        lambda cache: cache.encoded(A, "rows", 1),
        lambda cache: cache.failed(A),
    ],
)
def test_wrong_calls_are_found_and_change_nothing(wrong: Callable[[ImageCache], object]) -> None:
    cache = ImageCache(100)
    cache.ask(A, 1)
    with pytest.raises(KeyError):
        wrong(cache)
    cache.check_integrity()
    assert cache.waiting(A) == (1,) and cache.more and not cache.stats.failed and not cache.stats.encoded
    cache.leave(1)
    assert cache.leave(1) == (), "who holds nothing may leave"


# -- against a model --------------------------------------------------------------------------------------------------


@attrs.define
class Naive:
    """Each picture is a row in one list: [digest, state, bytes, who holds it], those longest not needed first."""

    budget: int
    pictures: list[tuple[bytes, str, int, list[Hashable]]] = attrs.field(factory=list)

    def find(self, digest: bytes) -> tuple[bytes, str, int, list[Hashable]] | None:
        return next((one for one in self.pictures if one[0] == digest), None)

    def room(self) -> list[str]:
        evicted = []
        for one in list(self.pictures):
            total = sum(picture[2] for picture in self.pictures)
            if total > self.budget and one[1] == "ready" and not one[3]:
                self.pictures.remove(one)
                evicted.append(one[0].decode())
        return evicted

    def rest(self, one: tuple[bytes, str, int, list[Hashable]]) -> list[str]:
        self.pictures.remove(one)
        if one[2] > self.budget:
            return [one[0].decode()]
        self.pictures.append(one)
        return self.room()


class CacheAndModel(RuleBasedStateMachine):
    cache_class = ImageCache

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.cache_class(20)
        self.model = Naive(20)
        self.queue: list[bytes] = []

    @rule(digest=st.sampled_from([A, B, C]), request=st.integers(0, 2))
    def ask(self, digest: bytes, request: int) -> None:
        one = self.model.find(digest)
        asked = self.cache.ask(digest, request)
        if one is None:
            assert asked is Asked.QUEUED
            self.model.pictures.append((digest, "waiting", 0, [request]))
            self.queue.append(digest)
            return
        assert asked is (Asked.READY if one[1] == "ready" else Asked.JOINED)
        if request not in one[3]:
            one[3].append(request)

    @rule(request=st.integers(0, 2), one_only=st.booleans())
    def leave(self, request: int, one_only: bool) -> None:
        held = [one for one in self.model.pictures if request in one[3]]
        order = list(self.cache._held.get(request, ()))
        held.sort(key=lambda one: order.index(one[0]))
        held = held[:1] if one_only else held
        expected: list[str] = []
        for one in held:
            one[3].remove(request)
            if one[3]:
                continue
            if one[1] == "ready":
                expected += self.model.rest(one)
            elif one[1] == "waiting":
                self.model.pictures.remove(one)
                self.queue.remove(one[0])
        if not one_only:
            assert list(self.cache.leave(request)) == expected
        elif held:
            assert list(self.cache.release(held[0][0], request)) == expected

    @rule()
    def begin(self) -> None:
        digest = self.cache.next_encode()
        assert digest == (self.queue.pop(0) if self.queue else None)
        if digest is not None:
            self._become(digest, "encoding", 0)

    @rule(digest=st.sampled_from([A, B, C]), request=st.integers(0, 2), nbytes=st.sampled_from([5, 10, 25]))
    def serve(self, digest: bytes, request: int, nbytes: int) -> None:
        """A whole request's way: everything that waits is encoded."""
        self.ask(digest, request)
        while self.queue:
            self.begin()
        for one in [one for one in self.model.pictures if one[1] == "encoding"]:
            self._end(one[0], nbytes, well=True)

    @rule(data=st.data(), nbytes=st.sampled_from([5, 10, 25]), well=st.booleans())
    def end(self, data: st.DataObject, nbytes: int, well: bool) -> None:
        busy = [one[0] for one in self.model.pictures if one[1] == "encoding"]
        if busy:
            self._end(data.draw(st.sampled_from(busy)), nbytes, well)

    def _end(self, digest: bytes, nbytes: int, well: bool) -> None:
        one = self.model.find(digest)
        assert one is not None
        if not well:
            self.model.pictures.remove(one)
            assert list(self.cache.failed(digest)) == one[3]
            return
        one = self._become(digest, "ready", nbytes)
        expected = self.model.room() if one[3] else self.model.rest(one)
        landed = self.cache.encoded(digest, digest.decode(), nbytes)
        assert (list(landed.waiting), list(landed.evicted)) == (one[3], expected)

    def _become(self, digest: bytes, state: str, nbytes: int) -> tuple[bytes, str, int, list[Hashable]]:
        one = self.model.find(digest)
        assert one is not None
        changed = (digest, state, nbytes, one[3])
        self.model.pictures[self.model.pictures.index(one)] = changed
        return changed

    @invariant()
    def same(self) -> None:
        self.cache.check_integrity()
        assert self.cache.more == bool(self.queue)
        assert self.cache.bytes == sum(one[2] for one in self.model.pictures)
        for digest in (A, B, C):
            one = self.model.find(digest)
            assert self.cache.waiting(digest) == (tuple(one[3]) if one else ())


TestCacheAndModel = CacheAndModel.TestCase
TestCacheAndModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class OwnersJob(ImageCache):
    """A planted defect: the encode is the job of who asked first, and dies with it."""

    def release(self, digest: bytes, request: Hashable) -> tuple[object, ...]:
        first = next(iter(self.waiting(digest)), None)
        evicted = super().release(digest, request)
        if request == first:
            self._queue.pop(digest, None)
        return evicted


class NewestFirst(ImageCache):
    """A planted defect: what was needed last goes first."""

    def evict_until(self, budget: int) -> tuple[object, ...]:
        if self.bytes > budget:
            for digest in reversed(list(self._idle)):
                self._idle.move_to_end(digest)
        return super().evict_until(budget)


class CountsOnce(ImageCache):
    """A planted defect: an encode that nobody waits for any more is thrown away, and its bytes are not."""

    def encoded(self, digest: bytes, rows: object, nbytes: int) -> Encoded:
        landed = super().encoded(digest, rows, nbytes)
        if not landed.waiting and digest in self._idle:
            del self._idle[digest], self._pictures[digest]
        return landed


@pytest.mark.parametrize("defect", [OwnersJob, NewestFirst, CountsOnce])
def test_planted_defects_are_found(defect: type[ImageCache]) -> None:
    machine = type("Defective", (CacheAndModel,), {"cache_class": defect})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine,
            settings=settings(
                TestCacheAndModel.settings,
                max_examples=500,
                phases=[Phase.generate],
                database=None,
                derandomize=True,
            ),
        )
