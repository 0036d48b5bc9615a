import time
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from humigence_supervise.domain import Progress, Section
from humigence_supervise.ledger import Gap, Ledger, Repeat, account, describe
from humigence_supervise.spans import Span, append, cut, merge

BATCH = 8


def progress(step: int, first: int, last: int, rank: int = 0, section=Section.TRAIN) -> Progress:
    """Return one line of one rank."""
    return Progress(rank, 0.0, step, 0, first, last, None, section)


def did(*steps: int, rank: int = 0, batch: int = BATCH) -> list[Progress]:
    """Return the lines of a rank that completed these steps of equal batches."""
    return [progress(step, (step - 1) * batch, step * batch, rank) for step in steps]


def resumed(at: int, rank: int = 0) -> list[Progress]:
    """Return the line a rank writes when it begins after step `at`."""
    return [progress(at, at * BATCH, at * BATCH, rank, Section.INIT)]


def test_an_undisturbed_run_is_clean():
    """Steps 1 to 20 in one attempt: nothing lost, repeated or redone."""
    ledger = account([resumed(0) + did(*range(1, 21))])
    assert ledger == Ledger(steps_done=20, samples_done=160)
    assert ledger.clean
    assert describe(ledger) == "0 lost, 0 repeated, 0 redone"


def test_no_progress_at_all_is_an_empty_ledger():
    """Attempts that never completed a step, or none at all, are no defect."""
    for attempts in ([], [[]], [[], resumed(0), []]):
        assert account(attempts) == Ledger()


def test_steps_after_the_resumed_checkpoint_are_redone_and_no_repeat():
    """Died at 25, resumed at 20: steps 21 to 25 were done again, listed apart."""
    ledger = account([resumed(0) + did(*range(1, 26)), resumed(20) + did(*range(21, 41))])
    assert ledger.clean
    assert (ledger.steps_done, ledger.samples_done) == (40, 320)
    assert ledger.redone_ranges == ((21, 25),)
    assert describe(ledger) == "0 lost, 0 repeated, 5 redone"


def test_an_attempt_without_a_step_redoes_nothing():
    """An attempt that died before its first step neither redoes nor loses anything."""
    attempts = [did(*range(1, 26)), resumed(20), [], resumed(20) + did(*range(21, 31))]
    assert account(attempts).redone_ranges == ((21, 25),)


def test_a_step_thrown_away_twice_counts_twice():
    """25, back to 20, 22, back to 20: five and then two executions were thrown away."""
    attempts = [did(*range(1, 26)), did(21, 22), did(*range(21, 31))]
    ledger = account(attempts)
    assert ledger.clean
    assert ledger.redone_ranges == ((21, 25), (21, 22))
    assert ledger.redone_steps == 7


def test_a_run_that_stands_lower_than_it_once_stood_says_so():
    """The ledger is that of the steps whose result the last attempt has."""
    ledger = account([did(*range(1, 26)), did(21, 22)])
    assert (ledger.steps_done, ledger.samples_done) == (22, 176)
    assert ledger.clean


def test_a_resume_above_the_last_step_loses_what_lies_between():
    """Died at 20, went on with 24: steps 21 to 23 and their samples are lost."""
    ledger = account([did(*range(1, 21)), did(24, 25)])
    assert ledger.lost == (Gap(20, 24, 160, 184),)
    assert (ledger.lost_steps, ledger.lost_samples) == (3, 24)
    assert not ledger.clean
    expected = "24 lost, 0 repeated, 0 redone; samples 160-183 lost between step 20 and step 24"
    assert describe(ledger) == expected


def test_a_step_of_an_older_attempt_does_not_fill_the_gap_of_a_newer_one():
    """Resumed at 20 and went on with 22: step 21 is lost although an older attempt did it."""
    ledger = account([did(*range(1, 26)), resumed(20) + did(22, 23)])
    assert ledger.lost == (Gap(20, 22, 160, 168),)
    assert ledger.redone_ranges == ((21, 25),)


def test_the_lowest_step_any_rank_resumed_at_counts():
    """Ranks that began at different steps never had the steps between in common."""
    second = resumed(20) + resumed(24, rank=1) + did(25, 26)
    assert account([did(*range(1, 26)), second]).lost == (Gap(20, 25, 160, 192),)


def test_a_run_that_does_not_begin_with_its_first_sample_lost_it():
    """The first step of the history is step 1 with sample 0."""
    assert account([did(3, 4)]).lost == (Gap(0, 3, 0, 16),)
    late = [progress(1, 4, 8)]
    assert account([late]).lost == (Gap(0, 1, 0, 4),)


