"""How a process ended -> what that alone can mean (pure)."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from humigence_supervise.contract import EXIT_SIGINT, EXIT_SIGTERM
from humigence_supervise.domain import Confidence, ExitStatus, Hit, Kind, Remedy

_SHELL_BASE: Final = 128
"""A shell reports a child killed by signal N as exit code 128 + N."""

_CRASHES: Final = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGABRT: "an abort",
    signal.SIGBUS: "a bus error",
    signal.SIGILL: "an illegal instruction",
    signal.SIGFPE: "an arithmetic fault",
}
_SHARED_MEMORY_SIGNATURES: Final = ("shm.fork_trace",)


@dataclass(frozen=True, slots=True)
class Ending:
    """What an exit status means by itself; `signature` stands in fingerprints."""

    kind: Kind
    confidence: Confidence
    means: str
    signature: str
    advice: str = ""
    remedy: Remedy | None = None
    by_signal: bool = True
    hit: Hit | None = None


def ending_of(status: ExitStatus, hits: tuple[Hit, ...]) -> Ending | None:
    """Return what a bad end means where no text explains it; None for a plain exit code."""
    number = _signal_of(status)
    if number is None:
        return None
    name = signal.Signals(number).name if number in _NUMBERS else f"signal {number}"
    signature = f"exit.{name}"
    if number == signal.SIGBUS:
        return _bus_error(signature, hits)
    if number in _CRASHES:
        means = f"A process ended by {_CRASHES[signal.Signals(number)]} ({name})"
        return Ending(Kind.SEGFAULT, Confidence.LIKELY, means, signature)
    if number == signal.SIGKILL:
        return Ending(
            Kind.UNKNOWN,
            Confidence.GUESS,
            "A process was killed (SIGKILL) and nothing that was read says by whom",
            signature,
            advice="`dmesg | grep -i oom` or the cgroup's memory.events (oom_kill) would prove "
            "that the machine ran out of memory; a scheduler or a person can send it too.",
        )
    if number == signal.SIGINT:
        return Ending(
            Kind.PREEMPTED,
            Confidence.LIKELY,
            "The job was interrupted (SIGINT), as Ctrl-C does",
            signature,
            remedy=Remedy.NONE,
        )
    if number in (signal.SIGTERM, signal.SIGHUP):
        means = f"The job was told to end from outside ({name})"
        return Ending(Kind.PREEMPTED, Confidence.LIKELY, means, signature)
    return Ending(Kind.UNKNOWN, Confidence.GUESS, f"A process was killed by {name}", signature)


def _bus_error(signature: str, hits: tuple[Hit, ...]) -> Ending:
    """SIGBUS is how a full /dev/shm shows to who mapped it; elsewhere it is a crash."""
    shared = next((hit for hit in hits if hit.signature in _SHARED_MEMORY_SIGNATURES), None)
    if shared is None:
        means = "A process ended by a bus error (SIGBUS)"
        return Ending(Kind.SEGFAULT, Confidence.LIKELY, means, signature)
    means = "A process ended by a bus error (SIGBUS) inside NCCL: its shared memory did not hold"
    return Ending(Kind.SHM, Confidence.LIKELY, means, signature, hit=shared)


_NUMBERS: Final = frozenset(int(known) for known in signal.Signals)


def _signal_of(status: ExitStatus) -> int | None:
    """Return the signal behind a status, also where a shell or a handler turned it into a code."""
    if status.signal is not None:
        return status.signal
    code = status.code
    if code in (EXIT_SIGINT, EXIT_SIGTERM):
        return code - _SHELL_BASE
    if code is not None and code - _SHELL_BASE in _SHELL_SIGNALS:
        return code - _SHELL_BASE
    return None


_SHELL_SIGNALS: Final = frozenset({*map(int, _CRASHES), int(signal.SIGKILL), int(signal.SIGHUP)})
