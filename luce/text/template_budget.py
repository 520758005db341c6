"""How much work a chat template may do.

A template is code from a model file, and Python cannot interrupt it safely. So its work is counted instead: loop
bodies, calls and every operation that makes or scans text charge a budget *before* they run, in steps of about 64
characters. The count depends on the template and the input alone, so a render ends alike on every machine.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar

import attrs
from jinja2.exceptions import TemplateError
from jinja2.utils import Namespace

__all__ = ["Budget", "TemplateLimitError", "charge", "charge_copy", "limited", "measure", "weigh"]

BASE_STEPS = 200_000
"""Steps of a render with a tiny input: about half a second of the most expensive loop."""
STEPS_PER_INPUT_STEP = 100
"""Further steps for each step that measuring the input takes: templates pass over it some ten times."""
CHARACTERS = 64
"""Characters scanned or copied per step."""
MAX_DEPTH = 200
"""Nesting of lists and mappings; hashing and printing recurse on the machine's stack."""
ITEMS = 8
"""List items scanned or copied per step."""


class TemplateLimitError(TemplateError):
    """The template wants more work, or a larger text, than it may have."""


@attrs.define
class Budget:
    """Steps that a render has left."""

    steps: int

    @classmethod
    def for_input(cls, value: object) -> Budget:
        """A budget that fits a render of this input."""
        return cls(BASE_STEPS + STEPS_PER_INPUT_STEP * _size(value, None))

    def charge(self, steps: int) -> None:
        """Raises TemplateLimitError when the budget is spent."""
        self.steps -= max(steps, 0)
        if self.steps < 0:
            raise TemplateLimitError("the chat template needs more work than a chat template may take")


_current: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


@contextmanager
def limited(budget: Budget) -> Iterator[None]:
    """Charge everything in this block (on this thread) to ``budget``."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def charge(steps: int) -> None:
    budget = _current.get()
    if budget is None:
        raise TemplateLimitError("a chat template runs only within a budget")
    budget.charge(steps)


def charge_copy(length: int, *, text: bool = True) -> None:
    """Charge for making a text of that many characters, or a list of that many items."""
    charge(1 + length // (CHARACTERS if text else ITEMS))


def measure(value: object) -> None:
    """Charge for all of a value, to its leaves; shared parts count each time, as they do when it is printed."""
    _size(value, _current.get())


def weigh(value: object) -> None:
    """Charge for scanning a value once: text and lists by length, to the leaves; mappings are looked up."""
    if not isinstance(value, Mapping):
        measure(value)


def _size(value: object, budget: Budget | None) -> int:
    """The steps of a value to its leaves. What is in one list or mapping is charged together."""
    total = 0
    waiting: list[tuple[Iterable[object], int]] = [((value,), 0)]
    while waiting:
        parts, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise TemplateLimitError(f"the chat template nests lists more than {MAX_DEPTH} deep")
        steps = 0
        for part in parts:
            if type(part) is str:  # as most are, and a call would cost more than all else here
                steps += 1 + len(part) // CHARACTERS
                continue
            own, inside = _opened(part)
            steps += own
            if inside:
                waiting.append((inside, depth + 1))
        total += steps
        if budget is not None:
            budget.charge(steps)
    return total


def _opened(item: object) -> tuple[int, Iterable[object]]:
    """(the steps of a value without its parts, its parts)."""
    if isinstance(item, str):
        return 1 + len(item) // CHARACTERS, ()
    if isinstance(item, dict | Mapping):
        return 1 + len(item) // ITEMS, (*item.keys(), *item.values())
    if isinstance(item, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return 1 + len(item) // ITEMS, item
    if isinstance(item, Namespace):
        return 1, object.__getattribute__(item, "_Namespace__attrs").values()
    return 1, ()
