"""The steps an attempt completed, as its progress files tell them, or else the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.domain import Progress, Section
from humigence_supervise.history import integer, text
from humigence_supervise.observe.progress import stream
from humigence_supervise.records import Entry, Event, Record

STEP_SECTIONS = (Section.INIT, Section.TRAIN)


def steps_of(run_dir: Path, attempt: int, entries: Iterable[Entry]) -> Iterator[Progress]:
    """Yield the `init` and `train` lines of an attempt's lowest rank, in constant memory.

    A program that writes no progress files is known by the journal's thinned `attempt.progress`.

    Raises:
        OSError: a progress file is there but cannot be read.
    """
    folder = run_dir / contract.ATTEMPTS_DIR / contract.attempt_name(attempt)
    rank: int | None = None
    for line in stream(folder / contract.PROGRESS_DIR):
        if line.section not in STEP_SECTIONS:
            continue
        rank = line.rank if rank is None else rank
        if line.rank != rank:
            return
        yield line
    if rank is None:
        yield from _journaled(attempt, entries)


def _journaled(attempt: int, entries: Iterable[Entry]) -> Iterator[Progress]:
    for entry in entries:
        record = entry.record
        if record.event is Event.ATTEMPT_PROGRESS and record.attempt == attempt:
            line = _as_progress(record)
            if line is not None and line.section in STEP_SECTIONS:
                yield line


def _as_progress(record: Record) -> Progress | None:
    at_s, loss = record.facts.get("at_s"), record.facts.get("loss")
    step, section = integer(record, "step"), text(record, "section")
    if not isinstance(at_s, int | float) or step is None:
        return None
    known = section in {one.value for one in Section}
    return Progress(
        rank=0,
        at_s=at_s,
        step=step,
        epoch=0,
        first_sample=0,
        last_sample=0,
        loss=loss if isinstance(loss, int | float) else None,
        section=Section(section) if known else Section.TRAIN,
    )
