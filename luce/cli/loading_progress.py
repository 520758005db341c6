"""Progress of loading weights: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Progressed", "loading_progress"]


class Progressed(Protocol):
    """What loaders report (:class:`luce.engines.qwen35.take.LoadProgress`)."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def tensor(self) -> str: ...


@contextmanager
def loading_progress(name: str, console: Console) -> Iterator[Callable[[Progressed], None]]:
    """Show progress while the block runs; yields the callback for the loader.

    Args:
        name: of the model.
        console: where to; decides by being a terminal or not.
    """
    if not console.is_terminal:
        yield _plain(name, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"loading {name}", total=None)

        def update(state: Progressed) -> None:
            bar.update(task, completed=state.done, total=state.total)

        yield update


def _plain(name: str, console: Console) -> Callable[[Progressed], None]:
    """A line at a tenth, not more than one a second, and one at the end."""
    last, shown = -1, time.monotonic()

    def update(state: Progressed) -> None:
        nonlocal last, shown
        tenth, now = 10 * state.done // max(1, state.total), time.monotonic()
        if tenth > last and (tenth == 10 or now - shown >= 1):
            last, shown = tenth, now
            console.print(f"loading {name}: {10 * tenth} %", highlight=False, soft_wrap=True)

    return update
