"""The scripts as files: none is left out, and none of its checks."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from tests.clients import test_node_clients, test_python_clients
from tests.clients.install import HERE, Group
from tests.clients.scripts import Script

FILES = sorted({*HERE.glob("python/*.py"), *HERE.glob("node/*.mjs")})


def scripts() -> dict[str, Script]:
    marks = [
        mark for module in (test_python_clients, test_node_clients) for mark in module.test_client.pytestmark
    ]
    rows = [row for mark in marks if mark.name == "parametrize" for row in mark.args[1]]
    return {row.values[0].path.name: row.values[0] for row in rows}


def test_every_script_is_run() -> None:
    assert sorted(scripts()) == sorted(file.name for file in FILES if file.stem != "checks")


def test_every_check_is_a_test() -> None:
    for name, script in scripts().items():
        text = script.path.read_text()
        if name.endswith(".mjs"):
            assert len(script.checks) == text.count("check(") > 0, name
            continue
        functions = [
            node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        marked = [
            one.name for one in functions if any(ast.unparse(mark) == "check" for mark in one.decorator_list)
        ]
        assert script.checks == marked != [], name


def test_checks_without_a_result_have_failed(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A script that breaks off half way fails its other checks, with what it said last."""
    monkeypatch.setattr("tests.clients.scripts.HERE", tmp_path)
    (tmp_path / "python").mkdir()
    (tmp_path / "python/some.py").write_text(
        "import json, sys\n"
        "def check(function):\n    return function\n"
        "@check\ndef good():\n    pass\n"
        "@check\ndef never():\n    pass\n"
        'open(sys.argv[2], "w").write(json.dumps({"check": "good", "error": None}) + "\\n")\n'
        'sys.exit("it broke")\n'
    )
    (tmp_path / "facts.json").write_text(json.dumps({}))
    group = Group("some", "")
    monkeypatch.setattr(Group, "python", Path(sys.executable))
    found = Script("some", "some.py").run(group, tmp_path / "facts.json", tmp_path / "results.jsonl")
    assert found["good"] is None
    assert "the script ended without it: exit status 1" in found["never"] and "it broke" in found["never"]
