"""Tell systemd how we are: one datagram a message, see sd_notify(3).

Silent where nobody asked (no NOTIFY_SOCKET). A message that cannot be delivered is lost and
nothing else: the service manager's troubles must not become the training's.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

UNSET_FOR_CHILDREN: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables no worker may inherit: its own sd_notify would speak for the supervisor."""

STATUS_MAX_BYTES: Final = 1024
"""systemd drops a datagram above 4096 bytes whole; a status is a line for people anyway."""


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where to send; `address` is None when no service manager listens.

    `watchdog_interval_s` is how often `watchdog` is due (half of what systemd waits before it
    kills us), None when no watchdog is set for this process.
    """

    address: bytes | None = None
    watchdog_interval_s: float | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read NOTIFY_SOCKET (a path, or "@" for an abstract name) and the watchdog's variables."""
        name = os.fsencode(environ.get("NOTIFY_SOCKET", ""))
        if not name.startswith((b"/", b"@")):
            return cls()
        address = b"\0" + name[1:] if name.startswith(b"@") else name
        return cls(address, _watchdog_interval_s(environ))

    def ready(self, status: str) -> None:
        """Start-up is over: the unit becomes active."""
        self._send("READY=1", status)

    def status(self, text: str) -> None:
        """Show one line in ``systemctl status``."""
        self._send(None, text)

    def stopping(self, text: str) -> None:
        """An orderly end has begun."""
        self._send("STOPPING=1", text)

    def watchdog(self) -> None:
        """Prove that the loop still turns; due every `watchdog_interval_s`."""
        self._send("WATCHDOG=1", None)

    def _send(self, state: str | None, status: str | None) -> None:
        if self.address is None:
            return
        lines = [state] if state is not None else []
        if status is not None:
            lines.append("STATUS=" + _one_line(status))
        message = "\n".join(lines).encode()
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as connection:
                connection.sendto(message, self.address)
        except OSError:
            return  # gone, full or forbidden: nothing we could do would make training better


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    """Half of WATCHDOG_USEC; None when unset, malformed, or meant for another process."""
    pid = environ.get("WATCHDOG_PID", "")
    if pid and pid != str(os.getpid()):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    if not re.fullmatch(r"[1-9][0-9]{0,17}", usec):
        return None
    return int(usec) / 2_000_000


def _one_line(text: str) -> str:
    """Cut a text to what fits, without the line ends that would start another assignment."""
    flat = " ".join(text.split()).encode(errors="replace")
    return flat[:STATUS_MAX_BYTES].decode(errors="ignore")
