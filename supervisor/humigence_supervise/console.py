"""Journal entries on standard output: the raw line for programs, a readable one for people."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from humigence_supervise.journal import encode
from humigence_supervise.printable import for_people
from humigence_supervise.records import Entry

PENDING_BYTES = 1 << 20
"""What is held back for a reader that does not read; beyond it, entries are not printed."""
LAST_S = 2.0
"""How long the end of a run waits for such a reader."""


class Console:
    """Prints entries until nobody listens any more; the journal has them in any case.

    A reader that stops reading must not stop the supervisor: unless `patient`, only as much is
    written as the other side takes at once.
    """

    def __init__(self, *, pretty: bool, patient: bool = False) -> None:
        """Print to standard output, for people if `pretty`."""
        self._render = _pretty_renderer() if pretty else None
        self._patient = patient
        self._pending = bytearray()
        self._listening = True

    def tell(self, entry: Entry) -> None:
        """Print one entry as soon as it is taken."""
        if self._render is None:
            line = encode(entry)
        else:
            line = (self._render(entry) + "\n").encode(sys.stdout.encoding, "backslashreplace")
        if self._listening and len(self._pending) + len(line) <= PENDING_BYTES:
            self._pending += line
        self.flush(None if self._patient else 0.0)

    def flush(self, within_s: float | None = LAST_S) -> None:
        """Write what is pending, waiting at most so long each time (None: for ever)."""
        try:
            while self._listening and self._pending and _takes_more(within_s):
                written = os.write(sys.stdout.fileno(), self._pending[: select.PIPE_BUF])
                del self._pending[:written]
        except OSError:
            self._listening = False


def _takes_more(within_s: float | None) -> bool:
    """Say whether PIPE_BUF bytes can be written without waiting, within a time."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return bool(poll.poll(None if within_s is None else within_s * 1000))


def _pretty_renderer() -> Callable[[Entry], str]:
    from structlog.dev import ConsoleRenderer  # noqa: PLC0415 - JSON output never needs it

    renderer = ConsoleRenderer(colors=sys.stdout.isatty(), pad_event_to=0)

    def render(entry: Entry) -> str:
        record = entry.record
        shown: dict[str, object] = {
            "timestamp": entry.ts[11:19],
            "level": record.level.value,
            "event": f"{record.event.value}: {for_people(record.message)}",
        }
        return str(renderer(None, record.level.value, shown))

    return render
