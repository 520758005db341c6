"""The neighbours of a cell: as many as there are slots, each asking again as soon as it has its answer.

Two of them ask for short answers, so that slots change hands all the time and a request that was parked finds others
where it was. Every token that a neighbour gets is compared, too.
"""

from __future__ import annotations

from random import Random

import attrs
import trio

from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import Delta
from luce.demo.matrix.cells import Cell
from luce.demo.matrix.parking import ParkingPolicy
from luce.demo.matrix.questions import LONG, SHORT, Bits, Questions, bits, named
from luce.engines.seam import SampledToken

__all__ = ["Company", "Tally"]

SHORT_SEATS = 2
MOMENTS = 30
"""A request is cancelled before so many further plans."""
PAUSE = 0.05
"""Seconds at most between a neighbour's failures."""


@attrs.define
class Tally:
    """What neighbours went through."""

    answered: int = 0
    cancelled: int = 0
    not_finite: int = 0
    """Failed for rows that are not numbers."""
    not_encoded: int = 0
    """Failed for a picture that could not be encoded."""
    beside: int = 0
    """Of the cancelled and failed ones: while the compared request was on its way."""
    tokens: int = 0
    """Compared."""
    wrong: list[str] = attrs.field(factory=list)


class Company:
    """Args:
    cell: says what becomes of them.
    references: the bits of each neighbour's answer when it is alone, by the id of its question.
    """

    def __init__(
        self,
        cell: Cell,
        service: Service,
        policy: ParkingPolicy,
        questions: Questions,
        references: dict[str, Bits],
    ) -> None:
        self.tally = Tally()
        self._cell = cell
        self._service = service
        self._policy = policy
        self._questions = questions
        self._references = references
        self._over = False
        self._handles: set[Handle] = set()

    async def run(self) -> None:
        """Ask until :meth:`leave`."""
        async with trio.open_nursery() as nursery:
            for seat in range(max(SHORT_SEATS, self._cell.slots)):
                nursery.start_soon(self._sit, seat)

    def leave(self) -> None:
        """Cancel what is being asked, and ask no more."""
        self._over = True
        for handle in self._handles:
            handle.cancel()
        self._policy.planned.unpark_all()

    async def reach(self, plans: int) -> None:
        """Return after so many plans."""
        while self._policy.plans < plans and not self._over:
            await self._policy.planned.park()

    async def _sit(self, seat: int) -> None:
        rng = Random(f"{self._cell.name} {seat}")
        company, kinds = self._cell.company, self._questions.neighbours
        turn = 0
        while not self._over:
            name = f"{company} {seat}.{turn}"
            if company == "failing" and seat < SHORT_SEATS:
                await self._fail(name, in_encoder=(seat + turn) % 2 == 1)
                with trio.move_on_after(PAUSE):  # nothing is planned while everybody pauses
                    await self.reach(self._policy.plans + rng.randrange(1, 6))
            else:
                asked = kinds[(seat + turn) % len(kinds)]
                longest = SHORT if seat < SHORT_SEATS else LONG
                limit = min(longest, asked.params.max_tokens or longest)
                moment = rng.randrange(MOMENTS) if company == "cancelled" else None
                await self._ask(asked, name, limit, moment)
            turn += 1

    async def _ask(self, asked: Submission, name: str, limit: int, moment: int | None) -> None:
        """Ask for at most ``limit`` tokens; cancelled after ``moment`` plans."""
        handle = self._submit(named(asked, name, limit))
        if moment is None:
            reason, tokens, error = await self._read(handle)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel, handle, self._policy.plans + moment)
                reason, tokens, error = await self._read(handle)
                nursery.cancel_scope.cancel()
        self._compare(asked, name, tokens, limit if reason in ("stop", "length") else None)
        if reason == "error":
            self.tally.wrong.append(f"neighbour {name} ({asked.id}) failed: {error}")
        elif reason == "cancelled":
            self.tally.cancelled += not self._over
            self._beside()
        else:
            self.tally.answered += 1

    async def _cancel(self, handle: Handle, plans: int) -> None:
        await self.reach(plans)
        handle.cancel()

    async def _fail(self, name: str, *, in_encoder: bool) -> None:
        """Ask about a picture that fails in the encoder, or about one whose rows fail in the step."""
        asked = self._questions.not_encoded if in_encoder else self._questions.not_finite
        reason, tokens, error = await self._read(self._submit(named(asked, name)))
        if reason == "error" and not tokens and ("made to fail" if in_encoder else "not finite") in error:
            self.tally.not_encoded += in_encoder
            self.tally.not_finite += not in_encoder
            self._beside()
        elif reason != "cancelled":
            self.tally.wrong.append(
                f"neighbour {name} ({asked.id}) was to fail and ended so: {reason} {error}"
            )

    def _beside(self) -> None:
        self.tally.beside += self._policy.started and not self._over

    def _submit(self, asked: Submission) -> Handle:
        handle = self._service.submit(asked)
        self._handles.add(handle)
        return handle

    async def _read(self, handle: Handle) -> tuple[str, list[SampledToken], str]:
        tokens: list[SampledToken] = []
        while isinstance(item := await handle.next(), Delta):
            tokens += item.tokens
        self._handles.discard(handle)
        return item.reason, tokens, str(item.error or "")

    def _compare(self, asked: Submission, name: str, tokens: list[SampledToken], limit: int | None) -> None:
        """``limit``: of an answer that came to its end; others are the beginning of one."""
        found, expected = bits(tokens), self._references[asked.id]
        self.tally.tokens += len(found)
        if limit is not None and len(found) != min(limit, len(expected)):
            self.tally.wrong.append(f"neighbour {name} ({asked.id}) got {len(found)} tokens")
        elif found != expected[: len(found)]:
            self.tally.wrong.append(f"neighbour {name} ({asked.id}) got another answer than alone")
