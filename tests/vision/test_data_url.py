"""data: URLs, strictly."""

from __future__ import annotations

import base64
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import RequestError
from luce.vision.data_url import parse_data_url

DATA = bytes(range(256))
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64,",
        "DATA:IMAGE/PNG;BASE64,",
        "data:;base64,",
        "data:image/jpeg;charset=utf-8;name=a.jpg;base64,",
        " data:image/webp;base64,",
        "data:image/svg+xml;base64,",
    ],
)
def test_forms_of_the_head(head: str) -> None:
    assert parse_data_url(head + TEXT) == DATA


@given(st.binary(min_size=1, max_size=50))
def test_padding_may_be_missing_and_lines_wrapped(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    wrapped = "\r\n ".join(text[i : i + 7] for i in range(0, len(text), 7)) + "\n"
    for form in (text, text.rstrip("="), wrapped):
        assert parse_data_url(f"data:image/png;base64,{form}") == data


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.org/a.png", "http: URLs are not supported"),
        ("https://example.org/a.png", "https: URLs are not supported"),
        ("file:///etc/passwd", "file: URLs are not supported"),
        ("ftp://x", "ftp: URLs are not supported"),
        ("/tmp/a.png", "this is not a URL"),
        ("", "this is not a URL"),
        (TEXT, "this is not a URL"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;" + "a=b;" * 300 + "base64," + TEXT, "no comma before its data, in its first 1024"),
        ("x" * 100_000 + ":", "this is not a URL"),
        ("data:image/png," + TEXT, "is not base64"),
        ("data:image/png;utf8,x", "is not base64"),
        ("data:text/html;base64," + TEXT, "the media type is 'text/html'"),
        ("data:application/pdf;base64," + TEXT, "the media type is 'application/pdf'"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64, \n", "is empty"),
        ("data:image/png;base64,====", "wrongly padded"),
        ("data:image/png;base64,AAAAA", "cut off or wrongly padded"),
        ("data:image/png;base64,AA=", "cut off or wrongly padded"),
        ("data:image/png;base64,AAA==", "cut off or wrongly padded"),
        ("data:image/png;base64,AAAA====", "wrongly padded"),
        ("data:image/png;base64,AA-_", "URL-safe alphabet"),
        ("data:image/png;base64,AA!A", "the base64 data hold"),
        ("data:image/png;base64,AA%2B", "the base64 data hold"),
        ("data:image/png;base64,AA=A", "the base64 data hold"),
        ("data:image/png;base64,AAé=", "the base64 data hold"),
        ("data:image/png;base64,AA\0A", "the base64 data hold"),
    ],
)
def test_faults_are_named(url: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as found:
        parse_data_url(url, field="messages[0].content[0].image_url.url")
    assert found.value.field == "messages[0].content[0].image_url.url" and found.value.status == 400
    assert TEXT not in found.value.message and len(found.value.message) < 250


def test_size_is_checked_before_decoding() -> None:
    url = f"data:image/png;base64,{TEXT}"
    assert parse_data_url(url, max_bytes=256) == DATA
    with pytest.raises(RequestError, match="at most 200"):
        parse_data_url(url, max_bytes=200)


@given(st.text(max_size=30))
def test_anything_is_bytes_or_a_fault(text: str) -> None:
    for url in (text, f"data:{text}", f"data:image/png;base64,{text}"):
        try:
            assert isinstance(parse_data_url(url), bytes)
        except RequestError:
            pass


@pytest.mark.parametrize("line", [None, 76, 7])
def test_long_data_are_joined_from_their_pieces(line: int | None) -> None:
    data = random.Random(3).randbytes(1_000_001)
    text = base64.b64encode(data).decode()
    if line is not None:
        text = "\n".join(text[start : start + line] for start in range(0, len(text), line))
    assert parse_data_url(f"data:image/png;base64,{text}") == data
    for place, wrong in ((700_000, "="), (len(text) - 9, "é"), (300_000, "!")):
        with pytest.raises(RequestError, match="the base64 data hold"):
            parse_data_url(f"data:image/png;base64,{text[:place]}{wrong}{text[place + 1 :]}")


def test_a_head_without_end_is_not_taken_apart() -> None:
    """Sixty million parameters would be as many strings."""
    url = "data:" + ";" * 1_000_000 + ",AAAA"
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="no comma"):
            parse_data_url(url)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
