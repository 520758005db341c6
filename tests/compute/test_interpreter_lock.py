"""Threads of a server take short turns."""

from __future__ import annotations

import sys

from luce.compute.interpreter_lock import TURN, take_short_turns


def test_turns_are_short_from_then_on() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        take_short_turns()
        assert abs(sys.getswitchinterval() - TURN) < 1e-6
    finally:
        sys.setswitchinterval(before)
