"""What a supervisor is told: systemd's readiness protocol (sd_notify), for units with ``Type=notify``."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from luce.trace.events import EventRecord

if TYPE_CHECKING:
    from luce.actors.service import Service

__all__ = ["notify", "tell_of_stopping"]


def notify(state: str) -> None:
    """Send ``READY=1`` or the like to the socket that the environment names, if it does. Never blocks, never fails."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    name = "\0" + address[1:] if address[0] == "@" else address
    try:
        with socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        ) as to:
            to.connect(name)
            to.send(state.encode())
    except OSError:
        pass  # a supervisor that does not listen finds out by itself


def tell_of_stopping(service: Service) -> None:
    """Say ``STOPPING=1`` as soon as the server drains."""
    told = False

    def see(record: EventRecord) -> None:
        nonlocal told
        if not told and record.configuration[0] != "ready" and record.configuration[0] != "starting":
            told = True
            notify("STOPPING=1")

    service.events.listen(see, machine="server")
