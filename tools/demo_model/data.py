"""Batches drawn in parallel while training runs: every case is new.

A worker draws tasks by the shared mix, encodes them and drops each into the bin of its length; a full bin becomes a
batch.  All batches hold the same number of tokens.
"""

from collections.abc import Iterator

import attrs
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from luce.demo.case import Case
from luce.demo.drawing import SIZES
from luce.demo.tasks import TASKS, make_case
from tools.demo_model.model import MAX_MERGED, MAX_PATCHES, Batch, patchify
from tools.demo_model.text import END_OF_TEXT, IMAGE_PAD, encode

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
NAMES = tuple(TASKS)
# Dev cases are drawn like test cases but from other seeds; the test cases proper are only used at the end.
DEV_START = 1_000_000

# Relative shares of the tasks to begin with; the trainer then moves the mix towards what is not yet right.
SHARES = {
    "describe": 4.0,
    "value": 3.0,
    "tallest": 1.5,
    "how_many": 1.0,
    "title": 1.5,
    "many_describe": 3.0,
    "many_value": 2.0,
    "many_tallest": 1.0,
    "many_how_many": 1.0,
    "many_title": 1.0,
    "many_which": 1.0,
    "follow_up": 2.0,
    "later_picture": 2.0,
    "json_chart": 1.5,
    "count": 0.7,
    "copy": 2.0,
    "recall": 1.5,
    "arithmetic": 2.0,
    "arithmetic_think": 1.5,
    "tool_call": 1.0,
    "tool_answer": 0.8,
    "json_text": 1.0,
    "small_talk": 0.3,
}
# What stays of the shares when every dev case is right: most for the tasks with the most to read in one answer.
KEPT = {name: 0.2 * share for name, share in SHARES.items()} | {
    "describe": 4.0,
    "many_describe": 3.0,
    "json_chart": 1.5,
    "copy": 3.0,
}


