"""The search for many texts at once by a compiled library, where it is installed (pure).

Hyperscan (here its fork Vectorscan) reads some gigabytes a second whatever the number of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache


@cache
def fast_search(literals: tuple[str, ...]) -> Callable[[bytes], Iterable[int]] | None:
    """Return a search for these texts: offsets in a text where one of them ends.

    None where the library is missing or does not run on this machine.
    """
    try:
        import hyperscan  # noqa: PLC0415 - costs memory: only who reads much pays for it
    except ImportError:
        return None
    texts = [literal.encode() for literal in literals]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=texts, ids=list(range(len(texts))), elements=len(texts), literal=True
        )
    except hyperscan.HyperscanError:
        return None

    def search(text: bytes) -> Iterable[int]:
        found: list[int] = []

        def keep(_text: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append(end - 1)

        database.scan(text, match_event_handler=keep)
        return found

    return search
