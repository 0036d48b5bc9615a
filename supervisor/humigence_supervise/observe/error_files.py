"""The files in which torchelastic's `record` keeps a rank's exception (fs).

Their shapes: `{"message": text}` before torch 1.9 and of other writers, "timestamp" beside it or
not; since then `{"message": {"message", "errorCode", "extraInfo": {"py_callstack", "timestamp"}}}`.
The time is Unix seconds, as a text (torch/distributed/elastic/multiprocessing/errors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.contract import RANK_ERROR_FILE, RANKS_DIR
from humigence_supervise.domain import Hit, Role
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.scan import Scanner
from humigence_supervise.small_json import load_small_json

_STACKS: Final = ("py_callstack", "traceback")
_YEAR_2001_S: Final = 1e9
_YEAR_2100_S: Final = 4.1e9


def error_file_hits(
    attempt_dir: Path,
    rank: int,
    known: list[Hit],
    unread: list[str],
) -> list[Hit]:
    """Return what a rank's error file adds: only where the rank's own logs say nothing."""
    if any(hit.rank == rank and hit.role is Role.ROOT for hit in known):
        return []
    name = f"{RANKS_DIR}/{rank}/{RANK_ERROR_FILE}"
    text, at_s = _message(read_object(attempt_dir / name, name, unread))
    if not text:
        return []
    scanner = Scanner(load_catalogue(), name, rank)
    scanner.feed(Block(1, text.encode(errors="replace").split(b"\n")))
    return [replace(hit, at_s=at_s) if hit.at_s is None else hit for hit in scanner.finish().hits]


def read_object(path: Path, name: str, unread: list[str]) -> dict[str, Any]:
    """Return a small JSON object; {} when it is not there or cannot be read (see `unread`)."""
    try:
        value = load_small_json(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        unread.append(f"{name}: {error.strerror}")
        return {}
    except ValueError:
        unread.append(f"{name}: not readable as JSON")
        return {}
    return value if isinstance(value, dict) else {}


def _message(record: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the most telling text of an error file, and when it was written."""
    inner = record.get("message")
    layers = [layer for layer in (inner, record) if isinstance(layer, dict)]
    extras = [extra for layer in layers if isinstance(extra := layer.get("extraInfo"), dict)]
    stacks = [extra.get(name) for extra in extras for name in _STACKS]
    texts = [*stacks, *(layer.get("message") for layer in layers)]
    text = next((one for one in texts if isinstance(one, str) and one), "")
    times = (_unix_s(layer.get("timestamp")) for layer in (*extras, *layers))
    return text, next((at_s for at_s in times if at_s is not None), None)


def _unix_s(value: object) -> float | None:
    """Return Unix seconds from a number or a text; None for what is no time of a run."""
    try:
        seconds = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return seconds if _YEAR_2001_S < seconds < _YEAR_2100_S else None
