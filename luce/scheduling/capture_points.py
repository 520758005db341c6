"""Where a prompt's state is captured on its way through the model, and where its chunks end because of that.

Captured are (design §7) the ends of turns, the place before the generation prompt, the end of each picture, and every
1,024th token. A chunk has to end at each of these or soon behind it, so turn ends that lie close together are thinned
out: a conversation of many short turns would else go through the model in as many short chunks. The one before the
generation prompt is always taken; the next turn goes on from there whatever its template makes of the answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from luce.engines.seam import MAX_VOID_ROWS
from luce.scheduling.prefix_keys import PrefixKeys

__all__ = ["SPACING", "STRIDE", "anchor_point", "capture_points", "next_cut", "shared_point"]

STRIDE = 1024
"""Tokens."""
SPACING = 64
"""Tokens from a turn's end to the next point, at least."""


def capture_points(
    keys: PrefixKeys,
    *,
    turn_ends: Sequence[int] = (),
    answer_start: int | None = None,
    start: int = 0,
    stride: int = STRIDE,
    spacing: int = SPACING,
    shared: bool = False,
) -> tuple[int, ...]:
    """Positions at which the state of a prompt is worth capturing, ascending.

    All lie behind ``start``, none lies inside a picture, and the last is :func:`anchor_point`, or :func:`shared_point`
    where that is wanted, if it lies behind ``start``. So the prompt's last row, which every request computes, always
    comes after them.

    Args:
        keys: of the prompt.
        turn_ends: positions after the last token of each turn.
        answer_start: position of the generation prompt; T or None when there is none.
        start: rows that come from the cache.
        stride: tokens; 0 for none of these.
        spacing: tokens; turn ends that are nearer to the next point are left out.
        shared: others wait to go on from where this prompt ends.
    """
    anchor = anchor_point(keys, answer_start)
    fixed = {anchor, *keys.image_ends}
    if stride:
        fixed.update(range(stride, anchor, stride))
    points = sorted(point for point in fixed if start < point <= anchor and not keys.splits_image(point))
    kept: list[int] = []
    following = anchor
    for end in sorted(set(turn_ends), reverse=True):
        if not start < end < anchor or keys.splits_image(end):
            continue
        following = min(following, points[bisect_left(points, end)])
        if following - end >= spacing:
            kept.append(end)
            following = end
    if shared and (last := shared_point(keys, answer_start, spacing=spacing)) > start:
        kept.append(last)
    return tuple(sorted({*points, *kept}))


def anchor_point(keys: PrefixKeys, answer_start: int | None = None) -> int:
    """Up to where a later turn is sure to render the same, or else where the same prompt can go on from: the generation
    prompt, or the last row where there is none; before the picture that it would lie in. 0 when nothing is left.
    """
    last = max(len(keys) - 1, 0)
    return keys.before_image(last if answer_start is None else min(answer_start, last))


def shared_point(keys: PrefixKeys, answer_start: int | None = None, *, spacing: int = SPACING) -> int:
    """Up to where others with the same prompt are to share it: the anchor, which is captured anyway, unless computing
    what is behind it again would cost them more than ``spacing`` tokens each; then the last row, or the place before
    the picture that it lies in. 0 when nothing can be shared."""
    anchor = anchor_point(keys, answer_start)
    last = keys.before_image(max(len(keys) - 1, 0))
    return last if last - anchor > spacing else anchor


def next_cut(position: int, points: Sequence[int], end: int | None = None) -> int | None:
    """Where a chunk that starts at ``position`` ends at the latest: at one of the ascending ``points``, the last of
    those whose states are all there to be captured when it has run (:attr:`luce.engines.seam.Segment.commits`). A
    picture and the turn that it ends are not a chunk each.

    Args:
        end: of the prompt; if it comes soon enough behind the next point there is no cut. None: the last chunk begins
            at the last point, so that its state is captured when the first token comes.
    """
    at = bisect_right(points, position)
    if at == len(points):
        return None
    most = max(position + MAX_VOID_ROWS, (points[at] // MAX_VOID_ROWS + 1) * MAX_VOID_ROWS)
    if end is not None and end <= most:
        return None
    return points[bisect_right(points, most) - 1]
