"""What connections speak TLS with: certificate, key, and whose certificates clients must show.

Read once, at the start: a renewed certificate is taken by a restart. TLS 1.2 is the oldest that is spoken.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from luce.errors import ConfigError, reason

__all__ = ["ALPN", "server_context"]

ALPN = ("h2", "http/1.1")
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: those that HTTP/2 allows (RFC 9113 §9.2.2)."""
MAX_PASSWORD_BYTES = 1024


def server_context(
    certificate: Path | None,
    key: Path | None,
    password_file: Path | None = None,
    client_ca: Path | None = None,
) -> ssl.SSLContext | None:
    """The context for these files, in PEM; None without a certificate.

    Args:
        certificate: with the intermediate ones behind it.
        key: None if it is in the certificate's file.
        password_file: its first line is the key's.
        client_ca: who signs the certificates of clients; without it none is asked for.

    Raises:
        ConfigError: a file cannot be read or does not fit; names the flag.
    """
    if certificate is None:
        others = {
            "--tls-key": key,
            "--tls-key-password-file": password_file,
            "--tls-client-ca": client_ca,
        }
        for flag, given in others.items():
            if given is not None:
                raise ConfigError("there is no --tls-cert beside it", flag=flag)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(ALPN)
    _readable(certificate, "--tls-cert")
    if key is not None:
        _readable(key, "--tls-key")
    password = _password(password_file)
    asked = False

    def ask() -> str:
        nonlocal asked
        asked = True
        return password or ""  # never the terminal, which OpenSSL would ask

    try:
        context.load_cert_chain(certificate, key, ask)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _chain_fault(error, certificate, key, password_file, asked) from None
    if client_ca is not None:
        _readable(client_ca, "--tls-client-ca")
        try:
            context.load_verify_locations(client_ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"{client_ca} holds no certificates in PEM: {reason(error)}", flag="--tls-client-ca"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _readable(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {reason(error)}", flag=flag) from None


def _password(path: Path | None) -> str | None:
    if path is None:
        return None
    flag = "--tls-key-password-file"
    data = _readable(path, flag)
    try:
        password = data.decode().split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", flag=flag) from None
    if not 1 <= len(password.encode()) <= MAX_PASSWORD_BYTES:
        raise ConfigError(f"the first line of {path} must be the password, of 1 to 1024 bytes", flag=flag)
    return password


def _chain_fault(
    error: Exception, certificate: Path, key: Path | None, password_file: Path | None, asked: bool
) -> ConfigError:
    """Which of the files it is: OpenSSL says only what it met."""
    where, flag = (certificate, "--tls-cert") if key is None else (key, "--tls-key")
    if asked:
        if password_file is None:
            return ConfigError(f"{where} is encrypted; give --tls-key-password-file", flag=flag)
        return ConfigError(f"{password_file} does not open {where}", flag="--tls-key-password-file")
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return ConfigError(f"{where} is not the key of {certificate}", flag=flag)
    if not _holds_certificate(certificate):
        return ConfigError(f"{certificate} holds no certificate in PEM", flag="--tls-cert")
    if key is None:
        return ConfigError(
            f"{where} holds no private key in PEM; name the key's file with --tls-key", flag=flag
        )
    return ConfigError(f"{where} holds no private key in PEM: {reason(error)}", flag=flag)


def _holds_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError):
        return False
    return True
