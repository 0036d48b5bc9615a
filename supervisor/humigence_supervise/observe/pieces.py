"""One raw line -> the lines a person would see in it (pure).

Progress bars, JSON records, escaped newlines, tracebacks flattened to one line, and the output
of ranks glued together all put several messages, or a whole traceback, on one line.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Final

_PIECES: Final = 200
_JSON_BYTES: Final = 1 << 18
_MESSAGE_KEYS: Final = (
    ("log", "message", "msg", "event", "MESSAGE", "textPayload", "line", "body"),
    (
        "exc_info",
        "exc",
        "err",
        "exception",
        "exc_text",
        "error",
        "traceback",
        "stack_trace",
        "stack",
        "stacktrace",
    ),
)
_RANK_KEYS: Final = ("rank", "global_rank", "RANK", "process_index")
_TIME_KEYS: Final = ("time", "timestamp", "@timestamp", "asctime", "ts", "datetime")

_RESTART: Final = re.compile(r"[\r\x08\x0b\x0c]+")
_NEWLINE: Final = re.compile(r"(?:\\{1,8}r)?\\{1,8}n|#012")
_WINDOWS_PATH: Final = re.compile(r"\b[A-Za-z]:\\\w")
_NEWLINE_BESIDE_PATHS: Final = re.compile(
    r"(?:\\{1,8}r)?\\{1,8}n(?=[^a-z_]|$|[a-z_]{1,40}\.[\w.]{0,100}(?:Error|Exception)\b)",
)
_QUOTE: Final = re.compile(r"\\{1,8}([\"'])")
_CLOSING: Final = re.compile(r"([\"'])\1{0,2}[\])},; ]{0,20}$")
"""The end of a string that was opened on an earlier of its lines."""

_TAB: Final = re.compile(r"\\{1,8}t(?=[^a-z]|$)|#011")

_RATE: Final = r"(?:it/s|s/it|[A-Za-z]{1,12}/s|\?)"
_GLUED: Final = re.compile(
    r"(?<=\])(?<=.{12})(?=\S)(?!\])|(?<=[^\s|\d])(?=\s{0,3}\d{1,3}%\|)"
    r"|(?<=[\w.)'\",!])(?=\[(?:rank|default)\d{1,5}\]:)"
    r"|(?<=[^\s\[:])(?=\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d{6,9} )"
    r"|(?<=[\w.)'\",!])(?=\[[IWEF] [\w./-]{1,80}:\d+\] )",
)
_GLOG: Final = re.compile(r"[IWEF]\d{3,4} \d\d:\d\d:\d\d\.")
_BAR_END: Final = re.compile(r"\d+/[\d?]+ \[[^\]\[]{0,200}" + _RATE + r"[^\]\[]{0,300}\]$")
_FLAT: Final = re.compile(r"Traceback \(most recent call last\):?.{0,40}\bFile \"")
_FLAT_CUT: Final = re.compile(
    r"\s{0,8}(?=\bFile \"[^\"]{1,500}\", line \d)"
    r"|(?<=\S)\s{0,8}(?=Traceback \(most recent call)"
    r"|\s{0,8}(?=During handling of the above|The above exception was the direct cause)"
    r"|(?<=[\s)\]'\"])(?=(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}"
    r"(?:Error|Exception|Interrupt|Exit)(?:: |\s*$))",
)
_DOUBLED: Final = re.compile(
    r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception))\1{1,15}(?:: ){1,16}",
)


def pieces(raw: str) -> list[str]:
    """Split a raw line into what a person sees as lines; the last 200 of them."""
    found: list[str] = []
    for part in _RESTART.split(raw) if _RESTART.search(raw) else [raw]:
        for text in _lines_within(part):
            found += _unglued(text)
    return [text for text in found if text.strip()][-_PIECES:]


def _lines_within(text: str) -> list[str]:
    """Undo JSON and escapes: a traceback inside a string carries its newlines escaped."""
    brace = text.find("{")
    if brace >= 0 and text.rstrip().endswith("}") and len(text) <= _JSON_BYTES:
        record = _message_of(text[brace:])
        if record is not None:
            return [text[:brace] + line for line in record]
    if "\\n" not in text and "#012" not in text:
        return [text]
    newline = _NEWLINE_BESIDE_PATHS if _WINDOWS_PATH.search(text) else _NEWLINE
    *lines, last = newline.split(_QUOTE.sub(r"\1", _TAB.sub(" ", text)))
    closing = _CLOSING.search(last)
    if closing and last.count(closing[1], 0, closing.start()) % 2 == 0:
        last = last[: closing.start()]
    return [*lines, last]


def _message_of(text: str) -> list[str] | None:
    """Return the lines of a JSON log record, time and rank before each; None if it is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    nested = record.get("record")
    if isinstance(nested, dict):  # loguru's serialize=True
        record = nested | {"exception": record.get("text")}
    messages = [_strings(record, keys) for keys in _MESSAGE_KEYS]
    if not any(messages):
        return None
    head = ""
    if time := _first_text(record, _TIME_KEYS):
        head += f"{time} "
    rank = _first_number(record, _RANK_KEYS)
    if rank is not None and 0 <= rank < 100_000:  # noqa: PLR2004 - what a rank prefix may hold
        head += f"[rank{rank}]: "
    return [
        head + line for text in itertools.chain(*messages) for line in _lines_within_message(text)
    ]


def _lines_within_message(text: str) -> list[str]:
    # JSON may escape half a character, which no encoding can write.
    lines = text.encode("utf-8", "replace").decode().splitlines()
    return [part for line in lines for part in (_NEWLINE.split(line) if "\\n" in line else [line])]


def _strings(record: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    """Return the texts under the first known key, lists of lines joined."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value.strip():
            return [value]
    return []


def _first_text(record: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((value for key in keys if isinstance(value := record.get(key), str)), None)


def _first_number(record: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((value for key in keys if type(value := record.get(key)) is int), None)


def _unglued(text: str) -> list[str]:
    """Separate progress bars, ranks and flattened tracebacks that stand on one line."""
    if "Error: : " in text or "Exception: : " in text:
        text = _DOUBLED.sub(r"\1: ", text)
    parts = [text]
    if "%|" in text or "/s" in text or "[rank" in text or "[default" in text or "]" in text:
        parts = _cut_glue(text)
    return [
        line
        for part in parts
        for line in (_FLAT_CUT.split(part) if _FLAT.search(part) else [part])
        if line
    ]


def _cut_glue(text: str) -> list[str]:
    parts: list[str] = []
    start = 0
    for found in _GLUED.finditer(text):
        at = found.start()
        if text[at - 1] == "]" and not (
            _GLOG.match(text, at) or _BAR_END.search(text, max(start, at - 600), at)
        ):
            continue
        if text[start:at].strip():
            parts.append(text[start:at])
            start = at
    parts.append(text[start:])
    return parts
