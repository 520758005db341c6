"""What the fake engine raises when policy breaks the seam's contract."""

from __future__ import annotations

__all__ = ["PlanError", "require"]


class PlanError(AssertionError):
    """Policy broke the seam's contract."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise PlanError(message)
