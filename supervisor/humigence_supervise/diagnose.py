"""Evidence -> Diagnosis: the root before its symptoms, a record before a guess (pure).

Order of belief: the kernel's record; a run that ended well; the strongest text (a specific
cause, then an exception of the program); a watched hang; how the first dead rank ended; texts
that are usually consequences; and, when nothing is left, `unknown`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from humigence_supervise.catalogue import HINT
from humigence_supervise.causes import GENERIC, STRONG, ranked, row_of
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
from humigence_supervise.endings import Ending, ending_of, known_ends
from humigence_supervise.exit_zero import ended_well, from_success, left_early
from humigence_supervise.findings import Finding, from_text, quoted
from humigence_supervise.host_record import from_record
from humigence_supervise.remedies import USUAL
from humigence_supervise.which_gpu import which_gpu

_SYMPTOMS_MAX: Final = 20
_SHELL_CODES: Final = {
    126: "The shell may not execute the program (exit code 126)",
    127: "The shell did not find the program (exit code 127)",
}
_ABORTING: Final = ("terminate called", "what():")


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the root cause of an attempt's end, as far as the evidence shows it."""
    roots = ranked(evidence)
    finding = _find(evidence, roots)
    usual = USUAL[finding.kind]
    means = finding.means or usual.means
    root = finding.hit
    if root is not None and root.rank is None and root.text.lstrip().startswith(_ABORTING):
        # What the C++ runtime prints before an abort has no rank: it is of the one that died.
        root = replace(root, rank=evidence.first_dead)
    rank = finding.rank if root is None else root.rank
    where = _where(rank, root)
    return Diagnosis(
        kind=finding.kind,
        root=root,
        symptoms=_symptoms(evidence, finding),
        remedy=finding.remedy or usual.remedy,
        reason=f"{means.rstrip('.')}{where}.",
        advice=finding.advice or usual.advice,
        confidence=finding.confidence,
        fingerprint=_fingerprint(finding),
        rank=rank,
        gpu=which_gpu(evidence, root, rank),
        memory=finding.memory,
        context=evidence.context,
        unread=evidence.unread,
    )


def _find(evidence: Evidence, roots: list[Hit]) -> Finding:
    if evidence.resumed_wrongly and not evidence.stop_requested:
        return _resumed_wrongly(evidence)
    well = from_success(evidence, roots) if ended_well(evidence) else None
    if well and well.kind is Kind.HEALTHY and not evidence.stop_requested:
        return well  # whatever was killed or lost meanwhile, the job survived it
    if finding := from_record(evidence):
        return finding
    if evidence.not_started:
        means = f"The attempt could not be started: {evidence.not_started}"
        return Finding(Kind.UNKNOWN, Confidence.CERTAIN, means=means)
    if evidence.stop_requested:
        return Finding(
            Kind.PREEMPTED,
            Confidence.CERTAIN,
            means="The attempt was ended on purpose, to go on in a better way"
            if evidence.left
            else "The run was stopped on request",
            advice="Nothing to do." if evidence.left else "Start it again when you want to go on.",
            remedy=Remedy.NONE,
            hit=next((hit for hit in evidence.hits if hit.kind is Kind.PREEMPTED), None),
        )
    if well:
        return well
    strong = [hit for hit in roots if row_of(hit).strength >= STRONG]
    if not strong and (left := left_early(evidence)):
        return left
    dead = _first_dead(evidence)
    if _refused_config(evidence):
        hit = next((hit for hit in strong if hit.kind is Kind.CONFIG_ERROR), None)
        return Finding(Kind.CONFIG_ERROR, Confidence.CERTAIN, hit, means=quoted(hit))
    ending = ending_of(dead.status, evidence.hits) if dead else None
    if strong and not _signal_outweighs(strong[0], dead, ending):
        return from_text(evidence, strong[0])
    if evidence.hang_suspected:
        return Finding(Kind.HANG, Confidence.LIKELY, next(iter(roots), None))
    if dead and ending and not _explained(evidence, dead, roots):
        return _from_ending(_rank_of(evidence, dead), ending, roots)
    if roots:
        return from_text(evidence, roots[0])
    return _from_nothing(evidence, dead)


def _resumed_wrongly(evidence: Evidence) -> Finding:
    return Finding(
        Kind.USER_CODE,
        Confidence.CERTAIN,
        means=evidence.resumed_wrongly,
        advice="Look at how the program resumes: worker.resume_args must make it load"
        " {checkpoint}, and it must go on counting there.",
        signature="resume.mismatch",
    )


# --- what needs no text ------------------------------------------------------------------------


def _refused_config(evidence: Evidence) -> bool:
    return any(end.code == EXIT_CONFIG for end in known_ends(evidence))


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


_ABORTS: Final = (Kind.NCCL_TIMEOUT, Kind.HANG)
"""After these the watchdogs of all ranks abort; a crash before would have ended the others long
before their time was over.
"""