@attrs.frozen
class Example:
    task: int
    prompt: list[int]
    completion: list[int]
    pictures: tuple[np.ndarray, ...]  # patches (n, 768) uint8
    sizes: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of the row; the last token of the completion is only a label."""
        return len(self.prompt) + len(self.completion) - 1


def example(case: Case) -> Example:
    prompt, completion = encode(case)
    return Example(
        NAMES.index(case.task),
        prompt,
        completion,
        tuple(patchify(p) for p in case.pictures()),
        tuple(SIZES.index((chart.width, chart.height)) for chart in case.charts),
    )


def row_length(tokens: int, tokens_per_batch: int) -> int | None:
    """The row length that an example of so many tokens goes into, None if it fits none."""
    return next((n for n in LENGTHS if tokens <= n <= tokens_per_batch), None)


def picture_slots(length: int, tokens_per_batch: int) -> int:
    """Pictures of a batch; two numbers only, so that the tower has two shapes."""
    return max(tokens_per_batch // 96, 8) if length <= 256 else max(tokens_per_batch // 1024, 8)


def positions(example: Example) -> np.ndarray:
    """M-RoPE positions (3, tokens) of the row: spec section 10."""
    ids = np.array(example.prompt + example.completion[:-1])
    out = np.zeros((3, len(ids)), np.int32)
    cursor, place = 0, 0
    sizes = iter(example.sizes)
    while place < len(ids):
        if ids[place] != IMAGE_PAD:
            out[:, place] = cursor
            cursor, place = cursor + 1, place + 1
            continue
        width, height = SIZES[next(sizes)]
        gh, gw = height // 32, width // 32
        span = slice(place, place + gh * gw)
        out[0, span] = cursor
        out[1, span] = cursor + np.arange(gh).repeat(gw)
        out[2, span] = cursor + np.tile(np.arange(gw), gh)
        cursor, place = cursor + max(gh, gw), place + gh * gw
    return out


def collate(
    examples: list[Example], length: int, tokens_per_batch: int, *, slots: int | None = None
) -> Batch:
    """Rows of `length` tokens, padded on the right; unused rows hold padding.

    There is room for `slots` pictures, by default as many as in every batch of this length.
    """
    rows = tokens_per_batch // length
    if slots is None:
        slots = picture_slots(length, tokens_per_batch)
    ids = np.full((rows, length), END_OF_TEXT, np.int64)
    labels = np.full((rows, length), -100, np.int64)
    weights = np.zeros((rows, length), np.float32)
    place3 = np.zeros((3, rows, length), np.int32)
    target = np.full((slots, MAX_MERGED), rows * length, np.int64)
    patches = np.zeros((slots, MAX_PATCHES, 768), np.uint8)
    sizes = np.zeros(slots, np.int64)
    used = 0
    for row, item in enumerate(examples):
        start, n = len(item.prompt) - 1, item.length
        ids[row, :n] = (item.prompt + item.completion)[:n]
        labels[row, start:n] = item.completion
        weights[row, start:n] = len(item.completion) ** -0.5
        place3[:, row, :n] = positions(item)
        image_places = row * length + np.flatnonzero(ids[row, :n] == IMAGE_PAD)
        for picture, size in zip(item.pictures, item.sizes, strict=True):
            patches[used, : len(picture)] = picture
            sizes[used] = size
            merged = len(picture) // 4
            target[used, :merged], image_places = image_places[:merged], image_places[merged:]
            used += 1
    place = np.tile(np.arange(length, dtype=np.int32), rows)
    arrays = (ids.reshape(-1), place3.reshape(3, -1), place, target.reshape(-1), labels.reshape(-1))
    return Batch(*map(torch.from_numpy, (*arrays, weights.reshape(-1), patches, sizes)))


def grouped(examples: list[Example], tokens_per_batch: int) -> Iterator[tuple[int, list[Example]]]:
    """The examples in batches: row length and the examples of the rows."""
    by_length: dict[int, list[Example]] = {}
    for item in examples:
        length = row_length(item.length, tokens_per_batch)
        if length is None:
            raise ValueError(f"an example of {item.length} tokens of {NAMES[item.task]} fits no row")
        by_length.setdefault(length, []).append(item)
    for length, items in by_length.items():
        rows, slots = tokens_per_batch // length, picture_slots(length, tokens_per_batch)
        batch: list[Example] = []
        pictures = 0
        for item in items:
            if len(batch) == rows or pictures + len(item.pictures) > slots:
                yield length, batch
                batch, pictures = [], 0
            batch.append(item)
            pictures += len(item.pictures)
        if batch:
            yield length, batch


class Stream(IterableDataset):
    """Endless batches (row length, Batch); `mix` is shared memory (tasks) that the trainer rewrites."""

    def __init__(self, mix: torch.Tensor, tokens_per_batch: int, run: int) -> None:
        self.mix = mix
        self.tokens_per_batch = tokens_per_batch
        self.run = run

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        info = get_worker_info()
        worker = info.id if info else 0
        rng = np.random.default_rng((self.run, worker))
        index = (self.run * 1000 + worker) * 1_000_000_000
        torch.set_num_threads(1)
        bins: dict[int, list[Example]] = {n: [] for n in LENGTHS}
        pictures = dict.fromkeys(LENGTHS, 0)
        while True:
            mix = self.mix.numpy().astype(np.float64)
            for task in rng.choice(len(NAMES), 256, p=mix / mix.sum()):
                index += 1
                item = example(make_case(NAMES[task], index, test=False))
                length = row_length(item.length, self.tokens_per_batch)
                if length is None:
                    continue
                slots = picture_slots(length, self.tokens_per_batch)
                full = pictures[length] + len(item.pictures) > slots
                if full and len(bins[length]) < 0.75 * self.tokens_per_batch // length:
                    continue  # too many pictures so far: leave the rest of the rows to text
                if full or len(bins[length]) == self.tokens_per_batch // length:
                    yield length, collate(bins[length], length, self.tokens_per_batch)
                    bins[length], pictures[length] = [], 0
                bins[length].append(item)
                pictures[length] += len(item.pictures)


def held_out(task: str, count: int, *, final: bool) -> list[Example]:
    """The fixed test cases if `final`, else as many dev cases."""
    start = 0 if final else DEV_START
    return [example(make_case(task, start + i, test=True)) for i in range(count)]
