"""What is taken for clean of what compute-sanitizer said; the tool itself needs a GPU, so a script stands in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.compute_sanitizer import CASES, FOUND, Sanitizer, main

TOOL = """#!/bin/sh
if [ "$1" = --help ]; then echo "  --padding arg --report-api-errors arg"; exit; fi
case "$*" in
  *planted*gather*) echo "========= Invalid __global__ read of size 4 bytes"; exit {found} ;;
  *planted*) exit 0 ;;
  *test_norm.py*) echo "3 passed, 1 deselected in 0.1s"; echo "========= ERROR SUMMARY: 2 errors"; exit {found} ;;
  *test_copies.py*) echo "4 deselected in 0.1s"; echo "========= ERROR SUMMARY: 0 errors"; exit 5 ;;
  *test_moe.py*) sleep 60 ;;
esac
case "$LUCE_TEST_DEVICE $*" in
  "cuda-apart --tool memcheck "*"--padding 4096 --report-api-errors no "*) ;;
  "cuda-shown --tool racecheck "*) ;;
  *) exit 7 ;;
esac
echo "2 passed in 0.1s"
echo "========= ERROR SUMMARY: 0 errors"
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "compute-sanitizer"
    script.write_text(TOOL.format(found=FOUND))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["compute_sanitizer", *arguments])
    return main()


def test_clean_cases_and_a_fault_that_is_found(
    tool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = ["device", "attention"]
    assert _main(monkeypatch, "--tools", "memcheck", "--modules", *modules, "--logs", str(tool / "logs")) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in out] == [
        ["ok", "memcheck", what] for what in ("planted", "device", "attention")
    ]
    assert out[1].endswith("2 passed in 0.1s; ERROR SUMMARY: 0 errors")
    assert sorted(path.name for path in (tool / "logs").iterdir()) == [
        "memcheck-attention.txt",
        "memcheck-device.txt",
        "memcheck-planted-fault.txt",
    ]


@pytest.mark.parametrize(
    ("tools", "module", "wrong"),
    [
        ("memcheck", "norm", "memcheck norm"),  # the tool found something
        ("memcheck", "copies", "memcheck copies"),  # no test ran
        ("racecheck", "device", "racecheck planted fault"),  # a fault that is not found
    ],
)
def test_what_is_not_clean_fails(
    tool: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tools: str,
    module: str,
    wrong: str,
) -> None:
    assert _main(monkeypatch, "--tools", tools, "--modules", module) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"FAIL {wrong} ") for line in lines].count(True) == 1
    assert sum(line.startswith("FAIL") for line in lines) == 1


def test_a_case_that_takes_too_long_is_not_clean(tool: Path) -> None:
    ended = Sanitizer("memcheck", 0.2, ()).case("moe")
    assert ended.status is None and not ended.clean


def test_every_case_is_a_module_of_tests() -> None:
    assert all(Path(__file__).with_name(f"test_{module}.py").exists() for module in CASES)
