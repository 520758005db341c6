"""The index in use: hits, captures, room, and the chats of reported faults at the level of keys and entries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest

import luce.scheduling.prefix_store as store_module
from luce.charts.interpreter import Step
from luce.errors import IllegalEvent
from luce.scheduling.capture_points import anchor_point, capture_points
from luce.scheduling.eviction_order import EvictionOrder, Rank, rank
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_index import Eviction, PrefixIndex
from luce.scheduling.prefix_keys import Counts, PrefixKeys
from tests.scheduling.prompts import Part, keys, text

A, B = (b"a" * 32, 6), (b"b" * 32, 6)


def store(index: PrefixIndex, sequence: PrefixKeys, position: int, now: int = 0, **more: object) -> Entry:
    """A captured entry of 10 bytes on the device."""
    anchor = bool(more.pop("anchor", False))
    entry = index.begin(sequence, position, now, anchor=anchor, device_bytes=10)
    assert entry is not None
    index.filled(entry, f"state {position}", **more)  # type: ignore[arg-type]
    return entry


def names(evictions: list[Eviction]) -> list[int]:
    return [one.entry.position for one in evictions]


# -- look-ups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_the_deepest_entry_wherever_it_lies_in_a_block(block_size: int) -> None:
    index = PrefixIndex(block_size)
    prompt = text(300)
    sequence = keys(prompt, block_size)
    for position in (7, 16, 100, 128, 130, 200):
        store(index, sequence, position)
    for length, hit in [(7, None), (8, 7), (16, 7), (17, 16), (128, 100), (129, 128), (131, 130), (300, 200)]:
        found = index.lookup(keys(prompt[:length], block_size))
        assert (found.position if found else None) == hit
    other = keys([*prompt[:129], 0, *prompt[130:]], block_size)
    found = index.lookup(other)
    assert found is not None and found.position == 128
    assert index.lookup(sequence, limit=127) is not None
    assert index.lookup(sequence, limit=127).position == 100  # type: ignore[union-attr]
    assert index.lookup(keys(prompt, block_size, b"another salt")) is None


def test_only_what_is_filled_is_found_and_nothing_is_captured_twice() -> None:
    index, sequence = PrefixIndex(4), keys(text(20))
    entry = index.begin(sequence, 9, 1)
    assert entry is not None and index.state(entry) == "building"
    assert index.lookup(sequence) is None
    assert index.begin(keys(text(9)), 9, 2) is None, "another request, while it is being captured"
    index.filled(entry, "state")
    assert index.lookup(sequence) is entry
    assert index.begin(sequence, 9, 3) is None
    again = index.begin(sequence, 10, 3)
    assert again is not None
    index.failed(again)
    assert index.begin(sequence, 10, 4) is not None
    assert (index.stats.captures, index.stats.failed_captures) == (1, 1)


def test_a_hit_locks_and_counts() -> None:
    index, sequence = PrefixIndex(4), keys(text(20))
    entry = store(index, sequence, 9)
    index.miss(1)
    assert index.hit(entry, sequence, 2) and index.hit(entry, sequence, 3)
    assert index.state(entry) == "in_use"
    assert not index.evict(entry) and names(index.evict_until(device_bytes=0)) == []
    assert not index.unlock(entry) and index.state(entry) == "in_use"
    assert not index.unlock(entry) and index.state(entry) == "ready"
    assert (index.stats.hits, index.stats.hit_tokens, index.stats.misses) == (2, 18, 1)
    with pytest.raises(AssertionError, match="more often"):
        index.unlock(entry)
    assert index.evict(entry) and not len(index) and not index.device_bytes
    assert index.stats.evictions == 1


def test_illegal_events_change_nothing() -> None:
    index, sequence = PrefixIndex(4), keys(text(20))
    entry = store(index, sequence, 9, demoted_bytes=7)
    for event in (
        lambda: index.filled(entry, "other", device_bytes=99),
        lambda: index.failed(entry),
        lambda: index.demoted(entry, "other", 99),
        lambda: index.promoted(entry, "other"),
        lambda: index.copy_failed(entry),
    ):
        with pytest.raises(IllegalEvent):
            event()
        assert entry.snapshot == "state 9" and (index.device_bytes, index.host_bytes) == (10, 0)
        index.check_integrity()
    assert index.stats.captures == 1 and index.stats.failed_captures == index.stats.failed_copies == 0


def test_the_event_stream_has_every_step() -> None:
    steps: list[Step] = []
    index, sequence = PrefixIndex(4, observer=steps.append), keys(text(20))
    entry = store(index, sequence, 9)
    index.hit(entry, sequence, 1)
    index.unlock(entry)
    index.evict(entry)
    assert [step.event for step in steps] == ["filled", "lock", "unlock", "evict"]


# -- what is broken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [Counts(8, 1), Counts(9, 0), Counts(9, 2)])
def test_counts_are_compared_on_every_hit(counts: Counts) -> None:
    """A state that says it holds something else than its prompt is not used, and its prompt hits the next one."""
    index, sequence = PrefixIndex(4), keys([1, A, *text(20)])
    assert sequence.counts(9) == Counts(9, 1)
    shallow = store(index, sequence, 7)
    bad = store(index, sequence, 9, hold="blocks", counts=counts)
    assert index.lookup(sequence) is bad
    assert not index.hit(bad, sequence, 1)
    assert index.state(bad) == "gone" and bad.hold == "blocks", "its holder gives them back"
    assert index.lookup(sequence) is shallow and index.hit(shallow, sequence, 1)
    assert (index.stats.mismatches, index.stats.broken, index.stats.hits) == (1, 1, 1)
    index.check_integrity()


def test_what_cannot_be_restored_is_found_by_nobody_and_goes_with_its_last_reader() -> None:
    index, sequence = PrefixIndex(4), keys(text(20))
    entry = store(index, sequence, 9)
    assert index.hit(entry, sequence, 1) and index.hit(entry, sequence, 2)
    assert not index.broken(entry)
    assert index.lookup(sequence) is None
    assert index.begin(sequence, 9, 3) is None, "not before it is gone"
    assert not index.broken(entry), "the other reader finds out, too"
    assert not index.unlock(entry)
    assert index.unlock(entry), "gone: give back what it holds"
    assert not len(index)
    assert index.begin(sequence, 9, 3) is not None
    index.check_integrity()


# -- room -------------------------------------------------------------------------------------------------------------


def test_branches_nobody_came_back_to_go_from_their_ends() -> None:
    index = PrefixIndex(4)
    root = text(10)
    old, new = keys([*root, *text(30, start=300)]), keys([*root, *text(30, start=600)])
    for position in (10, 20, 30, 40):
        store(index, old, position, 1)
    store(index, new, 30, 50)
    assert names(index.evict_until(device_bytes=20)) == [40, 30, 20]
    assert index.lookup(old) is not None and index.lookup(old).position == 10  # type: ignore[union-attr]
    assert names(index.evict_until(device_bytes=10)) == [10], "nobody shares it any more"


def test_what_is_shared_stays_longer_than_the_ends_of_chats() -> None:
    index = PrefixIndex(4)
    root = text(10)
    store(index, keys(root), 10, 1)
    chats = [keys([*root, *text(30, start=300 * chat)]) for chat in range(1, 4)]
    for now, chat in enumerate(chats, 2):
        store(index, chat, 25, now)
    assert names(index.evict_until(device_bytes=20)) == [25, 25]
    found = index.lookup(chats[0])
    assert found is not None and found.position == 10
    assert index.lookup(chats[2]).position == 25  # type: ignore[union-attr]


def test_many_hits_protect_until_they_are_long_ago() -> None:
    index = PrefixIndex(4)
    often, other = keys(text(20)), keys(text(20, start=500))
    entry = store(index, often, 9, 1)
    for now in (2, 3, 4):
        index.hit(entry, often, now)
        index.unlock(entry)
    assert rank(entry) is Rank.HOT
    for now in range(5, 9):
        store(index, other, now, now)
    assert names(index.evict_until(device_bytes=10)) == [5, 6, 7, 8], "and 9 stays"
    index.miss(4 + 8 * 3 + 1)
    for now in (10, 11):
        store(index, other, now, now)
    index.evict_until(device_bytes=20)
    assert index.lookup(often) is None and len(index) == 2, "cold again, and the oldest end"


def test_blocks_are_freed_as_their_pool_counts_them() -> None:
    """Dropping one of two entries that hold the same blocks frees nothing; only the pool knows."""
    index, sequence = PrefixIndex(4), keys(text(40))
    for position in (8, 20, 33):
        store(index, sequence, position, hold=range(-(-position // 4)))
    held = [set(entry.hold) for entry in index]  # type: ignore[call-overload]

    def freed(eviction: Eviction) -> int:
        before = set.union(*held)
        held.remove(set(eviction.entry.hold))  # type: ignore[call-overload]
        return len(before - set().union(*held))

    assert names(index.evict_until(blocks=3, freed=freed)) == [8, 20, 33]
    assert held == []
    assert names(index.evict_until(blocks=1, freed=freed)) == []


def test_nothing_goes_for_a_newcomer_that_cannot_fit() -> None:
    index, sequence = PrefixIndex(4), keys(text(40))
    store(index, sequence, 8)
    huge = index.begin(sequence, 20, 1, device_bytes=50)
    assert index.evict_until(device_bytes=40, newcomer=huge) == []
    assert index.device_bytes == 60


# -- host memory ------------------------------------------------------------------------------------------------------


def test_to_host_memory_and_back() -> None:
    index, sequence = PrefixIndex(4), keys(text(40))
    entry = store(index, sequence, 20, hold="blocks", demoted_bytes=25)
    (made,) = index.evict_until(device_bytes=0, host_bytes=30, demote=True)
    assert made == Eviction(entry, demote=True) and index.state(entry) == "demoting"
    assert (index.device_bytes, index.leaving_bytes, index.host_bytes) == (10, 10, 25)
    assert index.evict_until(device_bytes=0, host_bytes=30, demote=True) == [], "it is leaving already"
    assert index.lookup(sequence) is None
    index.demoted(entry, "copy")
    assert (index.device_bytes, index.leaving_bytes, index.host_bytes) == (0, 0, 25)
    assert (entry.snapshot, entry.hold) == ("copy", None)
    assert index.lookup(sequence) is entry
    assert index.hit(entry, sequence, 1) and index.state(entry) == "promoting"
    assert (index.device_bytes, index.host_bytes) == (10, 25)
    assert index.hit(entry, sequence, 2), "another one waits for the same copy"
    index.promoted(entry, "state again", "other blocks")
    assert (index.device_bytes, index.host_bytes) == (10, 0)
    assert not index.unlock(entry) and not index.unlock(entry) and index.state(entry) == "ready"
    assert (index.stats.demotions, index.stats.promotions, index.stats.evictions) == (1, 1, 0)
    index.check_integrity()


def test_copies_that_fail() -> None:
    index, sequence = PrefixIndex(4), keys(text(40))
    entry = store(index, sequence, 20, demoted_bytes=25)
    index.evict_until(device_bytes=0, host_bytes=30, demote=True)
    assert not index.copy_failed(entry)
    assert index.state(entry) == "ready" and index.lookup(sequence) is entry
    assert (index.device_bytes, index.leaving_bytes, index.host_bytes) == (10, 0, 0)
    index.evict_until(device_bytes=0, host_bytes=30, demote=True)
    index.demoted(entry, "copy")
    assert index.hit(entry, sequence, 1)
    assert not index.copy_failed(entry)
    assert index.lookup(sequence) is None
    assert index.unlock(entry) and not len(index)
    assert (index.device_bytes, index.host_bytes, index.stats.failed_copies) == (0, 0, 2)


def test_host_memory_keeps_what_is_worth_more() -> None:
    """What is in host memory makes room for what is worth more only; else the newcomer there is dropped."""
    index = PrefixIndex(4)
    chats = [keys(text(40, start=1000 * chat)) for chat in range(1, 4)]
    first, second, third = (
        store(index, chat, 20, now, demoted_bytes=25) for now, chat in enumerate(chats, 1)
    )
    index.touch(first, 4)
    assert index.evict_until(device_bytes=20, host_bytes=25, demote=True) == [Eviction(second, demote=True)]
    index.demoted(second, "copy")
    made = index.evict_until(device_bytes=10, host_bytes=25, demote=True)
    assert made == [Eviction(second, demote=False), Eviction(third, demote=True)], "the older end goes"
    index.demoted(third, "copy")
    fixed = store(index, keys(text(40, start=9000)), 20, 5)
    assert names(index.evict_until(host_bytes=0)) == [20] and index.state(third) == "gone"
    assert {entry.number for entry in index} == {first.number, fixed.number}, "they take no host memory"
    assert index.evict_until(device_bytes=10, host_bytes=100, demote=True) == [Eviction(first, demote=True)]
    assert index.evict_until(device_bytes=0, host_bytes=100, demote=True) == [Eviction(fixed, demote=False)]


def test_states_that_engines_keep_in_host_memory_only() -> None:
    index, sequence = PrefixIndex(4), keys(text(40))
    for position in (8, 20, 33):
        entry = index.begin(sequence, position, position, host_bytes=10)
        assert entry is not None
        index.filled(entry, "state")
    assert names(index.evict_until(host_bytes=10)) == [8, 20]


# -- chats ------------------------------------------------------------------------------------------------------------


@attrs.define
class Cache:
    """What a server does with the index: hit, compute, capture where there is room. Tokens are counted, not made."""

    slots: int
    ends: bool = True
    """Ends of answers are captured, too."""
    index: PrefixIndex = attrs.field(factory=lambda: PrefixIndex(16))
    now: int = 0

    def request(self, prompt: list[Part], answer: list[Part], answer_start: int | None) -> int:
        """Serves it; returns how many tokens came from the cache."""
        self.now += 1
        sequence = keys(prompt, 16)
        found = self.index.lookup(sequence)
        start = 0
        if found is None:
            self.index.miss(self.now)
        else:
            assert self.index.hit(found, sequence, self.now)
            start = found.position
            self.index.unlock(found)
        anchor = anchor_point(sequence, answer_start)
        for point in capture_points(sequence, answer_start=answer_start, start=start):
            self.capture(sequence, point, point == anchor)
        if self.ends:
            sequence.extend([token for token in answer if isinstance(token, int)])
            self.capture(sequence, len(sequence) - 1, False)
        self.index.check_integrity()
        return start

    def capture(self, sequence: PrefixKeys, position: int, anchor: bool) -> None:
        entry = self.index.begin(sequence, position, self.now, anchor=anchor, device_bytes=1)
        if entry is None:
            return
        self.index.evict_until(device_bytes=self.slots, newcomer=entry)
        if self.index.device_bytes > self.slots:
            self.index.failed(entry)
        else:
            self.index.filled(entry, "state")


@attrs.define
class Chat:
    """A conversation that only grows; ``thinks``: its template drops from an answer what the prompt did not say."""

    cache: Cache
    name: int
    root: list[Part]
    thinks: bool = False
    turns: int = 0
    history: list[Part] = attrs.field(factory=list)

    def turn(self, length: int = 50) -> int:
        base = 1000 * (1 + self.name) + 10_000_000
        self.turns += 1
        self.history += text(length, start=base + 100_000 * self.turns)
        answer = text(20, start=base + 100_000 * self.turns + 50_000)
        opening: list[Part] = [1, 2, 3]
        prompt = [*self.root, *self.history, *opening]
        cached = self.cache.request(prompt, answer, len(prompt) - 3)
        self.history += [1, *answer[5:]] if self.thinks else [*opening, *answer]
        return cached

    def grew(self, turns: int, length: Callable[[int], int] = lambda turn: 50) -> list[int]:
        return [self.turn(length(turn)) for turn in range(turns)]


ROOT = text(40)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_b58_a_growing_chat_gets_on_with_few_slots(slots: int, ends: bool, thinks: bool) -> None:
    """Sixteen turns; every turn hits at the last one's place before its answer at least."""
    cache = Cache(slots, ends)
    hits = Chat(cache, 0, ROOT, thinks).grew(16)
    step = 50 + 20 + 3
    assert hits[0] == 0 and all(b > a for a, b in pairwise(hits))
    assert all(40 + turn * step - hit <= 2 * step for turn, hit in enumerate(hits[1:], 1))
    assert cache.index.stats.evictions > 10, "the trap: slots were full"


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("order", ["0101", "0011", "0001011"])
@pytest.mark.parametrize("chats", [2, 3])
def test_b58_interleaved_chats_get_on(chats: int, order: str, ends: bool, thinks: bool) -> None:
    cache = Cache(4, ends)
    running = [Chat(cache, name, text(40, start=40 * name), thinks) for name in range(chats)]
    hits: dict[int, list[int]] = {name: [] for name in range(chats)}
    for turn in range(8 * len(order)):
        name = int(order[turn % len(order)]) if chats == 2 else turn % chats
        hits[name].append(running[name].turn())
    for each in hits.values():
        assert each[0] == 0 and all(b > a for a, b in pairwise(each)), hits