def test_samples_that_overlap_between_steps_are_repeated():
    """A resume that read the data from the wrong place is found although the steps join."""
    ledger = account([did(1, 2, 3), [progress(4, 16, 24), progress(5, 24, 32)]])
    assert ledger.repeated == (Repeat(4, 4, 16, 24),)
    assert ledger.repeated_samples == 8
    assert "steps 4-4 trained again on samples 16-23" in describe(ledger)


def test_an_overlap_of_many_steps_is_named_with_the_last_of_them():
    """Steps 4 to 6 go through samples 0 to 20 again; the part of step 6 that is new is not."""
    again = [progress(step, (step - 4) * BATCH, (step - 3) * BATCH) for step in range(4, 9)]
    ledger = account([[progress(1, 0, 7), progress(2, 7, 14), progress(3, 14, 20), *again]])
    assert ledger.repeated == (Repeat(4, 6, 0, 20),)
    assert ledger.samples_done == 40


def test_samples_gone_through_again_stay_repeats_however_the_batch_changes():
    """After falling back to sample 0 everything below the highest sample is a repeat."""
    ledger = account([[*did(1, 2), progress(3, 0, 4), progress(4, 4, 12), progress(5, 12, 20)]])
    assert ledger.repeated_samples == 16
    assert ledger.samples_done == 20


def test_a_step_twice_without_a_resume_is_a_repeat():
    """Within one execution a step is done once; with a new `init` line it is a resume."""
    assert account([did(1, 2, 3, 2, 3, 4)]).repeated == (Repeat(2, 3, 8, 24),)
    ledger = account([resumed(0) + did(1, 2, 3) + resumed(1) + did(2, 3, 4)])
    assert ledger.clean
    assert ledger.redone_ranges == ((2, 3),)


def test_a_repeat_whose_steps_were_thrown_away_is_no_defect_of_the_final_history():
    """What a later resume undid does not count any more."""
    ledger = account([did(1, 2, 3, 3), did(3, 4)])
    assert ledger.clean
    assert ledger.redone_ranges == ((3, 3),)


def test_missing_numbers_without_missing_samples_are_a_gap_in_steps():
    """Step 2 follows as step 3: no sample is lost, the numbering is wrong."""
    ledger = account([[progress(1, 0, 8), progress(3, 8, 16)]])
    assert (ledger.lost_steps, ledger.lost_samples) == (1, 0)
    assert describe(ledger).startswith("1 lost, 0 repeated")


def test_ranks_tell_the_same_steps_and_any_one_completes_a_step():
    """Ranks one step apart make one history, however their lines are mixed."""
    zero, one = did(1, 2, 3, 4), did(1, 2, 3, rank=1)
    mixed = [line for pair in zip(zero, one, strict=False) for line in pair] + zero[3:]
    for lines in (zero + one, one + zero, mixed):
        assert account([lines]) == Ledger(steps_done=4, samples_done=32)


def test_a_line_one_rank_lost_is_known_from_another():
    """A hole in rank 0's file is no hole in the history."""
    assert account([did(1, 2, 5, 6) + did(1, 2, 3, 4, 5, rank=1)]).clean
    assert not account([did(1, 2, 5, 6) + did(1, 2, 3, 5, rank=1)]).clean


def test_ranks_that_disagree_about_a_step_are_a_defect():
    """The range is that of the global batch, the same on every rank."""
    ledger = account([did(1, 2, 3) + did(1, rank=1) + [progress(2, 8, 15, 1)]])
    assert ledger.disputed == ((2, 2),)
    assert not ledger.clean
    assert "ranks disagree about steps 2-2" in describe(ledger)
    thrown_away = [*did(1, 2, 3), progress(2, 8, 15, 1)]
    assert account([thrown_away, did(2, 3, 4)]).clean


def test_evaluation_and_checkpoint_lines_are_no_steps():
    """Only train lines complete a step."""
    saving, evaluating = (progress(9, 16, 16, 0, one) for one in (Section.CHECKPOINT, Section.EVAL))
    lines = [*did(1, 2), saving, evaluating, *did(3)]
    assert account([lines]) == Ledger(steps_done=3, samples_done=24)


def test_a_description_is_short_whatever_is_wrong():
    """Three defects are named, the others counted."""
    text = describe(account([did(*range(1, 100, 2))]))
    assert text.count(";") == 4
    assert text.endswith("and 46 more")


def test_a_million_steps_take_seconds():
    """The account is linear in the steps."""
    count = 1_000_000
    begin = time.process_time()
    ledger = account(
        [(progress(step, (step - 1) * BATCH, step * BATCH) for step in range(1, count + 1))]
    )
    assert ledger == Ledger(steps_done=count, samples_done=count * BATCH)
    assert time.process_time() - begin < 20