_CLEARING_SIGNALS: Final = (9, 15)
"""With these a launcher clears away the ranks that did nothing wrong."""


def _signal_outweighs(hit: Hit, dead: RankExit | None, ending: Ending | None) -> bool:
    """Return whether the first dead rank's signal says more than another rank's exception.

    A rank that sees its peer vanish raises some exception of its own; a signal with no text is
    then the cause. A specific text (a full disk, an OOM) is believed on any rank.
    """
    if dead is None or ending is None or hit.signature != GENERIC:
        return False
    return hit.rank is not None and hit.rank != dead.rank


def _explained(evidence: Evidence, dead: RankExit, roots: list[Hit]) -> bool:
    """Return whether a text says why the first dead rank was ended by a signal.

    An abort follows the text of the same rank (the NCCL watchdog ends a process so). A launcher
    kills ranks that did nothing wrong, so when nobody saw which rank died first, a kill proves
    nothing against a text of any rank.
    """
    telling = [hit for hit in roots if hit.kind is not Kind.UNKNOWN]
    match dead.status.signal:
        case 6:
            return any(hit.rank in (None, dead.rank) or hit.kind in _ABORTS for hit in telling)
        case 9 | 15 if dead.rank != evidence.first_dead:
            return bool(telling)
        case 9 | 15:
            return any(hit.rank == dead.rank for hit in telling)
        case _:
            return False


def _rank_of(evidence: Evidence, dead: RankExit | None) -> int | None:
    """Return whose end it was; the launcher's, of several ranks, is that of none in particular."""
    known = evidence.ranks or evidence.world_size == 1
    return dead.rank if dead and known else None


def _from_ending(rank: int | None, ending: Ending, roots: list[Hit]) -> Finding:
    told = (hit for hit in roots if hit.kind is ending.kind and hit.kind is not Kind.UNKNOWN)
    hit = ending.hit or next(told, None)
    row = row_of(hit) if hit else None
    return Finding(
        ending.kind,
        ending.confidence,
        hit,
        rank=rank,
        means=ending.means if hit or rank is None else f"{ending.means} (rank {rank})",
        advice=ending.advice or (row.advice if row else ""),
        remedy=ending.remedy,
        signature=ending.signature,
    )


def _from_nothing(evidence: Evidence, dead: RankExit | None) -> Finding:
    if dead is None and evidence.launcher is None and not evidence.ranks:
        if evidence.world_size is not None:
            # An attempt that was watched: only its exit status can say that it succeeded.
            return Finding(Kind.UNKNOWN, Confidence.GUESS, means="Nothing tells how the job ended")
        if not evidence.unread:
            return Finding(
                Kind.HEALTHY,
                Confidence.GUESS,
                means="Nothing in the text shows a failure; how the job ended, it does not show",
                advice="Nothing to do; if the job failed, give its exit code (--exit-code).",
            )
        return Finding(
            Kind.UNKNOWN,
            Confidence.GUESS,
            means=f"What was there could not be read: {'; '.join(evidence.unread)}",
        )
    code = dead.status.code if dead else None
    if means := _SHELL_CODES.get(code or 0):
        return Finding(Kind.CONFIG_ERROR, Confidence.LIKELY, means=means)
    told = f"exit code {code}" if code is not None else "no known exit status"
    means = f"The job ended with {told} and no text that shows the cause"
    return Finding(Kind.UNKNOWN, Confidence.GUESS, rank=_rank_of(evidence, dead), means=means)


# --- words -------------------------------------------------------------------------------------


def _symptoms(evidence: Evidence, finding: Finding) -> tuple[Hit, ...]:
    """Return what else was seen that only looks like a cause, each signature once a rank."""
    seen: set[tuple[str, int | None]] = set()
    found: list[Hit] = []
    for hit in evidence.hits:
        key = (hit.signature, hit.rank)
        same = finding.hit is not None and hit.signature == finding.hit.signature
        telling = hit.role is not Role.CONTEXT and row_of(hit).strength > HINT
        if telling and not same and key not in seen:
            seen.add(key)
            found.append(hit)
    return tuple(found[:_SYMPTOMS_MAX])


def _where(rank: int | None, hit: Hit | None) -> str:
    parts = [f"rank {rank}"] if rank is not None and hit is not None else []
    if hit is not None and hit.frame:
        parts.append(hit.frame)
    return f" ({', '.join(parts)})" if parts else ""


def _fingerprint(finding: Finding) -> str:
    """Return a text that is equal for equal failures: numbers, addresses and paths are folded."""
    signature = finding.hit.signature if finding.hit else finding.signature or "-"
    detail = finding.hit.frame if finding.hit else ""
    if finding.hit and not detail and finding.hit.signature == GENERIC:
        detail = finding.hit.text[:120]
    detail = re.sub(r"0x[0-9a-fA-F]+|\d+", "0", re.sub(r"(?:/[\w.@+-]+)+/", "", detail))
    return f"{finding.kind}|{signature}|{detail}"
