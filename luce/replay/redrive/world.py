"""What stands in for device, encoder, workers, timers, clients and text while actors are driven along a trace."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final
from weakref import WeakKeyDictionary

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.actors.free_memory import FreeMemory
from luce.actors.mailbox import Waker
from luce.actors.masks import MaskWorkers
from luce.actors.messages import MaskFailed, Plain
from luce.actors.request import Request
from luce.actors.timers import Timers
from luce.engines.seam import (
    Capabilities,
    Outcome,
    PatchImage,
    SampledToken,
    Segment,
    SlotSpec,
    StepPlan,
    StepResult,
    Ticket,
    WorkKind,
    WorkOutcome,
)
from luce.errors import DeviceError, LuceError
from luce.replay.redrive.script import AnswerScript, Script
from luce.trace.schema import Encoded, Failed, Landed

__all__ = [
    "STOP",
    "RecordedConstraint",
    "RecordedDevice",
    "RecordedEncoder",
    "RecordedMasks",
    "RecordedTimers",
    "SilentTokenizer",
    "recorded_memory",
]

STOP: Final = (1 << 31) - 1
"""The token that ends answers, whatever ended them: a token, a string, a form. No model has so many."""
_MASK: Final = np.zeros(1, np.uint32)


class SilentTokenizer:
    """Text does not matter: what it decides stands in the trace."""

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return b""


class RecordedTimers(Timers):
    """Run out when the trace says so.

    One whose time had come when it was stopped may have run out just before: then what it says was behind the message
    that stopped it. An actor handles all that waits for it before another one's turn, so such a timer is kept no longer
    than until another actor stops one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._late: dict[tuple[Hashable, str], Callable[[], None]] = {}
        """What such timers do, of the actor that last stopped one."""

    async def run(self) -> None:
        await trio.sleep_forever()

    def set(self, owner: Hashable, event: str, delay: float, action: Callable[[], None]) -> None:
        super().set(owner, event, delay, action)
        self._late.pop((owner, event), None)

    def clear(self, owner: Hashable, event: str) -> None:
        found = self._due.pop((owner, event), None)
        if found is not None and found[1] <= trio.current_time():
            mine = {key: action for key, action in self._late.items() if key[0] == owner}
            self._late = mine | {(owner, event): found[2]}

    def fire(self, owner: Hashable, event: str) -> bool:
        """False: it is not set, and was not when its time had come."""
        found = self._due.pop((owner, event), None)
        action = self._late.pop((owner, event), None) if found is None else found[2]
        if action is not None:
            action()
        return action is not None


