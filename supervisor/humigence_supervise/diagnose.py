"""Evidence -> Diagnosis: the root before its symptoms, a record before a guess (pure).

Order of belief: the kernel's record; a run that ended well; the strongest text (a specific
cause, then an exception of the program); a watched hang; how the first dead rank ended; texts
that are usually consequences; and, when nothing is left, `unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from humigence_supervise.catalogue import Row, load_catalogue
from humigence_supervise.contract import EXIT_CONFIG
from humigence_supervise.domain import (
    Confidence,
    Diagnosis,
    Evidence,
    ExitStatus,
    Hit,
    Kind,
    RankExit,
    Remedy,
    Role,
)
from humigence_supervise.endings import Ending, ending_of
from humigence_supervise.oom import Holder, OomReading, read_oom
from humigence_supervise.remedies import USUAL

_CHAIN_LINES: Final = 40
_GENERIC: Final = "python.exception"
_CHAIN: Final = "python.chain"
_SYMPTOMS_MAX: Final = 20
_STRONG: Final = 60
"""A text of this strength names a cause of its own; weaker ones are usually consequences."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """A diagnosis before it is put into words."""

    kind: Kind
    confidence: Confidence
    hit: Hit | None = None
    rank: int | None = None
    means: str = ""
    advice: str = ""
    remedy: Remedy | None = None
    signature: str = ""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the root cause of an attempt's end, as far as the evidence shows it."""
    roots = _ranked(evidence, evidence.hits)
    finding = _find(evidence, roots)
    usual = USUAL[finding.kind]
    means = finding.means or usual.means
    rank = finding.rank if finding.hit is None else finding.hit.rank
    where = _where(rank, finding.hit)
    return Diagnosis(
        kind=finding.kind,
        root=finding.hit,
        symptoms=_symptoms(evidence, finding),
        remedy=finding.remedy or usual.remedy,
        reason=f"{means.rstrip('.')}{where}.",
        advice=finding.advice or usual.advice,
        confidence=finding.confidence,
        fingerprint=_fingerprint(finding),
        rank=rank,
    )


def _find(evidence: Evidence, roots: list[Hit]) -> _Finding:
    if finding := _from_record(evidence):
        return finding
    if evidence.stop_requested:
        return _Finding(
            Kind.PREEMPTED,
            Confidence.CERTAIN,
            means="The run was stopped on request",
            advice="Start it again when you want to go on.",
            remedy=Remedy.NONE,
        )
    if _ended_well(evidence):
        return _from_success(evidence)
    strong = [hit for hit in roots if _row(hit).strength >= _STRONG]
    dead = _first_dead(evidence)
    if _refused_config(evidence):
        own = next((hit for hit in strong if hit.kind is Kind.CONFIG_ERROR), None)
        hit = own or next(iter(strong), None)
        return _Finding(Kind.CONFIG_ERROR, Confidence.CERTAIN, hit, means=_quoted(hit))
    ending = ending_of(dead.status, evidence.hits) if dead else None
    if strong and not _signal_outweighs(strong[0], dead, ending):
        return _from_text(evidence, strong[0])
    if evidence.hang_suspected:
        return _Finding(Kind.HANG, Confidence.LIKELY, next(iter(roots), None))
    if dead and ending and (ending.kind is not Kind.UNKNOWN or not roots):
        return _from_ending(dead, ending, roots)
    if roots:
        return _from_text(evidence, roots[0])
    return _from_nothing(evidence, dead)


# --- what needs no text ------------------------------------------------------------------------


def _from_record(evidence: Evidence) -> _Finding | None:
    """The kernel's own word that it killed one of our ranks for memory."""
    for exit_ in evidence.ranks:
        if exit_.pid and exit_.pid in evidence.host_oom_pids:
            means = f"The kernel killed rank {exit_.rank} (pid {exit_.pid}) for memory"
            return _Finding(Kind.HOST_OOM, Confidence.CERTAIN, rank=exit_.rank, means=means)
    return None


def _ended_well(evidence: Evidence) -> bool:
    """Return whether everything that is known of the end is exit code 0."""
    known = [exit_.status for exit_ in evidence.ranks]
    if evidence.launcher is not None:
        known.append(evidence.launcher)
    return bool(known) and all(status.ok for status in known)


def _from_success(evidence: Evidence) -> _Finding:
    last, target = evidence.last_step, evidence.target_step
    if target is not None and last is not None and last < target:
        means = f"The program ended with exit code 0 at step {last} of {target}"
        return _Finding(Kind.PREMATURE_SUCCESS, Confidence.CERTAIN, means=means)
    if target is not None and last is None:
        return _Finding(
            Kind.PREMATURE_SUCCESS,
            Confidence.LIKELY,
            means=f"The program ended with exit code 0, but no step of {target} was seen",
        )
    return _Finding(Kind.HEALTHY, Confidence.CERTAIN)


