"""Small prompts of tokens and pictures, and what their keys must tell apart, for the tests of caches."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from luce.engines.seam import ImageSpan
from luce.scheduling.prefix_keys import PrefixKeys

PAD = 7

Part = int | tuple[bytes, int]
"""A token id, or a picture's digest and its number of rows."""


def rows(parts: list[Part] | tuple[Part, ...]) -> tuple[object, ...]:
    """What stands at each position, as plain values."""
    content: list[object] = []
    for part in parts:
        content += [part] if isinstance(part, int) else [(*part, row) for row in range(part[1])]
    return tuple(content)


def keys(
    parts: list[Part] | tuple[Part, ...],
    block_size: int = 4,
    namespace: bytes = b"",
    cls: type[PrefixKeys] = PrefixKeys,
) -> PrefixKeys:
    """Keys of a prompt; pictures stand in it as rows of the pad id."""
    ids: list[int] = []
    spans, digests = [], []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            spans.append(ImageSpan(len(ids), part[1], len(digests)))
            digests.append(part[0])
            ids += [PAD] * part[1]
    return cls(np.array(ids, np.int32), block_size, namespace, spans, digests)


def text(*lengths: int, start: int = 100) -> list[Part]:
    """Tokens that are all different, so many as the lengths say together."""
    return list(range(start, start + sum(lengths)))


pictures = st.tuples(st.sampled_from([b"a", b"b", b"aa"]), st.integers(1, 3))
prompts = st.lists(st.one_of(st.sampled_from([0, 1, PAD]), pictures), max_size=9)