class RecordedMasks(MaskWorkers):
    """Are known when the trace says so."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[int, Request] = {}

    async def run(self) -> None:
        await trio.sleep_forever()

    def want(self, request: Request) -> None:
        self._wanted[request.order] = request

    def answer(self, request: Request, event: str) -> bool:
        """False: nobody asked for it."""
        if self._wanted.pop(request.order, None) is None:
            return False
        if event == "mask.ready":
            if request.constraint is not None:
                request.constraint.compute()
            request.mailbox.put(Plain(event))
        else:
            request.mailbox.put(MaskFailed(LuceError("as recorded")))
        return True


class RecordedConstraint:
    """A :class:`luce.constraints.constraint.Constraint` that says what was known of each next token."""

    complete = False

    def __init__(self, script: AnswerScript) -> None:
        self._forms = script.forms
        self._at = 0

    @property
    def _form(self) -> str:
        return chr(self._forms[self._at]) if self._at < len(self._forms) else "f"

    @property
    def mask(self) -> npt.NDArray[np.uint32] | None:
        return _MASK if self._form == "m" else None

    def take(self, token: int) -> bool:
        self._at += 1
        return self._form == "w"

    def compute(self) -> None:
        self._at += 1

    def fork(self) -> RecordedConstraint:
        raise AssertionError("every recorded request has its own")


class RecordedEncoder:
    """Gives the rows of the picture that the encoder has, as many as it was, when the trace says so."""

    def __init__(self) -> None:
        self._waker = Waker()
        self._result: Encoded | None = None
        self.digest: bytes | None = None
        """Of the picture that the encoder waits for."""

    async def __call__(self, image: PatchImage) -> npt.NDArray[np.float32]:
        self.digest = image.digest
        await self._waker.sleep()
        result, self._result, self.digest = self._result, None, None
        assert result is not None
        if not result.rows:
            raise DeviceError("as recorded")
        width = result.nbytes // (4 * result.rows)
        return np.broadcast_to(np.zeros(1, np.float32), (result.rows, width))

    def finish(self, encoded: Encoded) -> None:
        self._result = encoded
        self._waker.wake()


@attrs.define(eq=False)
class _Ticket:
    plan: StepPlan
    fd: int
    requests: tuple[Request, ...]
    """Whose segments they are."""
    result: StepResult | None = None

    @property
    def number(self) -> int:
        return self.plan.number


class RecordedDevice:
    """An engine whose results are those of the trace.

    Args:
        capabilities: those of the recorded one.
        script: when answers end by themselves, and what stands for tokens that the trace does not have.
        owner: who has a slot at the moment.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        script: Script,
        owner: Callable[[int], Request],
    ) -> None:
        self.capabilities = capabilities
        self._script = script
        self._owner = owner
        self._flights: deque[_Ticket] = deque()
        self._fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(capabilities.max_depth)]
        self._launches = 0
        self._answers: WeakKeyDictionary[Request, npt.NDArray[np.int32]] = WeakKeyDictionary()
        """Tokens made up for requests without content."""

    def open(self, slot: int, spec: SlotSpec) -> None: ...

    def close(self, slot: int) -> None: ...

    def discard(self, handle: int) -> None: ...

    def encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        raise AssertionError("pictures are encoded elsewhere")

    def launch(self, plan: StepPlan) -> Ticket:
        requests = tuple(self._owner(segment.slot) for segment in plan.segments)
        ticket = _Ticket(plan, self._fds[self._launches % len(self._fds)], requests)
        self._launches += 1
        self._flights.append(ticket)
        return ticket

    @property
    def next_number(self) -> int | None:
        """Of the oldest step in flight."""
        return self._flights[0].number if self._flights else None

    def land(self, landed: Landed, failures: list[Failed]) -> None:
        """The oldest step is done, as recorded."""
        ticket = self._flights[0]
        rows = {one.slot: one.message for one in failures if one.what == "row"}
        copies = {(one.slot, one.what, one.position): one.message for one in failures if one.what != "row"}
        sampled = dict(landed.sampled or ())
        outcomes = tuple(
            self._outcome(segment, request, rows.get(segment.slot), sampled.get(segment.slot, ()))
            for segment, request in zip(ticket.plan.segments, ticket.requests, strict=True)
        )
        work = tuple(
            WorkOutcome(
                one.slot,
                self._nbytes(one.kind, one.position),
                copies.get(
                    (one.slot, one.kind.value, one.position), copies.get((one.slot, one.kind.value, 0))
                ),
            )
            for one in ticket.plan.work
        )
        ticket.result = StepResult(ticket.number, outcomes, landed.seconds, work)
        os.eventfd_write(ticket.fd, 1)

    def _outcome(
        self, segment: Segment, request: Request, error: str | None, sampled: tuple[int, ...]
    ) -> Outcome:
        if error is not None:
            return Outcome(segment.slot, 0, error=error)
        tokens: tuple[SampledToken, ...] = ()
        if segment.sample:
            first = segment.start + segment.count - len(request.submission.prompt.token_ids)
            tokens = tuple(
                SampledToken(self._token(request, first + at, token))
                for at, token in enumerate(sampled or (None,))
            )
        return Outcome(segment.slot, segment.count, tokens)

    def _token(self, request: Request, number: int, token: int | None) -> int:
        """The ``number``-th token of an answer, from 0: its last one is the one that ends it.

        Args:
            token: that was recorded; None: the trace has no content.
        """
        answer = self._script.answers[request.order]
        if answer.finished and number == answer.taken - 1:
            return STOP
        return self._made_up(request, number, answer.taken) if token is None else token

    def _made_up(self, request: Request, number: int, taken: int) -> int:
        ids = self._answers.get(request)
        if ids is None:
            prompt = len(request.submission.prompt.token_ids)
            ids = self._script.sequences.tokens(request.order, prompt + taken)[prompt:]
            self._answers[request] = ids
        return int(ids[number]) if number < len(ids) else 0

    def _nbytes(self, kind: WorkKind, position: int) -> int:
        if kind is WorkKind.SAVE:
            return self.capabilities.saved_bytes(position)
        return self.capabilities.captured_bytes(position) if kind is WorkKind.CAPTURE else 0

    def collect(self, ticket: Ticket) -> StepResult:
        done = self._flights.popleft()
        assert done is ticket and done.result is not None
        os.eventfd_read(done.fd)
        return done.result

    def shutdown(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def recorded_memory(answers: dict[str, deque[int | None]]) -> FreeMemory:
    """Free memory as it was. Nothing where it was not asked for: then what is done differs, and shows."""

    def ask(use: str) -> int | None:
        waiting = answers.get(use)
        return waiting.popleft() if waiting else None

    return ask
