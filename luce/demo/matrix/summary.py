"""What happened in all cells that were run."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from luce.demo.matrix.running import Report

__all__ = ["Summary"]


@attrs.define
class Summary:
    """Counts over cells."""

    cells: int = 0
    wrong: list[str] = attrs.field(factory=list)
    """Names of cells where a promise was broken."""
    missing: list[str] = attrs.field(factory=list)
    """Names of cells where what they are about did not happen."""
    counts: dict[str, int] = attrs.field(factory=dict)

    def add(self, report: Report) -> None:
        self.cells += 1
        if report.wrong:
            self.wrong.append(report.cell.name)
        if report.missing:
            self.missing.append(report.cell.name)
        for name in (
            "tokens",
            "cached_tokens",
            "evictions",
            "saves",
            "drops",
            "redone",
            "moved",
            "lent",
            "shared",
        ):
            self._count(name, getattr(report, name))
        self._count("hits", report.cached_tokens > 0)
        self._count("deep", report.depth > 1)
        for name in ("answered", "cancelled", "not_finite", "not_encoded", "beside"):
            self._count(name, getattr(report.company, name))
        self._count("neighbours_tokens", report.company.tokens)

    def _count(self, name: str, more: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    @property
    def good(self) -> bool:
        return not self.wrong and not self.missing

    def lines(self) -> Iterator[tuple[str, str]]:
        """What is counted, and the counts."""
        count = {name: f"{number:,}" for name, number in self.counts.items()}
        if not count:
            return
        yield "cells", f"{self.cells} run, {self.cells - len(self.wrong)} with the same bits as alone"
        yield (
            "request",
            f"{count['tokens']} tokens compared, {count['shared']} steps shared with neighbours; two steps in flight "
            f"in {count['deep']} cells",
        )
        yield (
            "cache",
            f"{count['hits']} hits with {count['cached_tokens']} tokens, {count['evictions']} evictions",
        )
        yield (
            "parking",
            f"{count['saves']} saved, {count['drops']} dropped with {count['redone']} rows computed again; back in "
            f"another slot {count['moved']} times, its slot lent {count['lent']} times",
        )
        yield (
            "neighbours",
            f"{count['answered']} answered, {count['cancelled']} cancelled, {count['not_finite']} failed for rows that "
            f"are no numbers, {count['not_encoded']} for a picture, {count['beside']} of these beside the request; "
            f"{count['neighbours_tokens']} tokens compared",
        )