def _refused_config(evidence: Evidence) -> bool:
    statuses = [exit_.status for exit_ in evidence.ranks]
    if evidence.launcher is not None:
        statuses.append(evidence.launcher)
    return any(status.code == EXIT_CONFIG for status in statuses)


def _first_dead(evidence: Evidence) -> RankExit | None:
    """Return the rank that died first, the only bad one, or the launcher when it stands alone."""
    bad = [exit_ for exit_ in evidence.ranks if not exit_.status.ok]
    for exit_ in bad:
        if exit_.rank == evidence.first_dead:
            return exit_
    told = [exit_ for exit_ in bad if exit_.status != ExitStatus()]
    own = [exit_ for exit_ in told if exit_.status.signal not in _CLEARING_SIGNALS]
    if own or told:
        return (own or told)[0]
    if not evidence.ranks and evidence.launcher and not evidence.launcher.ok:
        return RankExit(0, 0, evidence.launcher)
    return None


_CLEARING_SIGNALS: Final = (9, 15)
"""With these a launcher clears away the ranks that did nothing wrong."""


def _signal_outweighs(hit: Hit, dead: RankExit | None, ending: Ending | None) -> bool:
    """Return whether the first dead rank's signal says more than another rank's exception.

    A rank that sees its peer vanish raises some exception of its own; a signal with no text is
    then the cause. A specific text (a full disk, an OOM) is believed on any rank.
    """
    if dead is None or ending is None or hit.signature != _GENERIC:
        return False
    return ending.by_signal and hit.rank is not None and hit.rank != dead.rank


def _from_ending(dead: RankExit, ending: Ending, roots: list[Hit]) -> _Finding:
    hit = ending.hit or next((hit for hit in roots if hit.kind is ending.kind), None)
    row = _row(hit) if hit else None
    return _Finding(
        ending.kind,
        ending.confidence,
        hit,
        rank=dead.rank,
        means=f"{ending.means} (rank {dead.rank})" if hit is None else ending.means,
        advice=ending.advice or (row.advice if row else ""),
        remedy=ending.remedy,
        signature=ending.signature,
    )


def _from_nothing(evidence: Evidence, dead: RankExit | None) -> _Finding:
    if dead is None and evidence.launcher is None and not evidence.ranks:
        if not evidence.unread:
            means = "Nothing in the text shows a failure"
            return _Finding(Kind.HEALTHY, Confidence.GUESS, means=means)
        return _Finding(
            Kind.UNKNOWN,
            Confidence.GUESS,
            means=f"What was there could not be read: {'; '.join(evidence.unread)}",
        )
    code = dead.status.code if dead else None
    told = f"exit code {code}" if code is not None else "no known exit status"
    means = f"The job ended with {told} and no text that shows the cause"
    return _Finding(Kind.UNKNOWN, Confidence.GUESS, rank=dead.rank if dead else None, means=means)


# --- texts -------------------------------------------------------------------------------------


def _row(hit: Hit) -> Row:
    return load_catalogue().by_id[hit.signature]


def _ranked(evidence: Evidence, hits: tuple[Hit, ...]) -> list[Hit]:
    """Return the hits that can be causes: strongest first, among equals the earliest."""
    causes = [hit for hit in hits if hit.role is not Role.CONTEXT and hit.signature != _GENERIC]
    causes += _first_of_last_chains(hits)
    stamped = all(hit.at_s is not None for hit in causes)

    def order(entry: tuple[int, Hit]) -> tuple[float, ...]:
        index, hit = entry
        time_s = hit.at_s if stamped and hit.at_s is not None else 0.0
        late = hit.rank is not None and hit.rank != evidence.first_dead
        return (-_row(hit).strength, time_s, float(late), float(index))

    return [hit for _, hit in sorted(enumerate(causes), key=order)]


def _first_of_last_chains(hits: tuple[Hit, ...]) -> list[Hit]:
    """Return, for each file and rank, the exception that began the last chain of exceptions.

    Earlier tracebacks were survived; in a chain, the first exception is the cause of the rest.
    """
    last: dict[tuple[str, int | None], Hit] = {}
    links: dict[tuple[str, int | None], int] = {}
    for hit in hits:
        where = (hit.file, hit.rank)
        if hit.signature == _CHAIN:
            links[where] = hit.line
        elif hit.signature == _GENERIC:
            known = last.get(where)
            chained = known is not None and (
                links.get(where, -1) >= known.line or hit.line - known.line <= _CHAIN_LINES
            )
            if not chained:
                last[where] = hit
            links.pop(where, None)
    return list(last.values())


