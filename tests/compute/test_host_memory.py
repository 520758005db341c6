"""Heaps of the C library, in a process of its own: what is set stays set."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

THREADS = """
import ctypes, sys, threading
from luce.compute.host_memory import use_one_heap
if sys.argv[1] == "one":
    assert use_one_heap()
barrier = threading.Barrier(8)
def allocate():
    barrier.wait()  # all live at once, so that no heap is passed on
    held = [bytearray(20_000) for _ in range(20)]
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other heaps")
def test_threads_share_one_heap() -> None:
    def heaps(how: str) -> int:
        command = [sys.executable, "-c", THREADS, how]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr.count("Arena ")

    assert heaps("many") > 2, "the trap: threads take heaps of their own"
    assert heaps("one") <= 1