def test_b58_one_chats_long_turns_do_not_cost_the_other_its_place() -> None:
    cache = Cache(4)
    one, other = Chat(cache, 0, ROOT), Chat(cache, 1, text(40, start=500))
    other.turn()
    before = other.turn()
    hits = one.grew(3, lambda turn: 5000)
    assert hits == sorted(hits) and hits[1] > 5000
    assert other.turn() > before


def test_ends_that_a_chat_passed_by_go_first() -> None:
    """The end of an answer whose thinking is rendered away is no place where a chat goes on."""
    cache = Cache(3)
    one, other = (Chat(cache, name, text(40, start=40 * name), thinks=True) for name in range(2))
    assert [one.turn(), other.turn()] == [0, 0]
    assert other.turn() > 0
    assert one.turn() > 0


def test_as_many_chats_as_slots() -> None:
    cache = Cache(4)
    running = [Chat(cache, name, text(40, start=40 * name)) for name in range(4)]
    hits = [[chat.turn() for chat in running] for _ in range(6)]
    for earlier, later in pairwise(hits):
        assert all(b > a for a, b in zip(earlier, later, strict=True)), hits


def test_b59_an_answer_asked_for_again() -> None:
    cache = Cache(4)
    chat = Chat(cache, 0, ROOT)
    chat.grew(4)
    prompt = [*ROOT, *chat.history[: -20 - 3], 1, 2, 3]
    before = cache.index.stats.hit_tokens
    for again in range(3):
        assert (
            cache.request(prompt, text(20, start=900 + 50 * again), len(prompt) - 3) >= len(prompt) - 3 - 73
        )
    assert cache.index.stats.hit_tokens - before >= 3 * (len(prompt) - 76)


