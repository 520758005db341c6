"""Flags of `luce serve` about connections: TLS, and how many and how slow they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from luce.cli.flags import COUNT, FILE, SECONDS
from luce.http.options import HttpOptions
from luce.http.tls import server_context

__all__ = ["ConnectionFlags"]

CONNECTIONS = Group("Connections", sort_key=4)

HTTP_DEFAULTS = HttpOptions()


@Parameter(name="*")
@attrs.frozen
class ConnectionFlags:
    tls_cert: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=CONNECTIONS,
            help="Certificate in PEM, those of intermediate authorities behind it: HTTPS instead of HTTP.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=CONNECTIONS, help="The certificate's key in PEM, if it is not in the certificate's file."
        ),
    ] = None
    tls_key_password_file: Annotated[
        Path | None,
        FILE,
        Parameter(group=CONNECTIONS, help="File whose first line is the password of an encrypted key."),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        FILE,
        Parameter(
            group=CONNECTIONS,
            help="Certificates in PEM of who signs clients' certificates; clients without one are not let in.",
        ),
    ] = None
    max_connections: Annotated[
        int,
        COUNT,
        Parameter(group=CONNECTIONS, help="Connections at once; more get 503, over TLS they are closed."),
    ] = HTTP_DEFAULTS.max_connections
    max_streams: Annotated[
        int, COUNT, Parameter(group=CONNECTIONS, help="Requests at once on one HTTP/2 connection.")
    ] = HTTP_DEFAULTS.max_streams
    head_timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=CONNECTIONS, help="Seconds that a request's headers, or a TLS handshake, may take."),
    ] = HTTP_DEFAULTS.head_timeout

    def onto(self, options: HttpOptions) -> HttpOptions:
        """``options`` with these. Raises ConfigError for files that cannot be used."""
        return attrs.evolve(
            options,
            tls=server_context(self.tls_cert, self.tls_key, self.tls_key_password_file, self.tls_client_ca),
            max_connections=self.max_connections,
            max_streams=self.max_streams,
            head_timeout=self.head_timeout,
        )
