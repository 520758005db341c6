"""The index against a model that searches lists, on random prompts that share beginnings."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import luce.scheduling.eviction_order as order_module
import luce.scheduling.prefix_store as store_module
from luce.scheduling.eviction_order import EvictionOrder, Rank
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_index import PrefixIndex
from luce.scheduling.prefix_keys import Counts
from luce.scheduling.prefix_tree import PrefixTree
from tests.scheduling.naive_prefix import NaiveEntry, NaiveIndex
from tests.scheduling.prompts import Part, keys, prompts, rows

SIZE = 10
"""Bytes of every entry, wherever it is."""


class IndexAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(3)
        self.model = NaiveIndex()
        self.pairs: dict[int, tuple[Entry, NaiveEntry]] = {}
        self.prompts: list[list[Part]] = [[]]
        self.now = 0

    # -- helpers ------------------------------------------------------------------------------------------------------

    def pick(self, data: st.DataObject, *states: str) -> tuple[Entry, NaiveEntry] | None:
        found = [pair for pair in self.pairs.values() if pair[1].state in states]
        return data.draw(st.sampled_from(found)) if found else None

    def prompt(self, data: st.DataObject) -> list[Part]:
        """A known prompt or its beginning, with something behind it."""
        known = data.draw(st.sampled_from(self.prompts))
        cut = data.draw(st.integers(0, len(known)))
        prompt = [*known[:cut], *data.draw(prompts)]
        if len(rows(prompt)) <= 24 and prompt not in self.prompts:
            self.prompts.append(prompt)
        return prompt

    def forget(self, model: NaiveEntry) -> None:
        self.model.entries.remove(model)
        del self.pairs[model.number]

    def expect(self, model: NaiveEntry, gone: bool) -> None:
        assert gone == (model.state == "gone")
        if gone:
            self.forget(model)

    # -- captures -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), anchor=st.booleans(), later=st.integers(0, 2))
    def capture(self, data: st.DataObject, anchor: bool, later: int) -> None:
        self.now += later
        prompt = self.prompt(data)
        sequence = keys(prompt, 3)
        position = sequence.before_image(data.draw(st.integers(0, len(sequence))))
        if not position:
            return
        entry = self.index.begin(sequence, position, self.now, anchor=anchor, device_bytes=SIZE)
        model = self.model.add(rows(prompt)[:position], self.now, anchor)
        assert (entry is None) == (model is None)
        if entry is not None and model is not None:
            model.device = SIZE
            assert entry.number == model.number
            self.pairs[entry.number] = entry, model

    @rule(data=st.data(), outcome=st.sampled_from(["well", "well", "fixed", "wrong", "failed"]))
    def end_of_capture(self, data: st.DataObject, outcome: str) -> None:
        pair = self.pick(data, "building")
        if pair is None:
            return
        entry, model = pair
        if outcome == "failed":
            self.index.failed(entry)
            self.forget(model)
            return
        wrong = Counts(entry.position + 1, 0) if outcome == "wrong" else None
        demoted = None if outcome == "fixed" else SIZE
        self.index.filled(entry, object(), demoted_bytes=demoted, counts=wrong)
        model.state, model.counts_right, model.demoted = "ready", wrong is None, demoted

    @rule(data=st.data(), more=st.lists(st.lists(st.integers(0, 1), max_size=2), min_size=1, max_size=3))
    def turn(self, data: st.DataObject, more: list[list[int]]) -> None:
        """What a turn of a chat does: a hit, the place before the generation prompt, and ends of some answers to it."""
        self.now += 1
        known = data.draw(st.sampled_from(self.prompts))
        prompt = [*known, *data.draw(st.lists(st.integers(0, 1), max_size=3))]
        if len(rows(prompt)) > 24:
            return
        self._hit(prompt)
        self._store(prompt, anchor=True)
        for answer in more:
            whole = [*prompt, 2, *answer]
            self._store(whole, anchor=False, right=data.draw(st.integers(0, 9)) != 0)
            self.prompts.append(whole)
            self.now += 1

    @initialize(data=st.data(), chats=st.integers(1, 3))
    def chats(self, data: st.DataObject, chats: int) -> None:
        for chat in range(chats):
            prompt: list[Part] = [3, chat]
            for _ in range(data.draw(st.integers(1, 3))):
                self.now += 1
                self._hit(prompt)
                self._store(prompt, anchor=data.draw(st.booleans()))
                prompt = [*prompt, 2, 1]
                self._store(prompt, anchor=False)
            self.prompts.append(prompt)

    @rule(data=st.data(), times=st.integers(1, 4))
    def again(self, data: st.DataObject, times: int) -> None:
        """The same prompt several times over."""
        prompt = [*data.draw(st.sampled_from(self.prompts)), 1]
        for _ in range(times):
            self.now += 1
            self._hit(prompt)

    @rule(data=st.data(), hits=st.integers(0, 2), well=st.booleans())
    def to_host_memory_and_back(self, data: st.DataObject, hits: int, well: bool) -> None:
        budget = self.index.device_bytes - self.index.leaving_bytes - SIZE
        room = self.index.host_bytes + SIZE
        expected = self._expected(budget, room, 0, True, None)
        made = self.index.evict_until(device_bytes=budget, host_bytes=room, demote=True)
        assert [(one.entry.number, one.demote) for one in made] == expected
        for entry in [one.entry for one in made if one.demote]:
            _, model = self.pairs[entry.number]
            self.index.demoted(entry, object())
            model.state, model.device = "hosted", 0
            sequence = keys([*self._parts(model), 1], 3)
            if not model.counts_right:
                return
            for _ in range(hits):
                assert self.index.hit(entry, sequence, self.now)
                self.model.now = max(self.model.now, self.now)
                model.stamp, model.hits, model.passed = self.model.now, model.hits + 1, False
                model.state, model.device, model.locks = "promoting", SIZE, model.locks + 1
            if hits and well:
                self.index.promoted(entry, object())
                model.state, model.host = "in_use", 0

    def _parts(self, model: NaiveEntry) -> list[Part]:
        """The prompt that an entry's content is."""
        parts: list[Part] = []
        for row in model.content:
            if isinstance(row, int):
                parts.append(row)
            elif isinstance(row, tuple) and row[2] == 0:
                parts.append((row[0], row[1]))
        return parts

    def _store(self, prompt: list[Part], anchor: bool, right: bool = True) -> None:
        length = len(rows(prompt))
        if length:
            entry = self.index.begin(keys(prompt, 3), length, self.now, anchor=anchor, device_bytes=SIZE)
            model = self.model.add(rows(prompt), self.now, anchor)
            assert (entry is None) == (model is None)
            if entry is not None and model is not None:
                wrong = None if right else Counts(entry.position, 9)
                self.index.filled(entry, object(), demoted_bytes=SIZE, counts=wrong)
                model.state, model.device, model.demoted, model.counts_right = "ready", SIZE, SIZE, right
                self.pairs[entry.number] = entry, model

    def _hit(self, prompt: list[Part]) -> None:
        """A look-up, and an unlock at once if it hits."""
        pair = self._look_up(prompt)
        if pair is not None:
            self._unlock(*pair)

    # -- hits ---------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), later=st.sampled_from([0, 1, 1, 20, 100]))
    def look_up(self, data: st.DataObject, later: int) -> None:
        self.now += later
        self._look_up(self.prompt(data))

    def _look_up(self, prompt: list[Part]) -> tuple[Entry, NaiveEntry] | None:
        sequence = keys(prompt, 3)
        found, model = self.index.lookup(sequence), self.model.lookup(rows(prompt))
        assert (found.number if found else None) == (model.number if model else None)
        if found is None or model is None:
            self.index.miss(self.now)
            self.model.now = max(self.model.now, self.now)
            return None
        assert sequence.may_end_hit(found.position)
        hit = self.index.hit(found, sequence, self.now)
        assert hit == model.counts_right
        if not hit:
            assert model.state in ("ready", "hosted"), "the first that comes finds out"
            self.forget(model)
            return None
        self.model.now = max(self.model.now, self.now)
        model.stamp, model.hits, model.passed = self.model.now, model.hits + 1, False
        model.locks += 1
        if model.state == "hosted":
            model.device = SIZE
        model.state = {"ready": "in_use", "hosted": "promoting"}.get(model.state, model.state)
        return found, model

    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        found = [pair for pair in self.pairs.values() if pair[1].locks]
        if found:
            self._unlock(*data.draw(st.sampled_from(found)))

    def _unlock(self, entry: Entry, model: NaiveEntry) -> None:
        model.locks -= 1
        if not model.locks:
            model.state = {"in_use": "ready", "condemned": "gone"}.get(model.state, model.state)
        self.expect(model, self.index.unlock(entry))

    @rule(data=st.data())
    def broken(self, data: st.DataObject) -> None:
        pair = self.pick(data, "in_use", "condemned")
        if pair is not None:
            pair[1].state = "condemned"
            self.expect(pair[1], self.index.broken(pair[0]))

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        pair = self.pick(data, "building", "ready", "in_use", "hosted", "promoting", "demoting")
        if pair is not None:
            self.index.touch(pair[0], self.now)
            self.model.now = max(self.model.now, self.now)
            pair[1].stamp = self.model.now

    # -- room ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), wanted=st.sampled_from(["device", "host", "blocks"]), demote=st.booleans())
    def make_room(self, data: st.DataObject, wanted: str, demote: bool) -> None:
        less = data.draw(st.integers(0, 3))
        host = data.draw(st.integers(0, 3)) * SIZE if wanted != "device" or demote else None
        newcomer = self.pick(data, "building") if data.draw(st.booleans()) else None
        device = (
            self.index.device_bytes - self.index.leaving_bytes - less * SIZE if wanted == "device" else None
        )
        blocks = less if wanted == "blocks" else 0
        expected = self._expected(device, host, blocks, demote, newcomer[1] if newcomer else None)
        made = self.index.evict_until(
            device_bytes=device,
            host_bytes=host,
            blocks=blocks,
            freed=lambda eviction: 1,
            demote=demote,
            newcomer=newcomer[0] if newcomer else None,
        )
        assert [(one.entry.number, one.demote) for one in made] == expected

    def _expected(
        self, device: int | None, host: int | None, blocks: int, demote: bool, newcomer: NaiveEntry | None
    ) -> list[tuple[int, bool]]:
        made: list[tuple[int, bool]] = []
        entries = self.model.entries
        if newcomer is not None and device is not None and newcomer.device > device:
            return made
        if newcomer is not None and host is not None and newcomer.host > host:
            return made

        def first(tier: str, comer: NaiveEntry | None, spared: NaiveEntry | None = None) -> NaiveEntry | None:
            victim = self.model.first(tier)
            if victim is None or victim is comer or victim is spared:
                return None
            return None if comer is not None and self.model.outlasts(victim, comer) else victim

        def on_host() -> int:
            return sum(entry.host for entry in entries)

        def drop(victim: NaiveEntry) -> None:
            made.append((victim.number, False))
            self.forget(victim)

        def give_way(victim: NaiveEntry) -> None:
            if demote and host is not None and victim.demoted is not None and victim.demoted <= host:
                while on_host() - victim.host + victim.demoted > host:
                    other = first("hosted", victim, newcomer)
                    if other is None:
                        drop(victim)
                        return
                    drop(other)
                victim.state, victim.host = "demoting", victim.demoted
                made.append((victim.number, True))
                return
            drop(victim)

        while device is not None and sum(e.device for e in entries if e.state != "demoting") > device:
            victim = first("ready", newcomer)
            if victim is None:
                break
            give_way(victim)
        while blocks > 0:
            victim = first("ready", newcomer)
            if victim is None:
                break
            give_way(victim)
            blocks -= 1
        while host is not None and on_host() > host:
            victim = first("hosted", newcomer) or first("ready", newcomer)
            if victim is None or (victim.device and not victim.host):
                break
            drop(victim)
        return made

    @rule(data=st.data())
    def evict_one(self, data: st.DataObject) -> None:
        pair = self.pick(data, "building", "ready", "in_use", "hosted", "demoting", "promoting", "condemned")
        if pair is None:
            return
        gone = self.index.evict(pair[0])
        assert gone == (pair[1].state in ("ready", "hosted"))
        if gone:
            self.forget(pair[1])

    @rule(data=st.data(), well=st.booleans())
    def end_of_copy(self, data: st.DataObject, well: bool) -> None:
        pair = self.pick(data, "demoting", "promoting")
        if pair is None:
            return
        entry, model = pair
        if model.state == "demoting" and well:
            self.index.demoted(entry, object())
            model.state, model.device = "hosted", 0
        elif model.state == "demoting":
            assert not self.index.copy_failed(entry)
            model.state, model.host = "ready", 0
        elif well:
            self.index.promoted(entry, object())
            model.state, model.host = "in_use" if model.locks else "ready", 0
        else:
            model.state = "condemned" if model.locks else "gone"
            self.expect(model, self.index.copy_failed(entry))

    # -- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        assert {entry.number for entry in self.index} == {entry.number for entry in self.model.entries}
        for entry, model in self.pairs.values():
            assert self.index.state(entry) == model.state
            assert (entry.device_bytes, entry.host_bytes) == (model.device, model.host)
            above, parent = self.model.parent(model), entry.parent
            assert (parent.number if parent else None) == (above.number if above else None)

    @invariant()
    def adds_up(self) -> None:
        self.index.check_integrity()

    def teardown(self) -> None:
        """Everything can be evicted once nobody needs it."""
        for entry in list(self.index):
            state = self.index.state(entry)
            if state == "building":
                self.index.failed(entry)
            elif state in ("demoting", "promoting"):
                self.index.copy_failed(entry)
            for _ in range(entry.locks):
                self.index.unlock(entry)
        self.index.evict_until(device_bytes=0, host_bytes=0)
        assert not len(self.index) and not self.index.device_bytes and not self.index.host_bytes
        self.index.check_integrity()


