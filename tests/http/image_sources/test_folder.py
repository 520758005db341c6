"""file: URLs stay below their folder, whatever links and names there are."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from luce.errors import RequestError
from luce.http.image_sources import folder as module
from luce.http.image_sources.folder import read_picture_file

FIELD = "messages[0].content[0].image_url.url"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``pictures`` with files and all kinds of traps, and a secret beside it."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    root = tmp_path / "pictures"
    (root / "inner").mkdir(parents=True)
    (tmp_path / "pictures-else").mkdir()
    (tmp_path / "pictures-else" / "a.png").write_bytes(b"secret")
    (root / "a.png").write_bytes(b"picture")
    (root / "inner" / "b ü.png").write_bytes(b"inner")
    (root / "link.png").symlink_to("../secret.png")
    (root / "good-link.png").symlink_to("a.png")
    (root / "out").symlink_to("..")
    (root / "abs").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    return root


def read(url: str, root: Path, most: int = 100) -> bytes:
    return read_picture_file(url, root, field=FIELD, max_bytes=most)


def test_files_that_are_read(tree: Path) -> None:
    for head in ("file://", "file:", "FILE://localhost"):
        assert read(f"{head}{tree}/a.png", tree) == b"picture"
    assert read(f"file://{quote(str(tree / 'inner' / 'b ü.png'))}", tree) == b"inner"
    assert read(f"file://{tree}/a.png", tree, 7) == b"picture"
    assert read(f"file://{tree}/a.png", Path(f"{tree}/")) == b"picture"


def test_the_folder_itself_may_be_a_link(tree: Path) -> None:
    link = tree.parent / "named"
    link.symlink_to(tree)
    assert read(f"file://{link}/a.png", link) == read(f"file://{tree}/a.png", link) == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "file://{root}/../secret.png", "file://{root}/inner/../../secret.png", "file://{root}/%2e%2e/secret.png",
        "file://{root}%2F..%2Fsecret.png", "file://{root}/out/secret.png", "file://{root}/abs/secret.png",
        "file://{root}/link.png", "file://{root}/good-link.png", "file://{root}/out/pictures/a.png",
        "file://{root}/pipe", "file://{root}/inner", "file://{root}/", "file://{root}", "file://{root}//a.png",
        "file://{root}/./a.png", "file://{root}/a.png/", "file://{root}/a.png%00", "file://{root}/a.png%00.txt",
        "file://{root}-else/a.png", "file:///etc/passwd", "file:a.png", "file://{root}/none.png", "file:",
        "file://host{root}/a.png", "file://{root}/a.png?x", "file://{root}/a.png#x", "file:////{root}/a.png",
        "file://{root}/" + "a" * 9000,
    ],
)  # fmt: skip
def test_what_is_not_read(tree: Path, url: str) -> None:
    with pytest.raises(RequestError) as found:
        read(url.format(root=tree), tree)
    assert found.value.field == FIELD and found.value.message == (
        f"{FIELD}: there is no such file below the folder that this server reads pictures from (--image-folder)"
    )


def test_sizes(tree: Path) -> None:
    with pytest.raises(RequestError, match="too large; at most 6 bytes"):
        read(f"file://{tree}/a.png", tree, 6)


def descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_no_descriptor_is_left(tree: Path) -> None:
    before = descriptors()
    for name in ("a.png", "link.png", "pipe", "inner/none", "out/secret.png", "none/none/none"):
        for most in (100, 1):
            try:
                read(f"file://{tree}/{name}", tree, most)
            except RequestError:
                pass
    assert descriptors() == before


def test_a_folder_exchanged_for_a_link_while_it_is_walked(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at first is not looked up again: each name is opened in its open parent, links refused."""
    step = module._step
    (tree.parent / "b ü.png").write_bytes(b"secret")
    swapped = []

    def swap(descriptor: int, name: bytes, flags: int) -> int:
        if name == b"inner" and not swapped:
            found = step(descriptor, name, flags)
            (tree / "inner").rename(tree / "moved")
            (tree / "inner").symlink_to(tree.parent)
            swapped.append(True)
            return found
        return step(descriptor, name, flags)

    monkeypatch.setattr(module, "_step", swap)
    url = f"file://{quote(str(tree / 'inner' / 'b ü.png'))}"
    assert read(url, tree) == b"inner" and swapped, "what was opened before the exchange"
    with pytest.raises(RequestError):
        read(url, tree)
