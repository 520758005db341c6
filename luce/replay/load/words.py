"""Texts of a wanted number of tokens, made from names: equal names are equal texts, so that prefixes are shared."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import shake_128

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["WORDS", "Words"]

_LIST = """
a I the of and to in is it that was for on are with as his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first been its
who now people my made over did down only way find use may water long little very after words called just
where most know get through back much before go good new write our used me man too any day same right look
think also around another came come work three word must because does part even place well such here take
why things help put years different away again off went old number great tell men say small every found
still between name should home big give air line set own under read last never us left end along while
might next sound below saw something thought both few those always looked show large often together asked
house world going want school important until form food keep children feet land side without boy once
animals life enough took four head above kind began almost live page got earth need far hand high year
mother light country father let night
"""
WORDS = tuple(_LIST.split())
"""Short and common: most vocabularies have each, with a blank before it, as one token."""

KEPT = 4096
"""Texts of names that are kept; more are made again."""


@attrs.define
class Words:
    """A vocabulary and what its words cost.

    Args:
        words: that texts are made of, each with a blank before it.
        costs: tokens of each, [words]; all above 0.
    """

    words: tuple[str, ...]
    costs: npt.NDArray[np.float64]
    _texts: OrderedDict[tuple[str, int], str] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def text(self, name: str, tokens: int) -> str:
        """About so many tokens of a name; fewer of them are the start of more, but for the last words."""
        if tokens <= 0:
            return ""
        key = name, tokens
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self._made(name, tokens)
            if len(self._texts) > KEPT:
                self._texts.popitem(last=False)
        else:
            self._texts.move_to_end(key)
        return found

    def _made(self, name: str, tokens: int) -> str:
        most = max(int(tokens / float(self.costs.min())), 1)
        drawn = np.frombuffer(shake_128(name.encode()).digest(2 * most), "<u2") % len(self.words)
        sums = np.cumsum(self.costs[drawn])
        fit = int(np.searchsorted(sums, tokens + 1e-6, side="right"))
        chosen = drawn[:fit].tolist()
        rest = tokens - (float(sums[fit - 1]) if fit else 0.0)
        cheapest = int(self.costs.argmin())
        chosen += [cheapest] * int(rest / float(self.costs[cheapest]) + 1e-6)
        if not chosen:
            chosen = [cheapest]
        return "".join([f" {self.words[one]}" for one in chosen])
