"""Journal entries on standard output: the raw line for programs, a readable one for people."""

from __future__ import annotations

import sys
from collections.abc import Callable

from humigence_supervise.journal import encode
from humigence_supervise.printable import for_people
from humigence_supervise.records import Entry


class Console:
    """Prints entries until nobody listens any more; the journal has them in any case."""

    def __init__(self, *, pretty: bool) -> None:
        """Print to standard output, for people if `pretty`."""
        self._render = _pretty_renderer() if pretty else None
        self._listening = True

    def tell(self, entry: Entry) -> None:
        """Print one entry at once."""
        if not self._listening:
            return
        try:
            if self._render is None:
                sys.stdout.buffer.write(encode(entry))
            else:
                sys.stdout.write(self._render(entry) + "\n")
            sys.stdout.flush()
        except OSError:
            self._listening = False


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