# --- random histories, against an account kept the plain way ------------------------------------


@dataclass(frozen=True)
class History:
    """Attempts as (resumed at, last step), and the samples of each step."""

    attempts: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


@st.composite
def histories(draw) -> History:
    """Draw a run of correct resumes: each begins at or below where the one before ended."""
    attempts = []
    done = 0
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, done))
        last = begin + draw(st.integers(0, 12))
        attempts.append((begin, last))
        done = last if last > begin else done
    sizes = draw(st.lists(st.integers(1, 3), min_size=100, max_size=100))
    return History(tuple(attempts), tuple(sizes))


def lines_of(history: History, ranks: int, *, with_init: bool) -> list[list[Progress]]:
    """Return the lines the ranks of each attempt wrote; the last rank is one step behind."""
    starts = [0]
    for size in history.sizes:
        starts.append(starts[-1] + size)
    found = []
    for begin, last in history.attempts:
        lines = []
        for rank in range(ranks):
            if with_init:
                lines.append(progress(begin, starts[begin], starts[begin], rank, Section.INIT))
            behind = 1 if rank and rank == ranks - 1 else 0
            lines += [
                progress(step, starts[step - 1], starts[step], rank)
                for step in range(begin + 1, last + 1 - behind)
            ]
        found.append(lines)
    return found


@given(histories(), st.integers(1, 3), st.booleans())
def test_correct_resumes_are_always_clean(history, ranks, with_init):
    """Whatever the resumes: nothing lost or repeated; redone is executions less steps."""
    ledger = account(lines_of(history, ranks, with_init=with_init))
    done = next((last for begin, last in history.attempts[::-1] if last > begin), 0)
    executions = sum(last - begin for begin, last in history.attempts)
    assert ledger.clean
    assert ledger.steps_done == done
    assert ledger.samples_done == sum(history.sizes[:done])
    assert ledger.redone_steps == executions - done
    assert describe(ledger) == f"0 lost, 0 repeated, {executions - done} redone"


@given(st.integers(2, 30), st.integers(1, 29), st.integers(-20, 20), st.integers(1, 3))
def test_a_planted_fault_is_always_found(last, at, shift, batch):
    """Samples shifted from any step on are lost or repeated, in exactly that number."""
    at = min(at, last - 1)
    shift = max(shift, -at * batch)
    lines = did(*range(1, at + 1), batch=batch)
    lines += [
        progress(step, (step - 1) * batch + shift, step * batch + shift)
        for step in range(at + 1, last + 1)
    ]
    ledger = account([lines])
    assert ledger.clean == (shift == 0)
    assert ledger.lost_samples == max(shift, 0)
    assert ledger.repeated_samples == min(max(-shift, 0), (last - at) * batch)


@given(st.integers(3, 40), st.data())
def test_a_removed_step_is_always_found(last, data):
    """Any step left out, but the last one, is lost with its samples."""
    gone = data.draw(st.integers(1, last - 1))
    ledger = account([did(*(step for step in range(1, last + 1) if step != gone))])
    assert ledger.lost == (Gap(gone - 1, gone + 1, (gone - 1) * BATCH, gone * BATCH),)


@st.composite
def step_samples(draw) -> dict[int, tuple[int, int]]:
    """Draw steps with their samples, mostly of equal size."""
    steps = draw(st.sets(st.integers(1, 25), max_size=20))
    odd = draw(st.sets(st.integers(1, 25), max_size=3))
    return {step: (step * 10, 5 if step in odd else 10) for step in steps}


def spans_of(steps: dict[int, tuple[int, int]]) -> list[Span]:
    """Return the same as spans."""
    spans: list[Span] = []
    for step, (first, size) in sorted(steps.items()):
        append(spans, Span(step, step, first, size))
    return spans


def steps_of(spans: list[Span]) -> dict[int, tuple[int, int]]:
    """Return the same as single steps."""
    return {
        step: (span.sample_before(step), span.size)
        for span in spans
        for step in range(span.first_step, span.last_step + 1)
    }


@given(step_samples(), step_samples(), st.integers(0, 26))
def test_spans_do_what_single_steps_do(one, other, at):
    """Joining, cutting and merging spans is the same as doing it step by step."""
    assert steps_of(spans_of(one)) == one
    merged, differing = merge(spans_of(one), spans_of(other))
    assert steps_of(merged) == other | one
    named = {step for first, last in differing for step in range(first, last + 1)}
    assert named == {step for step in one.keys() & other.keys() if one[step] != other[step]}
    kept = spans_of(one)
    removed = cut(kept, at)
    assert steps_of(kept) == {step: value for step, value in one.items() if step < at}
    assert steps_of(removed) == {step: value for step, value in one.items() if step >= at}
