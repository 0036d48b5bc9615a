"""All that is known of an attempt that has ended, as evidence for the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from humigence_supervise import launch
from humigence_supervise.domain import Evidence
from humigence_supervise.observe import success
from humigence_supervise.observe.attempt import AttemptWatch
from humigence_supervise.observe.evidence import gather
from humigence_supervise.observe.host_evidence import planned_gpus
from humigence_supervise.observe.host_facts import capture
from humigence_supervise.observe.log_steps import read_log_steps
from humigence_supervise.printable import for_people
from humigence_supervise.resume_echo import resumed_wrongly
from humigence_supervise.run import Run, counts_from_scratch
from humigence_supervise.state import State


def examine(
    run: Run, state: State, watch: AttemptWatch, *, free_mib: int | None, not_started: str
) -> tuple[Evidence, int]:
    """Return the evidence of the ended attempt and its last completed step.

    `free_mib` is the room where checkpoints go, `not_started` why there was no process at all. A
    reader that trips leaves evidence that says so.
    """
    folder = run.attempt_dir(state.attempt)
    world_size = launch.planned_world_size(folder)
    last_step, target_step, unproven = _how_far(run, state, watch, folder)
    not_kept: tuple[str, ...] = ()
    try:
        failed = not state.asked_to_end and not _exited_well(folder)
        not_kept = capture(folder, planned_gpus(folder), run.paths.checkpoint_dir, failed=failed)
        evidence = gather(
            folder,
            world_size=world_size,
            accelerator=run.accelerator,
            first_dead=watch.first_dead,
            first_step=state.first_step,
            last_step=last_step,
            target_step=target_step,
            rank_exits=watch.exits,
            disk_free_mib=free_mib,
            stop_requested=state.asked_to_end,
            hang_suspected=False,
        )
    except Exception as error:  # noqa: BLE001 - a reader that trips must not end the run
        evidence = Evidence(
            ranks=tuple(watch.exits.values()),
            world_size=world_size,
            first_dead=watch.first_dead,
            stop_requested=state.asked_to_end,
            unread=(f"the evidence could not be read: {for_people(repr(error))}",),
        )
    strict = state.resumed or counts_from_scratch(run.settings)
    wrongly = resumed_wrongly(state.first_step, watch.began) if strict else ""
    if wrongly:
        last_step = state.first_step  # steps from elsewhere are no progress of this run
    return (
        replace(
            evidence,
            success_unproven=unproven,
            resumed_wrongly=wrongly,
            left=state.stop is None and state.leaving is not None,
            not_started=not_started,
            unread=(*evidence.unread, *not_kept),
        ),
        last_step,
    )


def _how_far(
    run: Run, state: State, watch: AttemptWatch, folder: Path
) -> tuple[int, int | None, str]:
    """Return the last completed step, the one that had to be reached, and why 0 proves nothing.

    Progress files say the steps; without them the output does, as far as it is clear: then it is
    for `success.unproven` alone to compare them with the target.
    """
    rule = run.settings.success
    progress = watch.last_progress
    unproven = ""
    if _exited_well(folder):
        unproven = success.unproven(run.settings, folder, progress_seen=progress is not None)
    if progress is not None:
        target_step = None if rule.exit_code_only else rule.target_step or watch.target_step
        return progress.step, target_step, unproven
    shown = read_log_steps(folder, run.settings).last
    short = rule.target_step is not None and state.first_step < rule.target_step
    if short and shown is None and not unproven:
        unproven = (
            f"success.target_step is {rule.target_step}, and neither progress files nor the output"
            " show a step (worker.progress.pattern)"
        )
    return max(state.first_step, shown or 0), None, unproven


def _exited_well(folder: Path) -> bool:
    """Return whether the launcher ended with exit code 0."""
    record = launch.read_exit(folder)
    return record is not None and record["launcher"] is not None and record["launcher"]["code"] == 0
