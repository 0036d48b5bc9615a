"""Reading a JSON object strictly: everything a person can get wrong becomes one clear sentence.

Standard library only. Knows nothing of the keys it reads.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Final

JsonObject = dict[str, object]

_LONGEST_WHOLE_NUMBER: Final = 20
"""Digits of the largest 64-bit number, with a sign to spare."""


class WorkerConfigError(ValueError):
    """A mistake in what the user gave (configuration or data): never a traceback, exit code 78.

    The message names the file, the key or line, what is allowed and what to do.
    """


class _RefusedError(ValueError):
    """A JSON text that is well formed but means nothing we accept."""


def read_object(path: Path) -> tuple[JsonObject, str]:
    """Return the JSON object in `path` and its text (a byte order mark is accepted).

    Raises:
        WorkerConfigError: when the file is missing, a folder, unreadable, empty, not UTF-8, not
            JSON, not an object, nested too deeply, has a key twice or a number that is none.
    """
    text = _read_text(path)
    try:
        value: object = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        raise WorkerConfigError(
            f"{path}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}). "
            "Correct this line."
        ) from None
    except _RefusedError as error:
        raise WorkerConfigError(f"{path}: {_at_word(text, error)}") from None
    except RecursionError:
        raise WorkerConfigError(
            f"{path}: nested too deeply to be a configuration. Give one flat JSON object."
        ) from None
    if not isinstance(value, dict):
        raise WorkerConfigError(
            f"{path}: the file holds {json_type(value)}, a JSON object {{...}} is needed."
        )
    return value, text


def line_of_key(text: str, key: str) -> int | None:
    """Return the line (from 1) where `key` first stands as a key, None where it does not."""
    match = re.search(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)
    return None if match is None else text.count("\n", 0, match.start()) + 1


def json_type(value: object) -> str:
    """Name the type of a parsed JSON value in JSON's own words, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise WorkerConfigError(
            f"{path}: no such file. Check the path given to --config."
        ) from None
    except IsADirectoryError:
        raise WorkerConfigError(
            f"{path}: this is a folder. Give the JSON file inside it."
        ) from None
    except OSError as error:
        raise WorkerConfigError(
            f"{path}: cannot be read ({error.strerror}). Check its permissions."
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise WorkerConfigError(
            f"{path}: line {line}: not UTF-8 (byte {error.start}). Save the file as UTF-8."
        ) from None
    if not text.strip():
        raise WorkerConfigError(f"{path}: the file is empty. An empty object {{}} is the least.")
    return text


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    result: JsonObject = {}
    for key, value in pairs:
        if key in result:
            raise _RefusedError(
                json.dumps(key, ensure_ascii=False), "given twice; keep one of the two"
            )
        result[key] = value
    return result


def _no_constant(word: str) -> object:
    raise _RefusedError(word, "not a JSON number; give a finite one")


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise _RefusedError(word, "too large for a number; give a finite one")
    return value


def _whole(word: str) -> int:
    if len(word) > _LONGEST_WHOLE_NUMBER:
        raise _RefusedError(
            word[:_LONGEST_WHOLE_NUMBER],
            f"begins a number of {len(word)} digits; give a smaller one",
        )
    return int(word)


def _at_word(text: str, error: _RefusedError) -> str:
    """Say where the refused word stands: its last place, which for a repeated key is the repeat."""
    word, why = error.args
    line = text.count("\n", 0, max(text.rfind(word), 0)) + 1
    return f"line {line}: {word}: {why}."
