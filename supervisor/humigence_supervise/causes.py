"""Which of the matched texts can be the cause, in the order of belief (pure)."""

from __future__ import annotations

from typing import Final

from humigence_supervise.catalogue import Row, load_catalogue
from humigence_supervise.domain import Evidence, Hit, Kind, Role
from humigence_supervise.endings import known_ends

GENERIC: Final = "python.exception"
STRONG: Final = 60
"""A text of this strength names a cause of its own; weaker ones are usually consequences."""

_OF_FIRST_DEAD: Final = 89
"""What a rank raised that died first weighs as much as a specific text of a later one."""

_CTRL_C: Final = "preempt.ctrl_c"
_CHAIN: Final = "python.chain"
_CHAIN_LINES: Final = 40


def row_of(hit: Hit) -> Row:
    """Return the catalogue row behind a hit."""
    return load_catalogue().by_id[hit.signature]


def ranked(evidence: Evidence) -> list[Hit]:
    """Return the hits that can be causes: strongest first, among equals the earliest."""
    causes = [
        hit
        for hit in evidence.hits
        if hit.role is not Role.CONTEXT
        and hit.signature != GENERIC
        and not (row_of(hit).at_end and hit.kind is Kind.HANG and _went_on(evidence))
    ]
    causes += _first_of_last_chains(evidence.hits)
    stamped = all(hit.at_s is not None for hit in causes)

    def order(entry: tuple[int, Hit]) -> tuple[float, ...]:
        index, hit = entry
        time_s = hit.at_s if stamped and hit.at_s is not None else 0.0
        late = hit.rank is not None and hit.rank != evidence.first_dead
        strength = row_of(hit).strength
        if not late and evidence.first_dead is not None and hit.role is Role.ROOT:
            strength = max(strength, _OF_FIRST_DEAD)
        return (-strength, time_s, float(late), float(index))

    return [hit for _, hit in sorted(enumerate(causes), key=order)]


def _went_on(evidence: Evidence) -> bool:
    """Return whether the log's last lines are no hang: it had trained, or its end is known."""
    return evidence.progress_seen or bool(known_ends(evidence))


def _first_of_last_chains(hits: tuple[Hit, ...]) -> list[Hit]:
    """Return, for each file and rank, the exception that began the last chain of exceptions.

    Earlier tracebacks were survived; in a chain, the first exception is the cause of the rest.
    """
    last: dict[tuple[str, int | None], Hit] = {}
    links: dict[tuple[str, int | None], int] = {}
    for hit in hits:
        where = (hit.file, hit.rank)
        if hit.signature == _CHAIN:
            links[where] = hit.line
        elif hit.signature in (GENERIC, _CTRL_C) and hit.role is not Role.CONTEXT:
            known = last.get(where)
            chained = known is not None and (
                links.get(where, -1) >= known.line or hit.line - known.line <= _CHAIN_LINES
            )
            if not chained:
                last[where] = hit
            links.pop(where, None)
    return [hit for hit in last.values() if hit.signature == GENERIC]
