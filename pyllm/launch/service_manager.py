"""Notifies the service manager that started this process, if it asks for that: systemd with `Type=notify`.

Source: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import logging
import os
import socket
import time

logger = logging.getLogger(__name__)


class ServiceManager:
    """A service manager. `address` is its socket, by default that of NOTIFY_SOCKET; empty: there is none."""

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._is_ready = False

    def ready(self) -> None:
        """Notify that the server takes requests."""
        self._is_ready = True
        self._notify("READY=1\nSTATUS=takes requests")

    def reloaded(self) -> None:
        """Notify that keys and certificates were reloaded: begin and end at once, since it takes hardly any time."""
        if self._is_ready:
            self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self.ready()

    def stopping(self) -> None:
        """Notify that the server takes no new requests, and ends."""
        self._notify("STOPPING=1\nSTATUS=drains")

    def _notify(self, text: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            try:
                sending.sendto(text.encode(), address)
            except OSError as error:
                logger.warning("the service manager at %s cannot be told: %s", self._address, error.strerror)
