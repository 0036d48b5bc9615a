"""Stopping after a step: asked for by a signal, agreed on by all ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import torch
import torch.distributed as dist

from humigence_supervise import contract

_EXIT_CODES: Final = {
    signal.SIGTERM: contract.EXIT_SIGTERM,
    signal.SIGINT: contract.EXIT_SIGINT,
}


class StopRequest:
    """SIGTERM and SIGINT: stop after this step, or at once where there is nothing to save."""

    def __init__(self) -> None:
        """Take over both signals; until `saving_first`, each ends the process at once."""
        self._asked: signal.Signals | None = None
        self._saves_first = False
        for number in _EXIT_CODES:
            signal.signal(number, self._note)

    @property
    def asked(self) -> signal.Signals | None:
        """The signal that this process was stopped by, None so far."""
        return self._asked

    @contextmanager
    def saving_first(self) -> Iterator[None]:
        """Inside, the first signal is only noted, for the training to act on; the second ends."""
        self._saves_first = True
        try:
            yield
        finally:
            self._saves_first = False

    def _note(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self._asked is not None or not self._saves_first:
            os._exit(_EXIT_CODES[received])
        self._asked = received
        # Straight to the descriptor: the signal may have interrupted a write to the stream.
        os.write(2, f"{received.name}: saving after this step; a second one ends now\n".encode())


def agree(
    loss: torch.Tensor, asked: signal.Signals | None, world_size: int
) -> tuple[float, signal.Signals | None]:
    """Return the mean loss of the step and the signal to stop for: the same on every rank.

    One tiny all-reduce for both. Stopping must be agreed on, or a rank that stopped alone would
    leave the others waiting in a collective. SIGTERM wins over SIGINT.
    """
    if world_size == 1:
        return float(loss), asked
    votes = [float(asked is number) for number in _EXIT_CODES]
    shared = torch.tensor([0.0, *votes], dtype=torch.float64, device=loss.device)
    shared[0] = loss
    dist.all_reduce(shared)
    total, *counts = shared.tolist()
    wanted = [number for number, count in zip(_EXIT_CODES, counts, strict=True) if count]
    return total, wanted[0] if wanted else None


def exit_code(asked: signal.Signals) -> int:
    """Return 128 plus the signal's number: 143 for SIGTERM, 130 for SIGINT."""
    return _EXIT_CODES[asked]
