"""A constraint by rule, for the fake engine: what the next token may be is a function of all tokens before."""

from __future__ import annotations

import threading
from collections.abc import Callable

from luce.engines.seam import Mask
from luce.errors import RequestError
from luce.sampling.masks import mask_of

IDS = 256


class ByRule:
    """``needs[i % len(needs)]`` says what token i needs: f nothing, r a mask that is known at once, c a computed one.

    Args:
        fails_at: computing the mask of this token fails.
        ends_at: after this many tokens the answer is complete.
        gate: computing waits for it.
    """

    def __init__(
        self,
        needs: str,
        *,
        fails_at: int | None = None,
        ends_at: int | None = None,
        gate: threading.Event | None = None,
        broken: Callable[[], Exception] = lambda: RequestError("out of rules"),
    ) -> None:
        self._needs = needs
        self._settings = {"fails_at": fails_at, "ends_at": ends_at, "gate": gate, "broken": broken}
        self._fails_at, self._ends_at, self._gate, self._broken = fails_at, ends_at, gate, broken
        self.tokens: list[int] = []
        self.complete = False
        self.mask: Mask | None = None
        if self._need != "f":
            self.mask = self._allowed()

    @property
    def _need(self) -> str:
        return self._needs[len(self.tokens) % len(self._needs)]

    def allowed(self) -> list[int]:
        key = sum((place + 1) * token for place, token in enumerate(self.tokens))
        return [index for index in range(IDS) if (index * 37 + key) % 11 < 2]

    def _allowed(self) -> Mask:
        return mask_of(self.allowed(), IDS)

    def take(self, token: int) -> bool:
        if self.mask is not None:
            assert token in self.allowed(), "a token that the mask does not allow"
        self.tokens.append(token)
        self.complete = len(self.tokens) == self._ends_at
        self.mask = self._allowed() if self._need == "r" else None
        return self._need == "c" and not self.complete

    def compute(self) -> None:
        if self._gate is not None:
            self._gate.wait()
        if len(self.tokens) == self._fails_at:
            raise self._broken()
        self.mask = self._allowed()

    def fork(self) -> ByRule:
        other = ByRule(self._needs, **self._settings)  # type: ignore[arg-type]
        other.tokens, other.complete, other.mask = [*self.tokens], self.complete, self.mask
        return other
