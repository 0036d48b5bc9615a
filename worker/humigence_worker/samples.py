"""Samples in memory: one array of bytes with an index, whatever they came from.

All input is valid UTF-8, and UTF-8 never contains the byte 0xFF: it is the separator between
documents and the padding, so a symbol is a byte and the vocabulary is exactly 256.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from humigence_worker.model import IGNORED, VOCABULARY

SEPARATOR: Final = 0xFF
"""The symbol before, between and after documents; also pads the last sample."""


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples of at most `seq_len` predictions each.

    `symbols` [uint8] holds all of them; sample i is the `lengths[i]` symbols from `starts[i]` on
    [int64 each], of which the first is only context. `learn` [bool, as long as `symbols`] marks
    the symbols that are targets; None where all are.
    """

    symbols: Tensor
    starts: Tensor
    lengths: Tensor
    seq_len: int
    learn: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.starts)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, int64 [len(indices), seq_len]; targets may be `IGNORED`."""
        chosen = torch.tensor(indices, dtype=torch.int64)
        offsets = torch.arange(self.seq_len + 1)
        inside = offsets < self.lengths[chosen, None]
        where = (self.starts[chosen, None] + offsets).clamp(max=len(self.symbols) - 1)
        rows = self.symbols[where].long().where(inside, SEPARATOR)
        is_target = inside if self.learn is None else inside & self.learn[where]
        return rows[:, :-1], rows[:, 1:].where(is_target[:, 1:], IGNORED)

    def target_counts(self) -> Tensor:
        """Return how often each symbol is a target, int64 [256]."""
        targets = self.symbols[1:] if self.learn is None else self.symbols[self.learn]
        return torch.bincount(targets, minlength=VOCABULARY)

    def digest(self) -> str:
        """Return the hex SHA-256 of everything that decides what `batch` returns."""
        result = hashlib.sha256(str(self.seq_len).encode())
        for each in (self.symbols, self.starts, self.lengths, self.learn):
            if each is not None:
                result.update(each.numpy().data.cast("B"))
        return result.hexdigest()


def packed(stream: bytearray, seq_len: int) -> SampleSet:
    """Cut documents, joined by separators, into windows that predict every symbol but the first."""
    symbols = torch.frombuffer(stream, dtype=torch.uint8)
    starts = torch.arange(0, len(stream) - 1, seq_len)
    lengths = (len(stream) - starts).clamp(max=seq_len + 1)
    return SampleSet(symbols, starts, lengths, seq_len)


def masked(stream: bytearray, learn: bytearray, lengths: Sequence[int], seq_len: int) -> SampleSet:
    """Index records laid one after the other; `learn` has a 1 for every symbol that is a target."""
    sizes = torch.tensor(lengths, dtype=torch.int64)
    return SampleSet(
        symbols=torch.frombuffer(stream, dtype=torch.uint8),
        starts=sizes.cumsum(0) - sizes,
        lengths=sizes,
        seq_len=seq_len,
        learn=torch.frombuffer(learn, dtype=torch.bool),
    )


def unigram_bits(train: SampleSet) -> Tensor:
    """Return what each symbol costs in bits under train's frequencies plus one, float64 [256]."""
    counts = train.target_counts().double() + 1
    return -(counts / counts.sum()).log2()


def unigram_bits_per_byte(train: SampleSet, heldout: SampleSet) -> float:
    """Return the bits a byte of `heldout` costs a model that only knows train's byte counts."""
    counts = heldout.target_counts().double()
    total = float(counts.sum())
    return float((counts * unigram_bits(train)).sum()) / total if total else math.nan
