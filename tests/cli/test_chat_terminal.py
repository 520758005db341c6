"""`luce chat` on a terminal: Ctrl-C stops an answer, then the prompt; Ctrl-D leaves."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import LUCE
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


class Terminal:
    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        # A job in the background of a script ignores Ctrl-C, and so would its children.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *LUCE, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.seen = self.seen.split(text, 1)[1]

    def wait_for_more(self) -> None:
        assert self.seen or select.select([self.master], [], [], 20)[0]

    def rest(self) -> str:
        """What has been written and not waited for."""
        while select.select([self.master], [], [], 0.1)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(2)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    folder = write_hf(tmp_path / "tiny", random_model())
    found = Terminal("chat", str(folder), "--context", "4096", "--temperature", "1", "--seed", "54")
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        os.close(found.master)


def test_interrupts(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("Hello\n")
    terminal.wait_for("Hello\r\n")  # the echo
    terminal.wait_for_more()  # the answer has begun
    terminal.interrupt()
    terminal.wait_for("[cancelled]", 5)
    terminal.wait_for("> ")
    terminal.type("/help\n")
    terminal.wait_for("/system TEXT")
    terminal.wait_for("> ")
    settings = termios.tcgetattr(terminal.master)
    assert not settings[3] & termios.ICANON, "the line editor is at work"
    terminal.interrupt()
    assert terminal.process.wait(5) == 130
    assert termios.tcgetattr(terminal.master)[3] & (termios.ICANON | termios.ECHO) == (
        termios.ICANON | termios.ECHO
    )
    assert terminal.rest().endswith("\n")


def test_history(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("/nonsense\n")
    terminal.wait_for("/nonsense is no command")
    terminal.wait_for("> ")
    terminal.type("\x1b[A\x1b[D\x1b[D\x1b[D\x7f\n")  # the line before, one letter less
    terminal.wait_for("/nonsnse is no command")


def test_end_of_input_leaves(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(5) == 0
    assert terminal.rest().endswith("\n")
