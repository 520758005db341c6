"""The prefix cache's index said again in the plainest way: a list of prefixes, searched from end to end each time."""

from __future__ import annotations

import attrs

__all__ = ["NaiveEntry", "NaiveIndex"]

Content = tuple[object, ...]


@attrs.define(eq=False)
class NaiveEntry:
    number: int
    content: Content
    anchor: bool
    born: int
    stamp: int
    state: str = "building"
    hits: int = 0
    locks: int = 0
    passed: bool = False
    device: int = 0
    host: int = 0
    demoted: int | None = None
    counts_right: bool = True


Tree = tuple[dict[int, NaiveEntry | None], dict[int, list[NaiveEntry]]]


@attrs.define
class NaiveIndex:
    entries: list[NaiveEntry] = attrs.field(factory=list)
    now: int = 0
    made: int = 0
    _known: tuple[list[int], Tree] | None = None

    def lookup(self, content: Content) -> NaiveEntry | None:
        usable = ("ready", "in_use", "hosted", "promoting")
        found = [
            entry
            for entry in self.entries
            if entry.state in usable
            and len(entry.content) < len(content)
            and content[: len(entry.content)] == entry.content
        ]
        return max(found, key=lambda entry: len(entry.content), default=None)

    def add(self, content: Content, now: int, anchor: bool) -> NaiveEntry | None:
        self.now = max(now, self.now)
        if any(entry.content == content for entry in self.entries):
            return None
        entry = NaiveEntry(self.made, content, anchor, self.now, self.now)
        self.made += 1
        above = self.parent(entry)
        others = self.children(above) if above is not None else []
        self.entries.append(entry)
        if above is not None and above.anchor and len(others) == 1 and not self.children(entry):
            (other,) = others
            if not other.anchor and not self.children(other) and other.born < entry.born:
                other.passed = True
        return entry

    # -- the tree -----------------------------------------------------------------------------------------------------

    def parent(self, entry: NaiveEntry) -> NaiveEntry | None:
        if entry in self.entries:
            return self._tree()[0][entry.number]
        return self._above(entry)

    def children(self, entry: NaiveEntry) -> list[NaiveEntry]:
        return self._tree()[1][entry.number]

    def _above(self, entry: NaiveEntry) -> NaiveEntry | None:
        above = [
            other
            for other in self.entries
            if len(other.content) < len(entry.content)
            and entry.content[: len(other.content)] == other.content
        ]
        return max(above, key=lambda other: len(other.content), default=None)

    def _tree(self) -> Tree:
        """Parents and children of all entries; worked out again whenever there are others."""
        numbers = [entry.number for entry in self.entries]
        if self._known is None or self._known[0] != numbers:
            parents = {entry.number: self._above(entry) for entry in self.entries}
            children: dict[int, list[NaiveEntry]] = {number: [] for number in numbers}
            for entry in self.entries:
                above = parents[entry.number]
                if above is not None:
                    children[above.number].append(entry)
            self._known = numbers, (parents, children)
        return self._known[1]

    # -- the order ----------------------------------------------------------------------------------------------------

    def rank(self, entry: NaiveEntry) -> str:
        children = self.children(entry)
        if len(children) > 1:
            return "shared"
        if entry.hits >= 3:
            return "hot"
        if children:
            paired = entry.anchor and not children[0].anchor and not self.children(children[0])
            return "end" if paired else "outgrown"
        if entry.passed:
            return "outgrown"
        above = self.parent(entry)
        if above is None or not above.anchor or entry.anchor or len(self.children(above)) > 1:
            return "end"
        return "paired"

    def first(self, tier: str) -> NaiveEntry | None:
        waiting = sorted(
            (entry for entry in self.entries if entry.state == tier),
            key=lambda entry: (entry.stamp, -len(entry.content), entry.number),
        )
        for entry in waiting:
            if self.rank(entry) == "hot" and entry.stamp < self.now - 8 * len(self.entries):
                entry.hits = 0
        ranked: dict[str, list[NaiveEntry]] = {}
        for entry in waiting:
            ranked.setdefault(self.rank(entry), []).append(entry)
        ranked.get("outgrown", []).sort(key=lambda entry: (entry.stamp, len(entry.content), entry.number))
        leaves = ranked.get("paired", [])[:1]
        for end in ranked.get("end", [])[:1]:
            child = next(iter(self.children(end)), None)
            if child is None or (
                child.state in ("ready", "hosted") and child not in ranked.get("paired", [])
            ):
                leaves.append(end)
            elif child.state in ("ready", "hosted"):
                leaves.append(child)
        oldest = min(leaves, key=lambda entry: (entry.stamp, -len(entry.content)), default=None)
        if oldest is not None and oldest.stamp < self.now - 4 * len(self.entries):
            return oldest
        for rank in ("outgrown", "paired", "end"):
            if rank in ranked:
                return ranked[rank][0]
        last = [*ranked.get("hot", []), *ranked.get("shared", [])]
        return min(last, key=lambda entry: (entry.stamp, -len(entry.content), entry.number), default=None)

    def outlasts(self, victim: NaiveEntry, newcomer: NaiveEntry) -> bool:
        if not self.children(victim) and victim.stamp < self.now - 4 * len(self.entries):
            return False
        worth = {"outgrown": 0, "paired": 1, "end": 2, "hot": 2, "shared": 2}
        hotter = {"hot": 3, "shared": 4}
        mine = self.rank(newcomer)
        return worth[self.rank(victim)] > hotter.get(mine, worth[mine])