@pytest.mark.parametrize("length", [31, 32, 33, 48])
def test_b53_raw_prompts_twice_and_one_longer(length: int) -> None:
    cache = Cache(8)
    prompt = text(length)
    assert cache.request(prompt, text(4, start=500), None) == 0
    assert cache.request(prompt, text(4, start=600), None) == length - 1
    assert cache.request([*prompt, 0], text(4, start=700), None) == length - 1
    assert cache.request([*prompt, *text(4, start=500)], text(4, start=800), None) == length + 3


def test_b02_b09_b10_pictures() -> None:
    cache = Cache(20)
    before, after = text(5), text(7, start=200)
    length = 5 + 6 + 7
    for picture, cached in [(A, 0), (B, 0), (A, length - 1), (B, length - 1)]:
        assert cache.request([*before, picture, *after], text(3, start=300), None) == cached
    more = [*before, A, *after, B, *text(3, start=400)]
    assert cache.request(more, text(3, start=300), None) == length - 1, "past the first picture"
    end = [*text(5, start=900), A]
    assert [cache.request(end, [0, 0], None) for _ in range(3)] == [0, 5, 5], "before a picture at the end"


def test_b111_a_template_that_renders_thinking_away() -> None:
    cache = Cache(20)
    chat = Chat(cache, 0, ROOT, thinks=True)
    places = []
    for _ in range(4):
        cached = chat.turn()
        assert not places or cached == places[-1], "where the last turn's answer began"
        places.append(len(ROOT) + len(chat.history) - 16)


