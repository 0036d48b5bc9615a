"""Proves that a run's history covers every sample exactly once, whatever happened on the way.

Steps are kept as spans (consecutive steps of one size whose samples join), so a run of a million
steps is a handful of values. The way is: lines -> spans of one rank -> spans of one execution
(all ranks) -> history (each step's last execution) -> ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from humigence_supervise.domain import Progress, Section
from humigence_supervise.spans import Span, Track, append, cut, merge

DESCRIBED_DEFECTS: Final = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """What lies between two completed steps that follow each other, and should not.

    Samples are half-open and may be empty: then only step numbers are missing.
    """

    after_step: int
    before_step: int
    first_sample: int
    last_sample: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Samples (half-open) trained on a second time, in these steps (both included)."""

    first_step: int
    last_step: int
    first_sample: int
    last_sample: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The account of a run up to its last completed step.

    `lost` and `repeated` are defects, and so are `disputed` steps: two ranks told different
    sample ranges for one step. `redone_ranges` are (first, last) steps, both included, whose
    work a resume threw away because its checkpoint was older; a step thrown away twice stands
    there twice. That is the price of a failure and no defect.
    """

    steps_done: int = 0
    samples_done: int = 0
    lost: tuple[Gap, ...] = ()
    repeated: tuple[Repeat, ...] = ()
    disputed: tuple[tuple[int, int], ...] = ()
    redone_ranges: tuple[tuple[int, int], ...] = ()

    @property
    def lost_samples(self) -> int:
        """Samples no step of the final history trained on."""
        return sum(gap.last_sample - gap.first_sample for gap in self.lost)

    @property
    def lost_steps(self) -> int:
        """Step numbers that are missing in the final history."""
        return sum(gap.before_step - gap.after_step - 1 for gap in self.lost)

    @property
    def repeated_samples(self) -> int:
        """Samples the final history trained on more than once."""
        return sum(one.last_sample - one.first_sample for one in self.repeated)

    @property
    def redone_steps(self) -> int:
        """Executions of steps that a resume threw away."""
        return sum(last - first + 1 for first, last in self.redone_ranges)

    @property
    def clean(self) -> bool:
        """True when [0, samples_done) is covered exactly once."""
        return not (self.lost or self.repeated or self.disputed)


def account(attempts: Iterable[Iterable[Progress]]) -> Ledger:
    """Return the ledger of a run from the progress lines of its attempts, in their order.

    Within an attempt the lines of one rank stand in the order they were written; ranks may be
    mixed in any way. A step is completed when any rank has its line. Everything is consumed
    once, in linear time.
    """
    history: list[Span] = []
    redone: list[tuple[int, int]] = []
    repeated: list[Repeat] = []
    disputed: list[tuple[int, int]] = []
    for attempt in attempts:
        for execution in _executions(attempt):
            spans, differing = _joined(execution)
            if not spans:
                continue
            begin = _begin(execution, spans)
            redone.extend(_thrown_away(cut(history, begin)))
            repeated = [one for one in repeated if one.first_step < begin]
            repeated.extend(_most_repeats(execution))
            disputed = [steps for steps in disputed if steps[0] < begin]
            disputed.extend(differing)
            for span in spans:
                append(history, span)
    lost, overlapping = _walk(history)
    return Ledger(
        steps_done=history[-1].last_step if history else 0,
        samples_done=max((span.end_sample for span in history), default=0),
        lost=tuple(lost),
        repeated=tuple(repeated + overlapping),
        disputed=tuple(disputed),
        redone_ranges=tuple(redone),
    )


def describe(ledger: Ledger) -> str:
    """Return ``0 lost, 0 repeated, 5 redone``, followed by the first defects if there are any.

    Lost and repeated are samples (steps, where step numbers alone are missing); redone are steps.
    """
    lost = ledger.lost_samples or ledger.lost_steps
    counts = f"{lost} lost, {ledger.repeated_samples} repeated, {ledger.redone_steps} redone"
    defects = [
        *(_say_gap(gap) for gap in ledger.lost),
        *(
            f"steps {one.first_step}-{one.last_step} trained again on samples "
            f"{one.first_sample}-{one.last_sample - 1}"
            for one in ledger.repeated
        ),
        *(f"ranks disagree about steps {first}-{last}" for first, last in ledger.disputed),
    ]
    more = len(defects) - DESCRIBED_DEFECTS
    tail = [f"and {more} more"] if more > 0 else []
    return "; ".join([counts, *defects[:DESCRIBED_DEFECTS], *tail])


@dataclass(slots=True)
class _Execution:
    """What all ranks did from one start of theirs on; `resumed_at` is the step they began at."""

    resumed_at: int | None = None
    tracks: dict[int, Track] = field(default_factory=dict)


def _executions(lines: Iterable[Progress]) -> list[_Execution]:
    """Sort an attempt's lines by execution: each `init` line after others begins a new one."""
    found: list[_Execution] = []
    current: dict[int, int] = {}
    for line in lines:
        if line.section is Section.TRAIN:
            execution = _at(found, current.setdefault(line.rank, 0))
            track = execution.tracks.get(line.rank)
            if track is None:
                track = execution.tracks[line.rank] = Track()
            track.add(line.step, line.first_sample, line.last_sample)
        elif line.section is Section.INIT:
            current[line.rank] = current.get(line.rank, -1) + 1
            execution = _at(found, current[line.rank])
            known = execution.resumed_at
            execution.resumed_at = line.step if known is None else min(known, line.step)
    return found


