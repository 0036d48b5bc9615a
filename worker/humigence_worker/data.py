"""From `settings.data` to a corpus: samples to train on and samples held out for ever.

What is held out is decided per document (file or record) by a hash of its name or content, so it
does not change when other documents are added, nor from one attempt to the next.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_worker.records import Part, Record, Shape, read_lines, read_records
from humigence_worker.samples import (
    SEPARATOR,
    SampleSet,
    masked,
    packed,
    unigram_bits,
    unigram_bits_per_byte,
)
from humigence_worker.settings import STDLIB, WorkerConfigError, WorkerSettings
from humigence_worker.sources import Folder, read_folder, read_stdlib, read_text

__all__ = ["Corpus", "SampleSet", "load_dataset", "unigram_bits", "unigram_bits_per_byte"]

_SEPARATOR: Final = bytes([SEPARATOR])
_HASH_RANGE: Final = 2**64


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is trained on, what is held out, and a line for people on where it came from.

    `fingerprint` is the hex SHA-256 of everything the two sample sets return: two corpora with
    the same one give the same samples.
    """

    train: SampleSet
    heldout: SampleSet
    summary: str
    fingerprint: str


def load_dataset(settings: WorkerSettings) -> Corpus:
    """Read the data that `settings` name into memory (one byte a byte, two where masked).

    Raises:
        WorkerConfigError: when there is nothing usable there, or too little to hold some out.
    """
    if settings.data == STDLIB:
        return _from_folder(read_stdlib(), "the standard library", settings)
    path = Path(settings.data)
    try:
        if path.is_dir():
            return _from_folder(read_folder(path), str(path), settings)
        if path.suffix == ".jsonl":
            return _from_records(path, settings)
        return _from_text(path, settings)
    except FileNotFoundError:
        problem = "no such file or folder. Correct the path."
    except OSError as error:
        problem = f"cannot be read ({error.strerror}). Check path and permissions."
    raise WorkerConfigError(f'{path}: "data" names it: {problem}') from None


def _from_folder(folder: Folder, name: str, settings: WorkerSettings) -> Corpus:
    documents = folder.documents
    if not documents:
        raise WorkerConfigError(
            f"{name}: no text file in this folder ({folder.skipped} skipped: binary, empty, not "
            'UTF-8 or unreadable). Set "data" to a folder of UTF-8 text or source files.'
        )
    summary = f"{name}: {len(documents)} files, {folder.skipped} skipped"
    if len(documents) == 1:
        return _cut_in_two(documents[0].content, summary, settings)
    held = _held_out((os.fsencode(each.name) for each in documents), settings.heldout_fraction)
    streams = (bytearray(_SEPARATOR), bytearray(_SEPARATOR))
    for document, is_held in zip(documents, held, strict=True):
        streams[is_held].extend(document.content + _SEPARATOR)
    train, heldout = (packed(stream, settings.seq_len) for stream in streams)
    return _corpus(train, heldout, summary)


def _from_text(path: Path, settings: WorkerSettings) -> Corpus:
    if path.suffix == ".json":
        raise WorkerConfigError(
            f'{path}: "data" names a .json file. Write one record a line into a .jsonl file.'
        )
    if path.stat().st_size == 0:
        raise WorkerConfigError(f'{path}: "data" names it, but the file is empty.')
    content = read_text(path)
    if content is None:
        raise WorkerConfigError(
            f'{path}: "data" names it, but it is no UTF-8 text (or holds NUL bytes). Give a text '
            "file, a .jsonl file or a folder of text."
        )
    return _cut_in_two(content, str(path), settings)


def _cut_in_two(content: bytes, summary: str, settings: WorkerSettings) -> Corpus:
    """Hold out the last part of a single text."""
    cut = len(content) - max(1, round(len(content) * settings.heldout_fraction))
    if not cut:
        raise WorkerConfigError(f"{summary}: one byte cannot be cut in two. Give more text.")
    return _corpus(
        packed(bytearray(_SEPARATOR + content[:cut] + _SEPARATOR), settings.seq_len),
        packed(bytearray(_SEPARATOR + content[cut:] + _SEPARATOR), settings.seq_len),
        f"{summary}, the last part held out",
    )


def _from_records(path: Path, settings: WorkerSettings) -> Corpus:
    """Read twice: once for what is held out, once for the records, so that none is kept whole."""
    held = _held_out((line for _, line in read_lines(path)), settings.heldout_fraction)
    if not held:
        raise WorkerConfigError(f'{path}: "data" names it, but it holds no record.')
    sides = (_Side(settings.seq_len), _Side(settings.seq_len))
    shape = Shape.TEXT
    for record, is_held in zip(read_records(path), held, strict=True):
        shape = record.shape
        sides[is_held].add(record)
    if all(held) or not any(held):
        raise WorkerConfigError(
            f"{path}: its {len(held)} records are all the same, so none can be held out. Give at "
            "least two different ones."
        )
    for side in sides:
        if shape is not Shape.TEXT and not side.lengths:
            raise WorkerConfigError(
                f"{path}: no record to train on, or none held out, has its answer within the first "
                f'{settings.seq_len} bytes. Raise "seq_len", or give more records.'
            )
    summary = f"{path}: {len(held)} records of shape {shape}"
    cut_off = sides[0].without_answer + sides[1].without_answer
    if cut_off:
        summary += f", {cut_off} of them left out (the prompt alone fills seq_len)"
    return _corpus(sides[0].finish(), sides[1].finish(), summary)


class _Side:
    """The samples of one side of the split while its records come in."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.stream = bytearray()
        self.learn = bytearray()
        self.lengths: list[int] = []
        self.without_answer = 0

    def add(self, record: Record) -> None:
        """Append a text to what is packed, or lay out a record of prompts and answers."""
        if record.shape is Shape.TEXT:
            self.stream += _SEPARATOR + record.parts[0].content
            return
        symbols, targets = _laid_out(record.parts, self.seq_len + 1)
        if not any(targets):
            self.without_answer += 1
            return
        self.stream += symbols
        self.learn += targets
        self.lengths.append(len(symbols))

    def finish(self) -> SampleSet:
        if self.lengths:
            return masked(self.stream, self.learn, self.lengths, self.seq_len)
        return packed(self.stream + _SEPARATOR, self.seq_len)


def _laid_out(parts: Sequence[Part], room: int) -> tuple[bytes, bytes]:
    """Return a record's symbols and its target marks, cut off after `room` symbols."""
    symbols, targets = bytearray(_SEPARATOR), bytearray([0])
    for part in parts:
        symbols += part.content
        targets += bytes([part.learn]) * len(part.content)
    symbols += _SEPARATOR
    targets.append(parts[-1].learn)  # an answer at the end learns to end
    return bytes(symbols[:room]), bytes(targets[:room])


def _held_out(keys: Iterable[bytes], fraction: float) -> list[bool]:
    """Say for each key whether it is held out; of several different ones, some always are."""
    hashes = [int.from_bytes(hashlib.sha256(key).digest()[:8], "big") for key in keys]
    border = int(fraction * _HASH_RANGE)
    smallest, largest = min(hashes, default=0), max(hashes, default=0)
    return [each < max(border, smallest + 1) and each != largest for each in hashes]


def _corpus(train: SampleSet, heldout: SampleSet, summary: str) -> Corpus:
    size = f"{len(train)} samples to train on, {len(heldout)} held out"
    fingerprint = hashlib.sha256(f"{train.digest()} {heldout.digest()}".encode()).hexdigest()
    return Corpus(train, heldout, f"{summary}; {size}", fingerprint)
