"""The tree of stored prefixes: which of them a prompt begins with, and which continue which.

A node is a prefix that is stored (it has an entry) or at which stored ones part; nothing else has a node, so a node
without an entry has two children at least, the empty prefix apart. Positions are tokens, not blocks: turns end
anywhere.

Look-ups do not walk down the tree. They go through the prompt's block boundaries from the deepest one and look each
up, so their cost is that of the prompt's length and not of what is stored; below the boundaries that exist, each stored
offset costs one digest. Inserting and removing touch one node and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_keys import PrefixKeys

__all__ = ["Node", "PrefixTree"]


@attrs.define(eq=False)
class Node:
    """One prefix. ``path`` is any sequence that begins with it."""

    position: int
    key: bytes
    path: PrefixKeys = attrs.field(repr=False)
    parent: Node | None = attrs.field(repr=False)
    entry: Entry | None = None
    children: dict[int | bytes, Node] = attrs.field(factory=dict, repr=False)
    """By the first element after this prefix."""

    @property
    def only_child(self) -> Node | None:
        return next(iter(self.children.values())) if len(self.children) == 1 else None

    def neighbours(self) -> Iterator[Node]:
        """Itself and those whose entries may be seen differently when its children change."""
        yield self
        if self.parent is not None:
            yield self.parent
        if len(self.children) <= 2:  # what matters is whether a child is the only one
            yield from self.children.values()


class PrefixTree:
    """Args:
    block_size: tokens in a KV block; all keys have the same.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._nodes: dict[bytes, Node] = {}
        self._offsets: dict[bytes, dict[int, int]] = {}
        """For the digest of each block boundary: how many nodes lie at which distance behind it, less than a block."""

    def deepest(self, keys: PrefixKeys, limit: int, accept: Callable[[Node], bool]) -> Node | None:
        """The deepest node that is a prefix of ``keys``, at most ``limit`` tokens long, and accepted."""
        size, offsets = self.block_size, self._offsets
        for block in range(limit // size, -1, -1):
            found = offsets.get(keys.boundary(block))
            if found is None:
                continue
            for offset in sorted(found, reverse=True):
                position = block * size + offset
                if position <= limit:
                    node = self._nodes.get(keys.digest(position))
                    if node is not None and accept(node):
                        return node
        return None

    def get(self, key: bytes) -> Node | None:
        return self._nodes.get(key)

    def insert(self, entry: Entry, keys: PrefixKeys) -> list[Node]:
        """``entry`` is stored at its position of ``keys``. Returns the nodes whose children have changed; their own
        are near them."""
        position = entry.position
        node = self._nodes.get(entry.key)
        if node is not None:
            assert node.entry is None, f"two entries at position {position} of one prefix"
            node.entry = entry
            entry.node = node
            changed = [node]
            return changed if node.parent is None else [*changed, node.parent]
        above = self.deepest(keys, position - 1, _any) or self._add(
            Node(0, keys.boundary(0), keys, None), keys
        )
        node = Node(position, entry.key, keys, above, entry)
        entry.node = node
        below = above.children.get(keys.element(above.position))
        if below is None:
            self._add(node, keys)
            return [above, node]
        common = keys.common_prefix(below.path, above.position, min(position, below.position))
        assert above.position < common < below.position, (above.position, common, below.position)
        if common == position:
            self._add(node, keys)
            self._attach(below, node)
            return [above, node]
        fork = self._add(Node(common, keys.digest(common), keys, above), keys)
        self._attach(below, fork)
        node.parent = fork
        self._add(node, keys)
        return [above, fork, node]

    def remove(self, entry: Entry) -> list[Node]:
        """``entry`` is stored no more. Returns the nodes whose parent or children have changed."""
        node = entry.node
        assert node.entry is entry
        node.entry = None
        changed = [node] if node.parent is None else [node, node.parent]
        while node.entry is None and len(node.children) < 2:
            parent, child = node.parent, node.only_child
            if parent is None:
                if child is None:
                    self._forget(node)
                break
            if child is not None:  # prompts do not part here any more
                self._forget(node)
                self._attach(child, parent)
                changed += [parent, child]
                break
            del parent.children[node.path.element(parent.position)]
            self._forget(node)
            changed.append(parent)
            if parent.parent is not None:
                changed.append(parent.parent)
            node = parent
        return [one for one in changed if self._nodes.get(one.key) is one]

    @property
    def entries(self) -> int:
        """Nodes with an entry. Linear, for checks."""
        return sum(node.entry is not None for node in self._nodes.values())

    def check_integrity(self) -> None:
        """Raises AssertionError when nodes, links and offsets do not agree. Linear, for tests and idle moments."""
        offsets: dict[bytes, dict[int, int]] = {}
        for key, node in self._nodes.items():
            path, parent = node.path, node.parent
            assert path.digest(node.position) == key == node.key, node
            assert not path.splits_image(node.position), node
            count = offsets.setdefault(path.boundary(node.position // self.block_size), {})
            offset = node.position % self.block_size
            count[offset] = count.get(offset, 0) + 1
            if node.entry is not None:
                assert node.entry.node is node and node.entry.key == key, node
            if parent is None:
                assert node.position == 0 and node.children, node
                continue
            assert node.entry is not None or len(node.children) > 1, node
            assert self._nodes.get(parent.key) is parent and parent.position < node.position, node
            assert parent.children.get(path.element(parent.position)) is node, node
            assert path.digest(parent.position) == parent.key, node
        links = sum(len(node.children) for node in self._nodes.values())
        assert links == sum(node.parent is not None for node in self._nodes.values()), (
            "a child is nobody's node"
        )
        assert offsets == self._offsets, "offsets do not agree with nodes"

    def _add(self, node: Node, keys: PrefixKeys) -> Node:
        """``node`` gets known, and its parent gets it as a child."""
        self._nodes[node.key] = node
        found = self._offsets.setdefault(keys.boundary(node.position // self.block_size), {})
        offset = node.position % self.block_size
        found[offset] = found.get(offset, 0) + 1
        if node.parent is not None:
            node.parent.children[keys.element(node.parent.position)] = node
        return node

    def _attach(self, node: Node, parent: Node) -> None:
        node.parent = parent
        parent.children[node.path.element(parent.position)] = node

    def _forget(self, node: Node) -> None:
        del self._nodes[node.key]
        boundary = node.path.boundary(node.position // self.block_size)
        found, offset = self._offsets[boundary], node.position % self.block_size
        found[offset] -= 1
        if not found[offset]:
            del found[offset]
        if not found:
            del self._offsets[boundary]


def _any(node: Node) -> bool:
    return True
