"""Fetching: what is connected to, what answers are taken, and what a message says."""

from __future__ import annotations

import gzip
import shutil
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from luce.http.image_sources.fetch import Fetcher, FetchError, resolve
from luce.http.image_sources.hosts import HostRule
from tests.http.image_sources.picture_host import PICTURE, Host, answer, hosting

pytestmark = pytest.mark.trio


@attrs.define
class Names:
    """A resolver: what each name has, one list after the other when it is asked again."""

    addresses: dict[str, list[Sequence[str]]]
    asked: list[str] = attrs.field(factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self.addresses[host]
        return found.pop(0) if len(found) > 1 else found[0]


def fetcher(host: Host, names: Names | None = None, *, private: bool = True) -> Fetcher:
    names = names or Names({"pictures.test": [["127.0.0.1"]], "127.0.0.1": [["127.0.0.1"]]})
    rules = [HostRule(name, host.port) for name in names.addresses]
    return Fetcher(rules, private=private, resolve=names)


async def fetch(one: Fetcher, url: str, most: int = 1 << 20) -> bytes:
    with trio.fail_after(20):
        return await one.fetch(url, most, lambda count: None)


async def refused(one: Fetcher, url: str, reason: str, most: int = 1 << 20) -> None:
    with pytest.raises(FetchError, match=reason) as found:
        await fetch(one, url, most)
    assert "secret" not in str(found.value) and "/a" not in str(found.value)


async def test_a_picture_is_fetched() -> None:
    async with hosting({"/a.png": answer(content_type="text/html")}) as host:
        url = f"http://pictures.test:{host.port}/a.png?token=x#part"
        assert await fetch(fetcher(host), url) == PICTURE
    head = host.asked[0].decode().lower()
    assert (
        head.startswith("get /a.png?token=x http/1.1\r\n") and f"host: pictures.test:{host.port}\r\n" in head
    )
    assert "accept-encoding: identity" in head and "referer" not in head and "cookie" not in head


async def test_forms_of_whole_answers() -> None:
    half = len(PICTURE) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (PICTURE[:half], PICTURE[half:], b""))
    answers = {
        "/chunked": answer(b"", content_length="", transfer_encoding="chunked") + chunks,
        "/closed": answer(content_length=""),
        "/early": b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(),
        "/old": answer().replace(b"HTTP/1.1", b"HTTP/1.0"),
    }
    async with hosting(answers) as host:
        for path in answers:
            assert await fetch(fetcher(host), f"http://pictures.test:{host.port}{path}") == PICTURE, path


async def test_answers_that_are_refused() -> None:
    answers: dict[str, tuple[bytes, str]] = {
        "/a404": (answer(b"secret", "404 Not Found"), "answered with status 404"),
        "/a206": (answer(b"secret", "206 Partial Content"), "answered with status 206"),
        "/a204": (answer(b"", "204 No Content"), "answered with status 204"),
        "/a500": (answer(b"secret", "500 Oh"), "answered with status 500"),
        "/agzip": (answer(gzip.compress(PICTURE), content_encoding="gzip"), "sends the picture compressed"),
        "/along": (answer(b"x" * 2000), "too large; at most 1000 bytes"),
        "/aendless": (answer(b"x" * 2000, content_length=""), "too large; at most 1000 bytes"),
        "/acut": (answer(content_length="99999")[:-10], "too large; at most 1000|whole HTTP messages"),
        "/ashort": (answer(b"xy", content_length="10"), "whole HTTP messages"),
        "/anothing": (b"", "whole HTTP messages"),
        "/ajunk": (b"junk\r\n\r\n", "whole HTTP messages"),
        "/ahead": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "whole HTTP messages"),
        "/aswitch": (answer(b"", "101 Switching Protocols", upgrade="x"), "whole HTTP messages|status 101"),
        "/atwo": (answer(b"x", content_length="1, 2"), "whole HTTP messages"),
    }
    async with hosting({path: said for path, (said, _) in answers.items()}) as host:
        for path, (_, reason) in answers.items():
            await refused(fetcher(host), f"http://pictures.test:{host.port}{path}?secret", reason, 1000)
        assert len(host.asked) == len(answers)