# -- planted defects --------------------------------------------------------------------------------------------------


def _deepest_first(self: EvictionOrder, now: int, population: int) -> Entry | None:
    """As reported: the deepest snapshot is always the victim."""
    waiting = [p.entry for queue in self._queues.values() for p in queue._heap if p.entry.place is p]
    return max(waiting, key=lambda entry: entry.position, default=None)


def _oldest_first(self: EvictionOrder, now: int, population: int) -> Entry | None:
    waiting = [p.entry for queue in self._queues.values() for p in queue._heap if p.entry.place is p]
    return min(waiting, key=lambda entry: (entry.stamp, entry.position), default=None)


def _never_cool(self: EvictionOrder, before: int) -> None:
    """What was hit often once is kept for ever."""


def _two_chats() -> None:
    test_b58_interleaved_chats_get_on(2, "0101", ends=False, thinks=False)


DEFECTS = {
    "deepest first": (EvictionOrder, "first", _deepest_first, _two_chats),
    "oldest first": (
        EvictionOrder,
        "first",
        _oldest_first,
        test_b58_one_chats_long_turns_do_not_cost_the_other_its_place,
    ),
    "never cool": (EvictionOrder, "_cool", _never_cool, test_many_hits_protect_until_they_are_long_ago),
    "newcomers push out everybody": (
        store_module,
        "outlasts",
        lambda *_: False,
        test_as_many_chats_as_slots,
    ),
    "nobody is passed by": (
        store_module,
        "_passed_by",
        lambda _: None,
        test_ends_that_a_chat_passed_by_go_first,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, test = DEFECTS[defect]
    test()
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError):
        test()
