"""The same requests and the same seed give the same log: every event of every machine in order, and every plan (I14).

Not the schedule of trio's tasks, not the machine's speed, not Python's hash seed may show in it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, LoopState
from tests.sim import watch
from tests.sim.crowd import serve_crowd

ROOT = Path(__file__).parents[2]
COUNT = 150


def log(seed: int, depth: int) -> str:
    return serve_crowd(seed, COUNT, depth=depth).log


@pytest.mark.parametrize("depth", [1, 2])
def test_two_processes_give_the_same_log(depth: int) -> None:
    code = f"from tests.sim.test_determinism import log; here = log(5, {depth}); print('log:', here)"
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout.split("log: ")[1]
        for hash_seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0].strip() == log(5, depth)  # and in one that has done other things before


def test_another_seed_gives_another_log() -> None:
    assert len({log(5, 1), log(6, 1), log(5, 2)}) == 3


@pytest.mark.unrecorded  # luce would decide otherwise
def test_a_policy_that_throws_dice_gives_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap is set: what is not drawn from the seed shows."""
    dice = random.SystemRandom()

    def throwing(state: LoopState) -> Decision:
        lanes = list(state.lanes)
        dice.shuffle(lanes)
        return plan(attrs.evolve(state, lanes=tuple(lanes)))

    monkeypatch.setattr(watch, "plan", throwing)
    assert log(5, 1) != log(5, 1)
