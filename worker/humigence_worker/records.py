"""JSONL in the three shapes people have, turned into text with the parts to learn marked.

A line is `{"text": ...}`, or `{"instruction": ..., "input": ..., "output": ...}` (input may be
absent), or `{"messages": [{"role": ..., "content": ...}, ...]}`. Further keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from humigence_worker.strict_json import WorkerConfigError, json_type

_ROLES: Final = ("system", "user", "assistant", "tool")


class Shape(StrEnum):
    """The shapes of a record."""

    TEXT = "text"
    INSTRUCTION = "instruction/input/output"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a record's text as UTF-8; `learn` is True where the model shall produce it."""

    content: bytes
    learn: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One line's text."""

    shape: Shape
    parts: tuple[Part, ...]


class _BadRecordError(ValueError):
    """What is wrong with one line; the reader adds file and line number."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number (from 1) and content of every line that is not blank, without a byte order mark.

    Raises:
        OSError: when the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            content = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
            if content:
                yield number, content


def read_records(path: Path) -> Iterator[Record]:
    """Yield the record of every line of `read_lines`.

    Raises:
        WorkerConfigError: for the first line that is no record, or whose shape differs from the
            first record's, naming file and line.
        OSError: when the file cannot be read.
    """
    first: tuple[int, Shape] | None = None
    for number, line in read_lines(path):
        try:
            record = _record(line)
        except _BadRecordError as error:
            raise WorkerConfigError(f"{path}: line {number}: {error}") from None
        first = first or (number, record.shape)
        if record.shape is not first[1]:
            raise WorkerConfigError(
                f"{path}: line {number} has the shape {record.shape}, but line {first[0]} has "
                f"{first[1]}. Keep one shape in a file."
            )
        yield record


def _record(line: bytes) -> Record:
    try:
        value: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BadRecordError(
            f"not UTF-8 (byte {error.start} of the line). Save as UTF-8."
        ) from None
    except json.JSONDecodeError as error:
        raise _BadRecordError(
            f"not valid JSON ({error.msg}, column {error.colno}). Every line must be one whole "
            "JSON object; correct or remove this line."
        ) from None
    except (RecursionError, ValueError):
        raise _BadRecordError("nested too deeply, or a number too long to read.") from None
    if not isinstance(value, dict):
        raise _BadRecordError(f"holds {json_type(value)}, a JSON object is needed.")
    if "messages" in value:
        return Record(Shape.MESSAGES, _chat(value["messages"]))
    if "instruction" in value:
        return Record(Shape.INSTRUCTION, _instruction(value))
    if "text" in value:
        return Record(Shape.TEXT, (Part(_field(value, "text"), learn=True),))
    keys = ", ".join(f'"{key}"' for key in list(value)[:5]) or "none"
    raise _BadRecordError(
        'unknown shape. Needed is "text", or "instruction" and "output" (and perhaps "input"), or '
        f'"messages"; the keys here are: {keys}.'
    )


def _instruction(value: dict[str, object]) -> tuple[Part, ...]:
    prompt = b"### Instruction:\n" + _field(value, "instruction") + b"\n\n"
    if value.get("input") not in (None, ""):
        prompt += b"### Input:\n" + _field(value, "input") + b"\n\n"
    prompt += b"### Response:\n"
    return (Part(prompt, learn=False), Part(_field(value, "output"), learn=True))


def _chat(messages: object) -> tuple[Part, ...]:
    if not isinstance(messages, list):
        raise _BadRecordError(f'"messages" must be a list, not {json_type(messages)}.')
    parts = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]."
        if not isinstance(message, dict):
            raise _BadRecordError(f"{where[:-1]} must be an object, not {json_type(message)}.")
        role = message.get("role")
        if role not in _ROLES:
            raise _BadRecordError(f"{where}role must be one of {', '.join(_ROLES)}.")
        content = _field(message, "content", where)
        parts.append(Part(f"### {role}:\n".encode(), learn=False))
        parts.append(Part(content + b"\n\n", learn=role == "assistant"))
    if not any(part.learn for part in parts):
        raise _BadRecordError("no message of the assistant, so there is nothing to learn.")
    return tuple(parts)


def _field(value: dict[str, object], key: str, where: str = "") -> bytes:
    if key not in value:
        raise _BadRecordError(f'"{where}{key}" is missing.')
    text = value[key]
    if not isinstance(text, str):
        raise _BadRecordError(f'"{where}{key}" must be a string, not {json_type(text)}.')
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _BadRecordError(
            f'"{where}{key}" holds half a surrogate pair (\\ud800 to \\udfff), which is no '
            "character. Remove it."
        ) from None
