"""The set-up itself: exact pins, nothing half done, and loud about what it cannot get."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import install
from tests.clients.install import GROUPS, Group, InstallError, main, require


@pytest.mark.parametrize("name", [name for name in GROUPS if name != "node"])
def test_every_package_is_pinned(name: str) -> None:
    lines = [line for line in GROUPS[name].pins.read_text().splitlines() if line and line[0] != "#"]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_node_packages_are_pinned_and_name_no_host() -> None:
    folder = GROUPS["node"].pins.parent
    asked = json.loads((folder / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in asked.values())
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert packages[""]["dependencies"] == asked
    for name, package in packages.items():
        if name:
            assert package["integrity"].startswith("sha512-") and "resolved" not in package, name


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """The only group there is, in a folder of its own; its pip does what the test says."""
    (tmp_path / "requirements-one.txt").write_text("one==1\n")
    one = Group("one", "a client")
    monkeypatch.setattr(install, "HERE", tmp_path)
    monkeypatch.setattr(install, "DATA", tmp_path / "data")
    monkeypatch.setattr(install, "GROUPS", {"one": one})
    monkeypatch.delenv("LUCE_TEST_CLIENTS", raising=False)
    return one


def pip(monkeypatch: pytest.MonkeyPatch, does: Callable[[Path, Path], None]) -> None:
    monkeypatch.setattr(install, "_pip", does)


def test_what_is_there_is_left_alone_until_its_pins_change(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[Path] = []
    pip(monkeypatch, lambda python, pins: installed.append(pins))
    assert main() == 0 and main() == 0
    assert installed == [group.pins] and group.python.exists()
    assert require("one") is group
    group.pins.write_text("one==2\n")
    main()
    assert len(installed) == 2


def test_what_cannot_be_had_is_said_and_skipped(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(python: Path, pins: Path) -> None:
        raise InstallError("no network")

    pip(monkeypatch, fails)
    assert main() == 0
    assert "*** CLIENTS MISSING, tests will be skipped: one (a client): no network" in capsys.readouterr().err
    assert not group.directory.exists()
    with pytest.raises(pytest.skip.Exception, match=r"CLIENTS NOT TESTED: one \(a client\): no network"):
        require("one")
    pip(monkeypatch, lambda python, pins: None)
    main()
    assert require("one") is group and not group.missing.exists()


def test_an_install_that_is_broken_off_is_begun_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(python: Path, pins: Path) -> None:
        raise KeyboardInterrupt

    pip(monkeypatch, breaks)
    with pytest.raises(KeyboardInterrupt):
        main()
    assert not group.directory.exists() and not group.present


def test_groups_can_be_left_out(
    group: Group, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip(monkeypatch, lambda python, pins: pytest.fail("it was not wanted"))
    monkeypatch.setenv("LUCE_TEST_CLIENTS", "none")
    main()
    with pytest.raises(pytest.skip.Exception, match="LUCE_TEST_CLIENTS leaves it out"):
        require("one")


def test_node_that_is_too_old_or_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="npm or node is not installed"):
        install._npm(tmp_path)
    for name, says in (("npm", "exit 1"), ("node", "echo v18.20.1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{says}\n")
        program.chmod(0o755)
    with pytest.raises(InstallError, match=r"Node.js 20 or newer is needed, not v18.20.1"):
        install._npm(tmp_path)


def test_a_client_that_fails_to_install_gives_its_last_line(tmp_path: Path) -> None:
    program = tmp_path / "pip"
    program.write_text("#!/bin/sh\necho ERROR: No matching distribution >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(InstallError, match="No matching distribution"):
        install._run([str(program)])
