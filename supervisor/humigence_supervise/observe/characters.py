"""Bytes of a log -> the characters a person saw: encodings, colours, cursor codes (pure)."""

from __future__ import annotations

import re
from typing import Final

_BOM_LITTLE: Final = b"\xff\xfe"
_BOM_BIG: Final = b"\xfe\xff"
_WIDE_SHARE: Final = 3
"""A line of which every third byte is NUL was written as UTF-16."""

_ESC: Final = r"(?:\x1b|\u241b|\^\[|#033|\\{1,4}(?:u001[bB]|x1[bB]|033|e))"
"""The escape character: itself, or as caret, syslog and source code notation write it."""

_ANSI: Final = re.compile(
    _ESC + r"\[[0-9;?]{0,40}[ -/]?[@-~]"
    r"|\x9b[0-9;?]{0,40}[@-~]"
    r"|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"
    r"|\x1b[()][0-9A-Za-z]|\x1b.",
)
_COLOUR_WITHOUT_ESC: Final = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m")
_CURSOR_WITHOUT_ESC: Final = re.compile(r"^(?:\[\d{0,2}[AKJ](?![\]a-z]))+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b]")


class Narrower:
    """Turns the lines of a UTF-16 file (PowerShell's redirection) into UTF-8; others stay.

    The lines were cut at the newline *byte*, so each holds the other half of a newline.
    """

    def __init__(self) -> None:
        """Start at the beginning of a file."""
        self._codec: str | None = None
        self._at_start = True

    def lines(self, raw: list[bytes]) -> list[bytes]:
        """Return the next lines of the file as UTF-8."""
        if self._at_start and raw:
            self._at_start = False
            guess = "utf-16-le" if _is_wide(raw[0]) else None
            self._codec = {_BOM_LITTLE: "utf-16-le", _BOM_BIG: "utf-16-be"}.get(raw[0][:2], guess)
        if self._codec is None and b"\0" not in b"".join(raw):
            return raw
        return [self._narrow(line) for line in self._whole(raw)]

    def _whole(self, raw: list[bytes]) -> list[bytes]:
        """Put together what was cut at half a character (U+4E0A holds the newline byte)."""
        if self._codec is None:
            return raw
        lines = raw[:1]
        for part in raw[1:]:
            before = lines[-1]
            if part.startswith(b"\0") if self._codec == "utf-16-le" else before.endswith(b"\0"):
                lines.append(part)
            else:
                lines[-1] = before + b"\n" + part
        return lines

    def _narrow(self, line: bytes) -> bytes:
        codec = self._codec
        if codec is None:
            if not _is_wide(line):
                return line
            codec = "utf-16-le"
        if len(line) % 2:
            line = line[1:] if codec == "utf-16-le" else line[:-1]
        return line.decode(codec, errors="replace").rstrip("\r").encode(errors="replace")


def _is_wide(line: bytes) -> bool:
    return line.count(0) * _WIDE_SHARE >= len(line) > 0


def decode(raw: bytes) -> str:
    """Return a line as text: UTF-8, else the old Windows and Western encoding, never an error."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="replace")
    foreign = sum(byte >= 0x80 for byte in raw[:_FOREIGN_SEARCHED])  # noqa: PLR2004 - not ASCII
    if foreign == text[:_FOREIGN_SEARCHED].count("\ufffd"):
        return raw.decode("cp1252", errors="replace")
    return text


_FOREIGN_SEARCHED: Final = 4_000


def visible(text: str) -> str:
    """Return `text` without colours, titles, cursor movements and control characters."""
    if "[" in text or "\x1b" in text or "\x9b" in text:
        text = _CURSOR_WITHOUT_ESC.sub("", _COLOUR_WITHOUT_ESC.sub("", _ANSI.sub("", text)))
    return _CONTROL.sub("", text).replace("\xa0", " ").rstrip()
