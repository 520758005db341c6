"""TLS: files that do not fit, versions, certificates of clients, and what speaks something else."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from luce.errors import ConfigError
from luce.http.tls import server_context
from tests.http.conftest import serving
from tests.http.peers import AUTHORITY, CERTIFICATE, client_side
from tests.http.test_connections import read_to_end, request

pytestmark = pytest.mark.trio


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    key = CERTIFICATE.private_key_pem.bytes()
    encrypted = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame")
    )
    contents = {
        "cert": b"".join(one.bytes() for one in CERTIFICATE.cert_chain_pems),
        "key": key,
        "both": CERTIFICATE.private_key_and_cert_chain_pem.bytes(),
        "encrypted": encrypted,
        "password": b"sesame\nnotes\n",
        "wrong password": b"open\n",
        "no password": b"\n",
        "other key": AUTHORITY.issue_cert("other").private_key_pem.bytes(),
        "text": b"no PEM at all",
        "empty": b"",
        "binary": b"\xff\xfe\x00",
        "ca": AUTHORITY.cert_pem.bytes(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents} | {"none": tmp_path / "none", "folder": tmp_path}


@pytest.mark.parametrize(
    ("given", "flag", "says"),
    [
        ({"certificate": "none", "key": "key"}, "--tls-cert", "No such file"),
        ({"certificate": "folder", "key": "key"}, "--tls-cert", "Is a directory"),
        ({"certificate": "text", "key": "key"}, "--tls-cert", "holds no certificate"),
        ({"certificate": "key", "key": "key"}, "--tls-cert", "holds no certificate"),
        ({"certificate": "cert"}, "--tls-cert", "name the key's file with --tls-key"),
        ({"certificate": "cert", "key": "none"}, "--tls-key", "No such file"),
        ({"certificate": "cert", "key": "text"}, "--tls-key", "holds no private key"),
        ({"certificate": "cert", "key": "other key"}, "--tls-key", "is not the key of"),
        ({"certificate": "cert", "key": "encrypted"}, "--tls-key", "give --tls-key-password-file"),
        (
            {"certificate": "cert", "key": "encrypted", "password_file": "wrong password"},
            "--tls-key-password-file",
            "does not open",
        ),
        (
            {"certificate": "cert", "key": "encrypted", "password_file": "no password"},
            "--tls-key-password-file",
            "first line",
        ),
        (
            {"certificate": "cert", "key": "encrypted", "password_file": "binary"},
            "--tls-key-password-file",
            "not UTF-8",
        ),
        (
            {"certificate": "cert", "key": "key", "client_ca": "text"},
            "--tls-client-ca",
            "holds no certificates",
        ),
        (
            {"certificate": "cert", "key": "key", "client_ca": "empty"},
            "--tls-client-ca",
            "holds no certificates",
        ),
        ({"certificate": "cert", "key": "key", "client_ca": "none"}, "--tls-client-ca", "No such file"),
        ({"certificate": None, "key": "key"}, "--tls-key", "no --tls-cert"),
        ({"certificate": None, "key": None, "client_ca": "ca"}, "--tls-client-ca", "no --tls-cert"),
    ],
)
async def test_bad_files_name_their_flag(
    files: dict[str, Path], given: dict[str, str | None], flag: str, says: str
) -> None:
    paths = {name: None if file is None else files[file] for name, file in given.items()}
    with pytest.raises(ConfigError) as raised:
        server_context(**({"key": None} | paths))  # type: ignore[arg-type]
    assert raised.value.flag == flag and says in str(raised.value)
    assert "sesame" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("how", ["apart", "together", "encrypted"])
@pytest.mark.parametrize("second", [False, True], ids=["1.1", "2"])
async def test_files_that_fit(files: dict[str, Path], how: str, second: bool) -> None:
    context = {
        "apart": lambda: server_context(files["cert"], files["key"]),
        "together": lambda: server_context(files["both"], None),
        "encrypted": lambda: server_context(files["cert"], files["encrypted"], files["password"]),
    }[how]()
    async with (
        serving(tls=context, secure=client_side()) as server,
        server.http(http1=not second, http2=second) as client,
    ):
        response = await client.get("/health")
    assert response.json() == {"status": "ok"}
    assert response.http_version == ("HTTP/2" if second else "HTTP/1.1")


async def test_without_files_there_is_no_tls() -> None:
    assert server_context(None, None) is None


async def test_versions_before_1_2_are_not_spoken(files: dict[str, Path]) -> None:
    context = server_context(files["cert"], files["key"])
    assert context is not None and context.minimum_version == ssl.TLSVersion.TLSv1_2
    async with serving(tls=context, secure=client_side()) as server:
        for version, works in [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)]:
            client = client_side()
            client.set_ciphers("ALL:@SECLEVEL=0")
            client.minimum_version = ssl.TLSVersion.TLSv1
            client.maximum_version = version
            stream = trio.SSLStream(await server.connect(), client, server_hostname="127.0.0.1")
            if works:
                await stream.do_handshake()
            else:
                with pytest.raises(trio.BrokenResourceError):
                    await stream.do_handshake()
            await trio.aclose_forcefully(stream)


async def test_clients_must_show_a_certificate_of_the_authority(files: dict[str, Path]) -> None:
    context = server_context(files["cert"], files["key"], client_ca=files["ca"])
    strangers = trustme.CA().issue_cert("client")
    async with serving(tls=context) as server:

        async def status(certificate: trustme.LeafCert | None) -> int:
            server.secure = client_side()
            if certificate is not None:
                certificate.configure_cert(server.secure)
            async with server.http() as client:
                return (await client.get("/health")).status_code

        assert await status(AUTHORITY.issue_cert("client")) == 200
        for wrong in (None, strangers):
            with pytest.raises(Exception, match=r"(?i)certificate|unknown ca|reset|closed|EOF|disconnect|^$"):
                await status(wrong)
        assert await status(AUTHORITY.issue_cert("client")) == 200


async def test_plain_http_is_told(files: dict[str, Path]) -> None:
    context = server_context(files["cert"], files["key"])
    async with serving(tls=context) as server, await server.connect() as connection:
        await connection.send_all(request(path="/health"))
        data = await read_to_end(connection)
    assert data.startswith(b"HTTP/1.1 400 ") and b"this port speaks TLS" in data


@pytest.mark.parametrize("nonsense", [b"", b"\x16\x03\x01", b"\x00" * 100, b"\xff" * 70_000])
async def test_handshakes_that_do_not_come_end(files: dict[str, Path], nonsense: bytes) -> None:
    context = server_context(files["cert"], files["key"])
    async with (
        serving(tls=context, secure=client_side(), head_timeout=1.0) as server,
        await server.connect() as connection,
    ):
        await connection.send_all(nonsense)
        with trio.fail_after(30):
            try:
                while await connection.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        async with server.http() as client:
            assert (await client.get("/health")).status_code == 200
