"""The fetcher of test data: what is pinned is checked, what fails leaves nothing, what is there is left alone."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

import tests.fetch as fetcher
from tests.fetch import FetchError, Package


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive that every download yields; downloads are counted in its suffix file."""
    path = tar(tmp_path / "thing-1.tgz", {"package/a.txt": b"a", "package/sub/b.txt": b"b"})
    monkeypatch.setattr(fetcher, "DATA", tmp_path / "data")

    def download(package: Package, scratch: Path) -> Path:
        if not path.exists():
            raise AssertionError("nothing should be downloaded")
        copy = scratch / path.name
        copy.write_bytes(path.read_bytes())
        return copy

    monkeypatch.setattr(fetcher, "_download", download)
    return path


def test_the_whole_archive_is_unpacked_once(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package("npm", "@scope/thing", "1", archive_sha256=sha256(archive.read_bytes()))
    monkeypatch.setattr(fetcher, "PACKAGES", (package,))
    assert fetcher.main() == 0
    assert package.present
    assert (package.directory / "package/sub/b.txt").read_bytes() == b"b"
    archive.unlink()
    assert fetcher.main() == 0, "the second call downloads nothing"
    assert fetcher.require("@scope/thing") == package.directory


def test_members_are_pinned_one_by_one(archive: Path) -> None:
    package = Package("pypi", "thing", "1", members={"package/a.txt": sha256(b"a")})
    fetcher.fetch(package)
    assert (package.directory / "package/a.txt").read_bytes() == b"a"
    assert not (package.directory / "package/sub").exists()


@pytest.mark.parametrize(
    ("package", "message"),
    [
        (Package("npm", "thing", "1", archive_sha256="0" * 64), "thing-1.tgz has sha256"),
        (Package("npm", "thing", "1", members={"package/a.txt": "0" * 64}), "package/a.txt has sha256"),
        (Package("npm", "thing", "1", members={"package/c.txt": sha256(b"c")}), "has no package/c.txt"),
        (Package("npm", "thing", "1", members={"package/a.txt": None}), "pins neither"),
        (Package("npm", "thing", "1"), "pins neither"),
    ],
)
def test_what_does_not_match_leaves_nothing(archive: Path, package: Package, message: str) -> None:
    with pytest.raises(FetchError, match=message):
        fetcher.fetch(package)
    assert not package.present
    assert not package.directory.exists()


def test_paths_that_lead_outside_are_refused(archive: Path, tmp_path: Path) -> None:
    tar(archive, {"../outside.txt": b"x"})
    with pytest.raises(FetchError, match=r"\.\./outside"):
        fetcher.fetch(Package("npm", "thing", "1", archive_sha256=sha256(archive.read_bytes())))
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("/absolute.txt", b"x")
    with pytest.raises(FetchError, match="absolute"):
        fetcher.fetch(Package("pypi", "thing", "1", archive_sha256=sha256(archive.read_bytes())))
    assert not list(tmp_path.rglob("outside.txt"))


def test_a_failure_is_loud_and_tests_skip(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = Package("npm", "thing", "1", archive_sha256="0" * 64)
    monkeypatch.setattr(fetcher, "PACKAGES", (package,))
    assert fetcher.main() == 0
    assert capsys.readouterr().err.startswith("*** TEST DATA MISSING, tests will be skipped: npm thing 1: ")
    with pytest.raises(pytest.skip.Exception, match="npm package thing 1 was not fetched"):
        fetcher.require("thing")


def test_a_changed_row_is_fetched_again(archive: Path) -> None:
    row = Package("npm", "thing", "1", members={"package/a.txt": sha256(b"a")})
    fetcher.fetch(row)
    assert row.present
    assert not Package("npm", "thing", "1", archive_sha256=sha256(archive.read_bytes())).present