def _at(executions: list[_Execution], index: int) -> _Execution:
    while len(executions) <= index:
        executions.append(_Execution())
    return executions[index]


def _joined(execution: _Execution) -> tuple[list[Span], list[tuple[int, int]]]:
    """Return the steps of all ranks together, and the step ranges about which they differ."""
    spans: list[Span] = []
    disputed: list[tuple[int, int]] = []
    for rank in sorted(execution.tracks):
        spans, differing = merge(spans, execution.tracks[rank].spans())
        disputed.extend(differing)
    return spans, disputed


def _begin(execution: _Execution, spans: list[Span]) -> int:
    """Return the first step whose earlier execution no longer counts."""
    first = spans[0].first_step
    return first if execution.resumed_at is None else min(execution.resumed_at + 1, first)


def _thrown_away(spans: list[Span]) -> list[tuple[int, int]]:
    """Return the step ranges of these ascending spans, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for span in spans:
        if ranges and ranges[-1][1] + 1 == span.first_step:
            ranges[-1] = (ranges[-1][0], span.last_step)
        else:
            ranges.append((span.first_step, span.last_step))
    return ranges


def _most_repeats(execution: _Execution) -> list[Repeat]:
    """Ranks repeat the same global range, so one rank's repeats stand for all."""
    tracks = execution.tracks.values()
    most = max((track.repeats for track in tracks), key=_samples, default=[])
    return [
        Repeat(span.first_step, span.last_step, span.first_sample, span.end_sample) for span in most
    ]


def _samples(spans: list[Span]) -> int:
    return sum(span.end_sample - span.first_sample for span in spans)


def _walk(history: list[Span]) -> tuple[list[Gap], list[Repeat]]:
    """Compare every span with where the steps and samples before it ended."""
    lost: list[Gap] = []
    repeated: list[Repeat] = []
    last_step, end_sample = 0, 0
    for span in history:
        missing = max(span.first_sample, end_sample)
        if span.first_step > last_step + 1 or missing > end_sample:
            lost.append(Gap(last_step, span.first_step, end_sample, missing))
        overlap = min(end_sample, span.end_sample) - span.first_sample
        if overlap > 0:
            last = span.first_step + (overlap - 1) // span.size
            repeated.append(
                Repeat(span.first_step, last, span.first_sample, span.first_sample + overlap)
            )
        last_step, end_sample = span.last_step, max(end_sample, span.end_sample)
    return lost, repeated


def _say_gap(gap: Gap) -> str:
    where = f"between step {gap.after_step} and step {gap.before_step}"
    if gap.first_sample == gap.last_sample:
        return f"step numbers missing {where}"
    return f"samples {gap.first_sample}-{gap.last_sample - 1} lost {where}"