TestIndexAndModel = IndexAndModel.TestCase
TestIndexAndModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
FINDING = settings(
    TestIndexAndModel.settings, max_examples=500, phases=[Phase.generate], database=None, derandomize=True
)


# -- planted defects --------------------------------------------------------------------------------------------------


def _forks_stay(self: PrefixTree, entry: Entry) -> list[object]:
    """Removing forgets to join what no longer parts."""
    entry.node.entry = None
    return [entry.node]


def _no_rearranging(self: object, changed: Iterable[object]) -> None:
    """Ranks of neighbours are not looked at again."""


def _deepest_first(self: EvictionOrder, now: int, population: int) -> Entry | None:
    """B58: the deepest is always the victim."""
    waiting = [
        place.entry for queue in self._queues.values() for place in queue._heap if place.entry.place is place
    ]
    return max(waiting, key=lambda entry: entry.position, default=None)


DEFECTS = {
    "forks stay": (PrefixTree, "remove", _forks_stay),
    "no rearranging": (store_module.EntryStore, "_rearrange", _no_rearranging),
    "deepest first": (EvictionOrder, "first", _deepest_first),
    "nobody is passed by": (store_module, "_passed_by", lambda entry: None),
    "everything is an end": (order_module, "rank", lambda entry: Rank.END),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_are_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*DEFECTS[defect])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(IndexAndModel, settings=FINDING)
