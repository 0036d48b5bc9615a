"""How a process ended -> what that alone can mean (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from humigence_supervise.domain import Confidence, Evidence, ExitStatus, Hit, Kind, Remedy

_SHELL_BASE: Final = 128
"""A shell reports a child killed by signal N as exit code 128 + N."""

_NAMES: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
"""Signals as Linux numbers them on x86-64 and arm64."""

_CRASHES: Final = {
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "an abort",
    "SIGILL": "an illegal instruction",
    "SIGFPE": "an arithmetic fault",
}
_BY_SHELL: Final = frozenset({*_CRASHES, "SIGBUS", "SIGKILL", "SIGHUP", "SIGINT", "SIGTERM"})
"""Signals that are believed when a shell reports them as an exit code."""

_WINDOWS_CRASHES: Final = frozenset({0xC0000005, 0xC000001D, 0xC00000FD, 0xC0000374, 0xC0000409})
"""NTSTATUS: access violation, illegal instruction, stack overflow, heap corruption, overrun."""

_SHARED_MEMORY_SIGNATURES: Final = ("shm.fork_trace",)
_PRESSURE_SIGNATURES: Final = ("host_oom.pressure",)


@dataclass(frozen=True, slots=True)
class Ending:
    """What an exit status means by itself; `signature` stands in fingerprints."""

    kind: Kind
    confidence: Confidence
    means: str
    signature: str
    advice: str = ""
    remedy: Remedy | None = None
    hit: Hit | None = None


def known_ends(evidence: Evidence) -> list[ExitStatus]:
    """Return how the ranks and the launcher ended, of those whose end is known."""
    ends = [exit_.status for exit_ in evidence.ranks]
    if evidence.launcher is not None:
        ends.append(evidence.launcher)
    return [end for end in ends if end != ExitStatus()]


def ending_of(status: ExitStatus, hits: tuple[Hit, ...]) -> Ending | None:
    """Return what a bad end means where no text explains it; None for a plain exit code."""
    name = _signal_name(status)
    if name is None:
        return None
    signature = f"exit.{name}"
    match name:
        case "SIGBUS":
            return _bus_error(signature, hits)
        case "SIGKILL" if pressure := _first(hits, _PRESSURE_SIGNATURES):
            return Ending(
                Kind.HOST_OOM,
                Confidence.LIKELY,
                "A process was killed (SIGKILL) when the machine's memory (RAM) was nearly full",
                signature,
                advice="`dmesg | grep -i oom` would prove it; use fewer DataLoader workers and "
                "smaller caches, offload less, or add RAM.",
                hit=pressure,
            )
        case "SIGKILL":
            return Ending(
                Kind.UNKNOWN,
                Confidence.GUESS,
                "A process was killed (SIGKILL) and nothing that was read says by whom",
                signature,
                advice="`dmesg | grep -i oom` or the cgroup's memory.events (oom_kill) would prove "
                "that the machine ran out of memory; a scheduler or a person can send it too.",
            )
        case "SIGINT":
            return Ending(
                Kind.PREEMPTED,
                Confidence.LIKELY,
                "The job was interrupted (SIGINT), as Ctrl-C does",
                signature,
                remedy=Remedy.NONE,
            )
        case "SIGTERM" | "SIGHUP":
            means = f"The job was told to end from outside ({name})"
            return Ending(Kind.PREEMPTED, Confidence.LIKELY, means, signature)
        case _ if name in _CRASHES:
            means = f"A process ended by {_CRASHES[name]} ({name})"
            return Ending(Kind.SEGFAULT, Confidence.LIKELY, means, signature)
        case _:
            means = f"A process was killed by {name}"
            return Ending(Kind.UNKNOWN, Confidence.GUESS, means, signature)


def _bus_error(signature: str, hits: tuple[Hit, ...]) -> Ending:
    """SIGBUS is how a full /dev/shm shows to who mapped it; elsewhere it is a crash."""
    shared = _first(hits, _SHARED_MEMORY_SIGNATURES)
    if shared is None:
        means = "A process ended by a bus error (SIGBUS)"
        return Ending(Kind.SEGFAULT, Confidence.LIKELY, means, signature)
    means = "A process ended by a bus error (SIGBUS) inside NCCL: its shared memory did not hold"
    return Ending(Kind.SHM, Confidence.LIKELY, means, signature, hit=shared)


def _first(hits: tuple[Hit, ...], signatures: tuple[str, ...]) -> Hit | None:
    return next((hit for hit in hits if hit.signature in signatures), None)


def _signal_name(status: ExitStatus) -> str | None:
    """Return the signal behind a status, also where a shell or a handler made it a code."""
    number = status.code if status.signal is None else -status.signal
    if number is not None and number % (1 << 32) in _WINDOWS_CRASHES:
        return "SIGSEGV"
    if status.signal is not None:
        return _NAMES.get(status.signal, f"signal {status.signal}")
    named = _NAMES.get((status.code or 0) - _SHELL_BASE, "")
    return named if named in _BY_SHELL else None
