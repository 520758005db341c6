"""Requests wait in the order in which they arrived, whenever they join the queue."""

from __future__ import annotations

import random
from collections import OrderedDict

from luce.actors.queue_order import enqueue


def test_late_ones_get_the_place_of_their_arrival() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        orders = list(range(12))
        rng.shuffle(orders)
        waiting: OrderedDict[int, str] = OrderedDict()
        there: set[int] = set()
        for order in orders:
            enqueue(waiting, order, f"request {order}")
            there.add(order)
            assert list(waiting.items()) == [(n, f"request {n}") for n in sorted(there)]
            if rng.random() < 0.3:  # the head gets a slot
                there.remove(waiting.popitem(last=False)[0])


def test_the_queue_may_be_empty() -> None:
    waiting: OrderedDict[int, int] = OrderedDict()
    enqueue(waiting, 3, 3)
    del waiting[3]
    enqueue(waiting, 1, 1)
    assert list(waiting) == [1]
