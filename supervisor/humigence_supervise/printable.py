"""Foreign text made safe for a terminal: what a program printed cannot act on who reads it."""

from __future__ import annotations

import re
from typing import Final

# Colours, cursor moves and titles as terminals know them (ECMA-48): CSI, OSC, other escapes.
_SEQUENCE: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]"
)
# Line breaks of Unicode and marks that make text read in another order than it is written.
_DECEIVING: Final = (0x2028, 0x2029, 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F))
_ISOLATES: Final = range(0x2066, 0x206A)


def _escape_table() -> dict[int, str]:
    controls = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\t")]
    table = {code: f"\\x{code:02x}" for code in controls}
    table |= {code: f"\\u{code:04x}" for code in (*_DECEIVING, *_ISOLATES)}
    # Bytes that were not UTF-8 (decoded with surrogateescape), then all other half characters.
    table |= {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
    return table | {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}


_ESCAPES: Final = _escape_table()


def for_people(text: str) -> str:
    r"""Return one line that is safe to print on any UTF-8 terminal.

    Colours and other complete terminal sequences are dropped, of a line drawn over itself with
    carriage returns (a progress bar) the last drawing stays, and every other control character
    or undecodable byte is written out as ``\x1b``.
    """
    plain = _SEQUENCE.sub("", text).rstrip("\r")
    return plain.rsplit("\r", 1)[-1].translate(_ESCAPES)