async def test_every_address_of_a_name_is_checked() -> None:
    async with hosting({"/a": answer()}) as host:
        for addresses in (["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"], ["::1"],
                          ["::ffff:127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["0.0.0.0"]):  # fmt: skip
            names = Names({"pictures.test": [addresses]})
            url = f"http://pictures.test:{host.port}/a"
            await refused(
                fetcher(host, names, private=False), url, "has an address that this server does not"
            )
        for addresses in (["169.254.169.254"], ["127.0.0.1", "0.0.0.0"], ["224.0.0.1"]):
            names = Names({"pictures.test": [addresses]})
            await refused(fetcher(host, names), f"http://pictures.test:{host.port}/a", "has an address")
        assert host.asked == []
        assert await fetch(fetcher(host), f"http://127.0.0.1:{host.port}/a") == PICTURE, (
            "the trap: it is there"
        )


async def test_addresses_in_the_url_are_checked() -> None:
    """As the system's resolver reads them, whatever way they are written."""
    every = Fetcher([HostRule("*")])
    for host in (
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:7f00:1]",
        "localhost",
    ):
        await refused(
            every, f"http://{host}/a", "has an address that this server does not|could not be reached"
        )


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to something else the second time is asked for once."""
    names = Names({"pictures.test": [["127.0.0.1"], ["169.254.169.254"]]})

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("the name was asked for again")

    async with hosting({"/a": answer()}) as host:
        monkeypatch.setattr(trio.socket, "getaddrinfo", never)
        one = fetcher(host, names)
        assert await fetch(one, f"http://pictures.test:{host.port}/a") == PICTURE
        assert names.asked == ["pictures.test"]
        await refused(one, f"http://pictures.test:{host.port}/a", "has an address")


async def test_the_next_address_is_tried() -> None:
    async with hosting({"/a": answer()}) as host:
        names = Names({"pictures.test": [["127.0.0.2", "::1", "127.0.0.1"]]})
        assert await fetch(fetcher(host, names), f"http://pictures.test:{host.port}/a") == PICTURE


async def test_what_cannot_be_reached() -> None:
    async with hosting({}) as host:
        pass
    await refused(
        fetcher(host), f"http://pictures.test:{host.port}/a", "could not be reached: Connection refused"
    )

    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    one = Fetcher([HostRule("*")], resolve=unknown)
    await refused(
        one, "http://pictures.test/a", "pictures.test could not be reached: Name or service not known"
    )


async def test_proxies_of_the_environment_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with hosting({"/a": answer()}) as host:
        assert await fetch(fetcher(host), f"http://pictures.test:{host.port}/a") == PICTURE


def moved(to: str, status: int = 302) -> bytes:
    return answer(b"secret", f"{status} Moved", location=to)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_within_the_list(status: int) -> None:
    answers = {"/a": moved("/b?x=1", status), "/b": moved("c", status), "/c": answer()}
    async with hosting(answers) as host:
        names = Names({"pictures.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
        host.answers = answers | {"/c": moved(f"//other.test:{host.port}/d", status), "/d": answer()}
        assert await fetch(fetcher(host, names), f"http://pictures.test:{host.port}/a") == PICTURE
        assert names.asked == ["pictures.test"] * 3 + ["other.test"], "each hop is looked up and checked anew"
        assert b"other.test" in host.asked[-1] and b"/b?x=1" in host.asked[1]


async def test_redirects_that_are_refused() -> None:
    async with hosting({}) as host:
        inside = Names({"pictures.test": [["127.0.0.1"]], "inside.test": [["169.254.169.254"]]})
        host.answers = {
            "/alist": moved("http://evil.test/secret"),
            "/aport": moved("http://pictures.test:22/"),
            "/auser": moved(f"http://x@pictures.test:{host.port}/"),
            "/ascheme": moved("file:///etc/passwd"),
            "/ainside": moved(f"http://inside.test:{host.port}/"),
            "/anowhere": answer(b"", "302 Found"),
            "/aloop": moved("/aloop"),
            "/abroken": moved("http://["),
            "/abracket": moved("//[secret]/"),
        }
        reasons = {
            "/alist": "fetches nothing from evil.test",
            "/aport": "fetches nothing from pictures.test:22",
            "/auser": "names a user",
            "/ascheme": "no http or https URL",
            "/ainside": "inside.test has an address",
            "/anowhere": "answered with status 302",
            "/aloop": "redirects more than 3 times",
            "/abroken": "redirects to what is no URL",
            "/abracket": "redirects to what is no URL",
        }
        for path, reason in reasons.items():
            before = len(host.asked)
            await refused(fetcher(host, inside), f"http://pictures.test:{host.port}{path}", reason)
            assert len(host.asked) - before == (4 if "more than" in reason else 1)


async def test_a_name_that_first_resolves_well_and_redirects_to_itself() -> None:
    """Rebinding between hops: the second look-up counts for the second connection."""
    names = Names({"pictures.test": [["127.0.0.1"], ["169.254.169.254"]]})
    async with hosting({"/a": moved("/b"), "/b": answer()}) as host:
        await refused(fetcher(host, names), f"http://pictures.test:{host.port}/a", "has an address")
        assert len(host.asked) == 1


async def test_bytes_are_asked_for_before_they_are_kept() -> None:
    async with hosting({"/a": answer(b"x" * 300_000)}) as host:
        taken: list[int] = []

        def take(count: int) -> None:
            taken.append(count)
            if sum(taken) > 100_000:
                raise FetchError("no more")

        with pytest.raises(FetchError, match="no more"):
            await fetcher(host).fetch(f"http://pictures.test:{host.port}/a", 1 << 20, take)
        assert sum(taken) < 300_000


async def test_the_systems_resolver() -> None:
    assert "127.0.0.1" in await resolve("127.0.0.1", 80)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For pictures.test, with its key, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-keyout", path, "-out",
         path.with_suffix(".crt")],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


async def test_certificates_are_checked_for_the_name(certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    seen: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: seen.append(name)
    trusting = ssl.create_default_context(cafile=certificate)
    names = Names({"pictures.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]})
    async with hosting({"/a": answer(), "/down": b""}, server) as host:
        host.answers = {"/a": answer(), "/down": moved(f"http://pictures.test:{host.port}/a")}
        one = fetcher(host, names)
        one.context = trusting
        assert await fetch(one, f"https://pictures.test:{host.port}/a") == PICTURE and seen == [
            "pictures.test"
        ]
        await refused(
            one, f"https://other.test:{host.port}/a", "its certificate is not trusted or not for this name"
        )
        await refused(one, f"https://pictures.test:{host.port}/down", "redirects from https to http")
        await refused(
            fetcher(host, names), f"https://pictures.test:{host.port}/a", "its certificate is not trusted"
        )
        count = len(host.asked)
        await refused(one, f"http://pictures.test:{host.port}/a", "could not be reached|whole HTTP messages")
        assert len(host.asked) == count
    async with hosting({"/a": answer()}) as host:
        one = fetcher(host, names)
        await refused(one, f"https://pictures.test:{host.port}/a", "TLS failed")