def _from_text(evidence: Evidence, hit: Hit) -> _Finding:
    row = _row(hit)
    strong = row.strength >= _STRONG
    certain = Confidence.CERTAIN if row.strength >= 100 else Confidence.LIKELY  # noqa: PLR2004 - scale of `strength`
    finding = _Finding(
        hit.kind,
        certain if strong else Confidence.LIKELY,
        hit,
        means=row.means,
        advice=row.advice,
        remedy=row.remedy,
    )
    match hit.kind:
        case Kind.CUDA_OOM:
            return _explain_oom(finding, hit, evidence)
        case Kind.HOST_OOM if row.strength >= _HOST_RECORD and not evidence.progress_seen:
            return replace(finding, remedy=Remedy.STOP_AND_TELL)
        case Kind.SEGFAULT if hit.frame and not evidence.progress_seen:
            return replace(finding, remedy=Remedy.STOP_AND_TELL)
        case Kind.DEVICE_MISMATCH if _between_gpus(hit.text):
            return replace(finding, remedy=Remedy.FALLBACK_SINGLE_GPU)
        case Kind.USER_CODE | Kind.IMPORT_ERROR | Kind.CONFIG_ERROR:
            return replace(finding, means=_quoted(hit) or row.means)
        case _:
            return finding


_HOST_RECORD: Final = 110
"""Strength of texts that the kernel or Slurm itself wrote."""


def _between_gpus(text: str) -> bool:
    """Return whether a device mismatch names two GPUs and no cpu."""
    return len(set(re.findall(r"cuda:\d+", text))) > 1 and not re.search(r"\bcpu\b", text)


def _quoted(hit: Hit | None) -> str:
    return hit.text.strip()[:300] if hit else ""


def _explain_oom(finding: _Finding, hit: Hit, evidence: Evidence) -> _Finding:
    own = frozenset(exit_.pid for exit_ in evidence.ranks)
    reading = read_oom(hit.text, own)
    match reading.holder:
        case Holder.WORKLOAD:
            return finding
        case Holder.FRAGMENTATION:
            return replace(
                finding,
                means="The GPU's memory was full, much of it reserved in pieces that did not fit",
                advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (torch 2.10 and "
                "newer: PYTORCH_ALLOC_CONF), or use smaller micro-batches.",
            )
        case Holder.ALLOCATOR:
            return replace(
                finding,
                means="A small allocation was refused although most of the card was free: the "
                "allocator or the driver is at fault",
                advice="Smaller batches will not help; update driver and torch, check for a "
                "memory limit (set_per_process_memory_fraction, MIG, ulimit).",
                remedy=Remedy.STOP_AND_TELL,
            )
        case Holder.STRANGER:
            return replace(finding, **_about_other(reading, Remedy.WAIT_THEN_RETRY))
        case Holder.SIBLING_RANK:
            return replace(
                finding,
                means=f"Several ranks share one GPU (pid {reading.pid} is another rank)",
                advice="Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first.",
                remedy=Remedy.STOP_AND_TELL,
            )


def _about_other(reading: OomReading, remedy: Remedy) -> dict[str, str | Remedy]:
    held = f"{(reading.held_mib or 0) / 1024:.1f} GiB"
    return {
        "means": f"Another process (pid {reading.pid}) holds {held} of the GPU's memory",
        "advice": f"See what it is (`ps -fp {reading.pid}`) and wait for it or end it; nothing of "
        "others is ever killed.",
        "remedy": remedy,
    }


# --- words -------------------------------------------------------------------------------------


def _symptoms(evidence: Evidence, finding: _Finding) -> tuple[Hit, ...]:
    """Return what else was seen that only looks like a cause, each signature once a rank."""
    seen: set[tuple[str, int | None]] = set()
    found: list[Hit] = []
    for hit in evidence.hits:
        key = (hit.signature, hit.rank)
        same = finding.hit is not None and hit.signature == finding.hit.signature
        if hit.role is not Role.CONTEXT and not same and key not in seen:
            seen.add(key)
            found.append(hit)
    return tuple(found[:_SYMPTOMS_MAX])


def _where(rank: int | None, hit: Hit | None) -> str:
    parts = [f"rank {rank}"] if rank is not None and hit is not None else []
    if hit is not None and hit.frame:
        parts.append(hit.frame)
    return f" ({', '.join(parts)})" if parts else ""


def _fingerprint(finding: _Finding) -> str:
    """Return a text that is equal for equal failures: numbers, addresses and paths are folded."""
    signature = finding.hit.signature if finding.hit else finding.signature or "-"
    detail = finding.hit.frame if finding.hit else ""
    if finding.hit and not detail and finding.hit.signature == _GENERIC:
        detail = finding.hit.text[:120]
    detail = re.sub(r"0x[0-9a-fA-F]+|\d+", "0", re.sub(r"(?:/[\w.@+-]+)+/", "", detail))
    return f"{finding.kind}|{signature}|{detail}"
