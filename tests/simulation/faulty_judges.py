"""Supervisors whose tables, budgets, sums or memory have a fault."""

from __future__ import annotations

from dataclasses import replace

from simulation import journal, trainer
from simulation.planting import Patch, caught_by

from humigence_supervise import aftermath, ladder, moves, policy, situation, state
from humigence_supervise.domain import Batch, Kind
from humigence_supervise.moves import Move
from humigence_supervise.records import Event, Record
from humigence_supervise.state import State


@caught_by("nothing_starts_after_a_stop")
def forgets_the_stop_when_it_dies(patch: Patch) -> None:
    """The next supervisor does not know what the one before was asked."""
    apply = state._apply  # noqa: SLF001 - a fault is planted where no door is

    def forgetful(before: State, record: Record, facts: object) -> State:
        after = apply(before, record, facts)
        return replace(after, stop=None) if record.event is Event.RUN_ADOPTED else after

    patch.setattr(state, "_apply", forgetful)


@caught_by("nothing_deterministic_is_retried")
def never_learns(patch: Patch) -> None:
    """The same failure at the same step is tried for ever."""
    patch.setattr(situation, "is_deterministic", lambda _incidents: False)


@caught_by("the_state_is_the_fold")
def loses_a_record(patch: Patch) -> None:
    """The journal swallows what a diagnosis led to."""
    append = journal.SimJournal.append

    def lossy(self, records, *, decisive=True):
        kept = [one for one in records if one.event is not Event.DECISION_MADE]
        return append(self, kept, decisive=decisive)

    patch.setattr(journal.SimJournal, "append", lossy)


@caught_by("the_global_batch_stays")
def shrinks_without_accumulating(patch: Patch) -> None:
    """Smaller micro-batches make smaller steps."""
    split = ladder.batch_of_rung

    def careless(settings, rung, ranks, virtual, micro):
        batch = split(settings, rung, ranks, virtual, micro)
        whole = split(settings, rung, ranks, virtual, None)
        if batch is None or whole is None:
            return batch
        return Batch(batch.global_samples, batch.micro_samples, whole.grad_accum, ranks)

    patch.setattr(ladder, "batch_of_rung", careless)


@caught_by("what_cannot_be_helped_ends")
def tries_a_wrong_configuration_again(patch: Patch) -> None:
    """A configuration error is retried."""
    patch.setitem(moves.MOVES, Kind.CONFIG_ERROR, (Move.RETRY, Move.STOP))


@caught_by("lower_rungs_come_before_the_end")
def gives_up_too_soon(patch: Patch) -> None:
    """NCCL fails on two GPUs, and one is not tried."""
    for kind in (Kind.NCCL_INIT, Kind.NCCL_REMOTE, Kind.NCCL_TIMEOUT):
        patch.setitem(moves.MOVES, kind, (Move.STOP,))


@caught_by("a_retry_has_budget")
def does_not_count(patch: Patch) -> None:
    """Attempts without progress cost nothing, and the table is as patient as can be."""
    patch.setattr(policy, "spent", lambda *_: "")
    patch.setattr(situation, "is_deterministic", lambda _incidents: False)
    patch.setitem(moves.MOVES, Kind.UNKNOWN, (*(Move.RETRY,) * 16, Move.STOP))


@caught_by("a_period_has_its_budget")
def forgets_the_period(patch: Patch) -> None:
    """Any number of failures may come in a day."""
    patch.setattr(policy, "period_spent", lambda *_: "")


@caught_by("unprepared_attempts_are_few")
def looks_for_ever(patch: Patch) -> None:
    """It is always looked once more whether an attempt can be made."""
    patch.setattr(aftermath, "UNPREPARED_MOST", 99)


@caught_by("the_ledger_is_exact")
def a_worker_skips_samples(patch: Patch) -> None:
    """A worker that resumes goes on with the samples behind those that are due."""
    line = trainer.Trainer._line  # noqa: SLF001 - as above

    def skipping(self, section):
        line(self, section)
        if self.began and self.lines[-1].last_sample:
            last = self.lines[-1]
            by = self.world.global_batch
            self.lines[-1] = replace(
                last, first_sample=last.first_sample + by, last_sample=last.last_sample + by
            )

    patch.setattr(trainer.Trainer, "_line", skipping)


@caught_by("micro_batches_shrink_for_memory_only")
def shrinks_for_any_reason(patch: Patch) -> None:
    """A crash is answered with smaller micro-batches."""
    patch.setitem(moves.MOVES, Kind.SEGFAULT, (Move.SHRINK, Move.STOP))


@caught_by("nothing_is_tried_for_ever")
def has_no_end(patch: Patch) -> None:
    """What is outside of this machine's power is waited for without end."""
    patch.setitem(moves.MOVES, Kind.NETWORK_HUB, (Move.WAIT,) * 999)
    patch.setattr(policy, "is_patient", lambda *_: True)


@caught_by("the_journal_reads_back")
def writes_another_step(patch: Patch) -> None:
    """The persisted form of a decision differs from what was decided."""

    def wrong(entry):
        facts = dict(entry.record.facts)
        if "last_step" in facts:
            facts["last_step"] += 1
        return encode(replace(entry, record=replace(entry.record, facts=facts)))

    encode = journal.encode
    patch.setattr(journal, "encode", wrong)
