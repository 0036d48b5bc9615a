"""From `settings.data` to a corpus: samples to train on and samples held out for ever.

What is held out is decided per document (file or record) by a hash of its name or content, so it
does not change when other documents are added, nor from one attempt to the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_worker.records import Part, Record, Shape, read_records
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
            f"{name}: no text file in this folder ({folder.skipped} skipped: binary, empty, links "
            'or unreadable). Set "data" to a folder of UTF-8 text or source files.'
        )
    summary = f"{name}: {len(documents)} files, {folder.skipped} skipped"
    if len(documents) == 1:
        return _cut_in_two(documents[0].content, summary, settings)
    held = _held_out([each.name.encode() for each in documents], settings.heldout_fraction)
    streams = [
        _joined(each.content for each, is_held in zip(documents, held, strict=True) if is_held is s)
        for s in (False, True)
    ]
    return _corpus(
        packed(streams[0], settings.seq_len), packed(streams[1], settings.seq_len), summary
    )


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
        packed(_joined([content[:cut]]), settings.seq_len),
        packed(_joined([content[cut:]]), settings.seq_len),
        f"{summary}, the last part held out",
    )


def _from_records(path: Path, settings: WorkerSettings) -> Corpus:
    records = list(read_records(path))
    if not records:
        raise WorkerConfigError(f'{path}: "data" names it, but it holds no record.')
    held = _held_out([each.raw for each in records], settings.heldout_fraction)
    if all(held) or not any(held):
        raise WorkerConfigError(
            f"{path}: all records are the same ({len(records)}), so none can be held out. "
            "Give at least two different ones."
        )
    train, heldout = (
        _sample_set(
            [each for each, is_held in zip(records, held, strict=True) if is_held is s],
            settings.seq_len,
            path,
        )
        for s in (False, True)
    )
    return _corpus(train, heldout, f"{path}: {len(records)} records of shape {records[0].shape}")


def _sample_set(records: Sequence[Record], seq_len: int, path: Path) -> SampleSet:
    if records[0].shape is Shape.TEXT:
        return packed(_joined(each.parts[0].content for each in records), seq_len)
    stream, learn, lengths = bytearray(), bytearray(), []
    for record in records:
        symbols, targets = _laid_out(record.parts, seq_len + 1)
        if any(targets):
            stream += symbols
            learn += targets
            lengths.append(len(symbols))
    if not lengths:
        raise WorkerConfigError(
            f"{path}: every prompt fills the {seq_len} bytes of a sample, so no answer is left to "
            'learn from. Raise "seq_len".'
        )
    return masked(stream, learn, lengths, seq_len)


def _laid_out(parts: Iterable[Part], room: int) -> tuple[bytearray, bytearray]:
    """Return a record's symbols and its target marks, cut off after `room` symbols."""
    symbols, targets = bytearray([SEPARATOR]), bytearray([0])
    for part in parts:
        symbols += part.content
        targets += bytes([part.learn]) * len(part.content)
    symbols.append(SEPARATOR)
    targets.append(targets[-1])  # an answer that ends the record learns to end
    return symbols[:room], targets[:room]


def _joined(contents: Iterable[bytes]) -> bytearray:
    """Return the documents with a separator before, between and after them."""
    separator = bytes([SEPARATOR])
    return bytearray(separator + b"".join(content + separator for content in contents))


def _held_out(keys: Sequence[bytes], fraction: float) -> list[bool]:
    """Say for each key whether it is held out; of several different ones, some always are."""
    hashes = [int.from_bytes(hashlib.sha256(key).digest()[:8], "big") for key in keys]
    border = int(fraction * _HASH_RANGE)
    smallest, largest = min(hashes), max(hashes)
    return [each < max(border, smallest + 1) and each != largest for each in hashes]


def _corpus(train: SampleSet, heldout: SampleSet, summary: str) -> Corpus:
    size = f"{len(train)} samples to train on, {len(heldout)} held out"
    fingerprint = hashlib.sha256(f"{train.digest()} {heldout.digest()}".encode()).hexdigest()
    return Corpus(train, heldout, f"{summary}; {size}", fingerprint)
