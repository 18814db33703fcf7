"""Notifies systemd of the server's state: ``Type=notify``, the protocol of ``sd_notify(3)``."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

_TIMEOUT_S: Final = 1.0
_log: Final = logging.getLogger("shoal.server")


def notify(state: str) -> None:
    """Sends a state such as ``"READY=1"`` to the socket in ``NOTIFY_SOCKET``, if it is set."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # in the abstract namespace
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("systemd could not be notified of %s: %s", state, error)
