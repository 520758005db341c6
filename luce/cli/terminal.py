"""The terminal around a prompt: line editing and history, and how it is left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["line_editing", "prompted"]


@contextmanager
def line_editing() -> Iterator[None]:
    """While it lasts :func:`input` edits lines and keeps a history, on a terminal.

    A prompt that Ctrl-C ends leaves its worker thread waiting for a line: the terminal's settings are put back here,
    and what comes next begins on its own line.
    """
    if not sys.stdin.isatty():
        yield
        return
    import termios

    with suppress(ImportError):
        import readline  # input() uses it from now on

        readline.parse_and_bind(
            "set enable-bracketed-paste off"
        )  # a mode that an abandoned prompt would leave on
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    except* KeyboardInterrupt:
        print()
        raise
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def prompted() -> str | None:
    """The next line, None at the end of the input."""
    terminal = sys.stdin.isatty()
    try:
        return input("> " if terminal else "")
    except EOFError:
        if terminal:
            print()
        return None
