"""The collector stays out of the way until the last of those who want that is done."""

from __future__ import annotations

import gc
from threading import Event, Thread

from luce.paused_collector import paused_collector


def test_whoever_ends_first_does_not_wake_it_for_the_other() -> None:
    begun, end = Event(), Event()

    def other() -> None:
        with paused_collector():
            begun.set()
            end.wait(60)

    thread = Thread(target=other)
    with paused_collector():
        thread.start()
        begun.wait(60)
    assert not gc.isenabled()
    end.set()
    thread.join()
    assert gc.isenabled()


def test_one_that_was_out_of_the_way_stays_there() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
