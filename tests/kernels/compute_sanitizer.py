"""Kernels' tests on a GPU under NVIDIA's compute-sanitizer: `python -m tests.kernels.compute_sanitizer [--logs DIR]`.

For each tool small cases of every test module of the kernels, each module in a process of its own, some of them side by
side; and planted faults, which the tool must find. Ends with 1 if a case is not clean or a planted fault is not found.
Each array is an allocation of its own there (LUCE_TEST_DEVICE=cuda-apart), so that the tool knows where it ends. For
racecheck (cuda-shown) kernels show the orders that it does not follow by itself (SHOW_ORDERS in kernels/device.h): what
stands for them in an engine is looked at by the thread sanitizer, on the host build (test_sanitizers.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
FOUND = 99
"""Exit status of a process in which the tool found something."""
PADDING = 4096
"""Bytes behind each allocation that are nobody's, where the tool can be asked for them."""
OUTSIDE = 1 << 20
"""A block of 256 bytes far behind a pool of four."""
FAULTS = {"memcheck": ("gather", str(OUTSIDE)), "racecheck": ("exchange", "0")}
"""What is planted for a tool."""
DEVICES = {"memcheck": "cuda-apart", "racecheck": "cuda-shown"}
"""LUCE_TEST_DEVICE for a tool."""
CASES = {
    "device": "works_together or matrix_instruction or bulk_copies",
    "norm": "pointwise or picked",
    "copies": "copied or filled",
    "gemm_decode": "added_to_the_residual or (gate_and_up and 4) or (who_does and Q4_K)",
    "gemm_chain": "small_chain or (clusters and Q4_K and 8)",
    "gemm_wide": "products_are_added",
    "gemm_prefill": "writes_its_columns_alone",
    "gemm_plain": "products_are_added",
    "gemm_tower": "neighbours",
    "attention": "outside_the_pool",
    "deltanet": "not_finite",
    "moe": "choices_are_numpys or shared_memory_where_there",
    "sampler": "test_masks or counts_follow or passed_over",
    "embedding": "outside_the_table",
    "matvec": "not_rounded",
    "vision_attention": "operands_are_the_same",
    "vision_rows": "patches",
}
"""Tests by module, as pytest's -k takes them."""


@attrs.frozen
class Ended:
    """One process under the tool."""

    name: str
    status: int | None
    """None: it took too long."""
    said: str
    seconds: float

    @property
    def summary(self) -> str:
        """What the tool and pytest said last."""
        lines = re.findall(
            r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$|^(\d+ (?:passed|failed).*)$", self.said, re.M
        )
        return "; ".join(tool or test for tool, test in lines) or "no summary"

    @property
    def clean(self) -> bool:
        return self.status == 0 and " passed" in self.said and "SUMMARY" in self.said


@attrs.frozen
class Sanitizer:
    tool: str
    seconds: float
    """That a process may take."""
    options: tuple[str, ...]

    def run(self, name: str, arguments: Sequence[str]) -> Ended:
        command = ["compute-sanitizer", "--tool", self.tool, "--error-exitcode", str(FOUND), *self.options]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "LUCE_TEST_DEVICE": DEVICES[self.tool], "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=self.seconds)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
            status = None
        return Ended(f"{self.tool} {name}", status, said, time.monotonic() - began)

    def case(self, module: str) -> Ended:
        options = ["-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(ROOT)]
        return self.run(
            module, ["-m", "pytest", *options, f"tests/kernels/test_{module}.py", "-k", CASES[module]]
        )

    def fault(self) -> Ended:
        return self.run("planted fault", ["-m", "tests.kernels.planted", *FAULTS[self.tool]])


def _options(tool: str) -> tuple[str, ...]:
    """Libraries ask the driver for functions that it may not have, which memcheck would report as errors."""
    told = subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True, check=False)
    wanted = {"--padding": str(PADDING), "--report-api-errors": "no"} if tool == "memcheck" else {}
    known = [item for item in wanted.items() if item[0] in told.stdout + told.stderr]
    return "--print-limit", "20", *(word for item in known for word in item)


def _ended(
    sanitizers: Sequence[Sanitizer], modules: Sequence[str], beside: int
) -> Iterator[tuple[Ended, bool]]:
    """Every process with whether it is as it should be, faults first."""
    with ThreadPoolExecutor(beside) as pool:
        faults = [pool.submit(one.fault) for one in sanitizers]
        cases = [pool.submit(one.case, module) for module in modules for one in sanitizers]
        for fault in faults:
            ended = fault.result()
            yield ended, ended.status == FOUND
        for case in cases:
            ended = case.result()
            yield ended, ended.clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tools", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--modules", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=120.0, help="that a process may take (default 120)")
    parser.add_argument("--beside", type=int, default=4, help="processes at once (default 4)")
    parser.add_argument("--logs", type=Path, help="directory for what each process said")
    args = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        parser.error("there is no compute-sanitizer in PATH; it comes with the CUDA toolkit, in its bin")
    sanitizers = [Sanitizer(tool, args.seconds, _options(tool)) for tool in args.tools]
    right = True
    for ended, good in _ended(sanitizers, args.modules, args.beside):
        status = "too long" if ended.status is None else f"status {ended.status}"
        print(
            f"{'ok  ' if good else 'FAIL'} {ended.name:<28} {ended.seconds:5.1f} s  {status}  {ended.summary}",
            flush=True,
        )
        right &= good
        if args.logs is not None:
            args.logs.mkdir(parents=True, exist_ok=True)
            (args.logs / f"{ended.name.replace(' ', '-')}.txt").write_text(ended.said[-60_000:])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
