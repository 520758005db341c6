"""Which hosts a picture may be fetched from."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.http.image_sources.hosts import HostRule, UrlError, parse_host_rule, parse_remote_url

RULES = [
    HostRule("pictures.example.org"),
    HostRule("*.cdn.example.net"),
    HostRule("other.example", 8443),
    HostRule("192.0.2.7"),
    HostRule("2001:db8::7", 81),
]


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("http://pictures.example.org", "pictures.example.org", 80, "/"),
        ("HTTPS://Pictures.Example.ORG./a/b.png?x=1&y=%20#part", "pictures.example.org", 443, "/a/b.png?x=1&y=%20"),
        ("https://pictures.example.org:443/a", "pictures.example.org", 443, "/a"),
        ("https://pictures.example.org?q", "pictures.example.org", 443, "/?q"),
        ("https://a.b.cdn.example.net/ü", "a.b.cdn.example.net", 443, "/%C3%BC"),
        ("https://other.example:8443/", "other.example", 8443, "/"),
        ("http://192.0.2.7/", "192.0.2.7", 80, "/"),
        ("http://[2001:DB8:0::7]:81/x", "2001:db8::7", 81, "/x"),
    ],
)  # fmt: skip
def test_urls_that_are_taken(url: str, host: str, port: int, target: str) -> None:
    found = parse_remote_url(url, RULES)
    assert (found.host, found.port, found.target) == (host, port, target)
    assert target == "/" or target not in str(found) + repr(found)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://pictures.example.org/", "no http or https"),
        ("http:pictures.example.org", "no http or https"),
        ("http:///a", "no valid host"),
        ("http://user@pictures.example.org/", "names a user"),
        ("http://user:word@pictures.example.org/", "names a user"),
        ("http://pictures.example.org@evil.example/", "names a user"),
        ("http://pictures.example.org\\@evil.example/", "back-slashes"),
        ("http://pictures.example.org /", "blanks"),
        ("http://pictures.example.org/a\r\nHost: x", "blanks"),
        ("http://pictures.example.org/\x00", "blanks"),
        ("http://pictures.example.org/" + "a" * 9000, "characters; at most 8192"),
        ("http://pictüres.example.org/", "xn--"),
        ("http://pictures.example.org:99999/", "no port 99999"),
        ("http://pictures.example.org:0/", "no port 0"),
        ("http://pictures.example.org:/", "no valid host"),
        ("http://pictures.example.org:80:80/", "no valid host"),
        ("http://[::1/", "no valid host"),
        ("http://[fe80::1%25eth0]/", "no valid host"),
        ("http://[nonsense]/", "no valid host"),
        ("http://%70ictures.example.org/", "no valid host"),
        ("http://pictures.example.org:8080/", "nothing from pictures.example.org:8080"),
        ("http://pictures.example.org:443/", "nothing from"),
        ("https://pictures.example.org:80/", "nothing from"),
        ("http://other.example/", "nothing from"),
        ("https://cdn.example.net/", "nothing from"),
        ("https://evilcdn.example.net/", "nothing from"),
        ("https://a.cdn.example.net.evil.example/", "nothing from"),
        ("http://xpictures.example.org/", "nothing from"),
        ("http://192.0.2.8/", "nothing from"),
        ("http://0xc0000207/", "nothing from"),
        ("http://3221225991/", "nothing from"),
    ],
)
def test_urls_that_are_refused(url: str, reason: str) -> None:
    with pytest.raises(UrlError, match=reason) as found:
        parse_remote_url(url, RULES)
    assert "secret" not in str(found.value)


def test_messages_name_the_host_alone() -> None:
    with pytest.raises(UrlError) as found:
        parse_remote_url("https://evil.example/path/secret?token=secret#secret", RULES)
    assert str(found.value) == "this server fetches nothing from evil.example"


def test_one_rule_for_every_host_is_still_for_its_port() -> None:
    assert parse_remote_url("https://any.example/", [HostRule("*")]).host == "any.example"
    for url in ("https://any.example:22/", "http://any.example:6379/"):
        with pytest.raises(UrlError, match="nothing from"):
            parse_remote_url(url, [HostRule("*")])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Example.ORG", HostRule("example.org")),
        ("example.org.", HostRule("example.org")),
        ("*.example.org", HostRule("*.example.org")),
        ("*.example.org:8080", HostRule("*.example.org", 8080)),
        ("*", HostRule("*")),
        ("localhost:8000", HostRule("localhost", 8000)),
        ("10.0.0.7", HostRule("10.0.0.7")),
        ("[FD00::1]:80", HostRule("fd00::1", 80)),
    ],
)
def test_rules(text: str, rule: HostRule) -> None:
    assert parse_host_rule(text) == parse_host_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    ["", "https://example.org", "example.org/", "a b", "*.org", "**", "a.*.org", "*example.org", "*.1.2.3.4", "x:0",
     "x:99999", "user@x", "fd00::1", "é.org", "*.*", "-a.org"],
)  # fmt: skip
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UrlError):
        parse_host_rule(text)


_PARTS = st.one_of(
    st.sampled_from(
        ["http", "https", "://", ":", "/", "//", "@", "\\", "?", "#", "%00", "%2e", ".", "[", "]", "::1", "127.0.0.1",
         "pictures.example.org", "cdn.example.net", "evil.example", "443", "80", " ", "\r\n", "\0", "ü", "。"]
    ),
    st.text(max_size=4),
)  # fmt: skip


@given(st.lists(_PARTS, max_size=12))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_url_of_the_list_or_refused(parts: list[str]) -> None:
    """What goes out holds nothing that could end a line or name another host."""
    for text in ("".join(parts), "http://" + "".join(parts), "https://pictures.example.org" + "".join(parts)):
        try:
            url = parse_remote_url(text, RULES)
        except UrlError as error:
            assert str(error).isprintable() and len(str(error)) < 400
            continue
        assert any(rule.allows(url) for rule in RULES)
        assert re.fullmatch(r"/[\x21-\x7e]*", url.target) and re.fullmatch(r"[a-z0-9_.:-]+", url.host)
        assert urlsplit(text.strip()).hostname in (url.host, f"{url.host}."), (
            "another reader sees the same host"
        )
