"""`status`: where a run stands, from its files alone."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from humigence_supervise import contract, launch
from humigence_supervise.accounting import account_run, ledger_facts
from humigence_supervise.journal import read_journal
from humigence_supervise.phases import Ended, Probing, Waiting, WaitingForRoom
from humigence_supervise.printable import for_people
from humigence_supervise.records import Entry, Event, Json, finite
from humigence_supervise.run_lock import holder
from humigence_supervise.state import State, fold

ENDED = {
    Event.RUN_COMPLETED: "completed",
    Event.RUN_STOPPED: "stopped",
    Event.RUN_GAVE_UP: "gave_up",
    Event.RUN_FAILED: "failed",
}

LIVE_STATES = frozenset(("waiting", "running", "stopping", "unsupervised"))

Document = dict[str, Json]


def status_document(run_dir: Path) -> Document:
    """Return the document of `status --json` (see the contract, section 1).

    Raises:
        JournalError: the journal is damaged.
        OSError: a file of the run cannot be read.
    """
    entries = read_journal(run_dir / contract.JOURNAL_FILE)
    state = fold(entry.record for entry in entries)
    account = account_run(run_dir)
    supervisor = holder(run_dir)
    keeper = launch.adopt(run_dir, state.attempt) if state.attempt else None
    keeper_pid = keeper.process.pid if keeper is not None else None
    if keeper is not None:
        keeper.close()
    ended = isinstance(state.phase, Ended)
    alive = keeper_pid is not None
    if supervisor is None and not alive and state.run_id and not ended:
        alive = bool(launch.members(state.run_id))  # the keeper was killed too
    elapsed_s = _elapsed_s(entries, time.time() if not ended else None)
    step = account.last.step if account.last is not None else 0
    target = account.target_step
    left_s = (
        round((target - step) * account.step_s, 1)
        if target is not None and account.step_s is not None and not ended
        else None
    )
    return {
        "run": entries[0].run if entries else run_dir.name,
        "run_dir": str(run_dir),
        "state": _state_word(state, supervised=supervisor is not None, alive=alive),
        "rung": _newest(entries, "rung"),
        "attempt": state.attempt,
        "step": step,
        "target_step": target,
        "samples_done": account.ledger.samples_done,
        "loss": finite(account.last.loss) if account.last is not None else None,
        "steps_per_s": round(1 / account.step_s, 3) if account.step_s else None,
        "eta_s": left_s,
        "checkpoint": _checkpoint(entries),
        "pid": supervisor.pid if supervisor is not None else None,
        "keeper_pid": keeper_pid,
        "started": entries[0].ts if entries else None,
        "incidents": sum(1 for e in entries if _is_incident(e)),
        "last_incident": _last_incident(entries),
        "waiting_for": _waiting_for(entries, state),
        "excluded_gpus": [*state.excluded_gpus],
        "promotions": len(state.promotions),
        "redone_steps": account.ledger.redone_steps,
        "ledger": ledger_facts(account.ledger),
        "effective_ratio": round(account.productive_s / elapsed_s, 4) if elapsed_s else None,
        "exit_code": state.phase.exit_code if isinstance(state.phase, Ended) else None,
        "journal": str(run_dir / contract.JOURNAL_FILE),
        "report": str(report) if (report := run_dir / contract.REPORT_FILE).exists() else None,
    }


def status_text(document: Document) -> str:
    """Return the document in a few lines for people."""
    rows: list[tuple[str, object]] = [
        ("run", f"{document['run']} ({document['run_dir']})"),
        ("state", _state_line(document)),
        ("step", _step_line(document)),
        ("checkpoint", _checkpoint_line(document)),
        ("samples", document["ledger"] and _fact(document["ledger"], "says")),
        ("last incident", _incident_line(document)),
        ("left out", ", ".join(map(str, _listed(document["excluded_gpus"])))),
        ("journal", document["journal"]),
        ("report", document["report"]),
    ]
    return "\n".join(f"{name:<14}{for_people(str(value))}" for name, value in rows if value)


def checkpoint_dir(run_dir: Path) -> Path:
    """Return where the run's checkpoints are, as its journal says.

    Raises:
        JournalError: the journal is damaged.
        OSError: it cannot be read.
    """
    for entry in read_journal(run_dir / contract.JOURNAL_FILE):
        place = entry.record.facts.get("checkpoint_dir")
        if isinstance(place, str):
            return Path(place)
    return run_dir / contract.CHECKPOINTS_DIR


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _fact(value: Json, key: str) -> Json:
    return value.get(key) if isinstance(value, dict) else None


def _state_line(document: Document) -> str:
    where = f", {document['rung']}, attempt {document['attempt']}" if document["rung"] else ""
    waiting = f" ({document['waiting_for']})" if document["waiting_for"] else ""
    return f"{document['state']}{where}{waiting}"


def _step_line(document: Document) -> str:
    target = f" of {document['target_step']}" if document["target_step"] else ""
    rate = f", {document['steps_per_s']} steps/s" if document["steps_per_s"] else ""
    left = f", {document['eta_s']} s left" if document["eta_s"] else ""
    return f"{document['step']}{target}{rate}{left}"


def _checkpoint_line(document: Document) -> str:
    newest = document["checkpoint"]
    return f"step {_fact(newest, 'step')} ({_fact(newest, 'path')})" if newest else "none yet"


def _incident_line(document: Document) -> str:
    last = document["last_incident"]
    if not last:
        return ""
    return f"attempt {_fact(last, 'attempt')}: {_fact(last, 'why')} -> {_fact(last, 'reason')}"


def _state_word(state: State, *, supervised: bool, alive: bool) -> str:
    if isinstance(state.phase, Ended):
        return ENDED[state.phase.event]
    if not supervised:
        return "unsupervised" if alive else "stopped"
    if state.stop is not None:
        return "stopping"
    waits = isinstance(state.phase, Waiting | WaitingForRoom | Probing)
    return "waiting" if waits else "running"


def _elapsed_s(entries: tuple[Entry, ...], now_s: float | None) -> float | None:
    """Return the wall time of the run, to its end or to now."""
    if not entries:
        return None
    first, last = (datetime.fromisoformat(entries[i].ts).timestamp() for i in (0, -1))
    return (last if now_s is None else now_s) - first


def _newest(entries: tuple[Entry, ...], column: str) -> str | None:
    values = (getattr(entry.record, column) for entry in reversed(entries))
    return next((value for value in values if value is not None), None)


def _checkpoint(entries: tuple[Entry, ...]) -> Document | None:
    for entry in reversed(entries):
        facts = entry.record.facts
        if entry.record.event is Event.CHECKPOINT_COMMITTED:
            return {"step": facts["step"], "path": facts["path"]}
        if entry.record.event is Event.ATTEMPT_PLANNED:
            path = facts["resume_from"]
            return None if path is None else {"step": facts["resume_step"], "path": path}
    return None


def _is_incident(entry: Entry) -> bool:
    record = entry.record
    return record.event is Event.DECISION_MADE and record.facts.get("kind") != "healthy"


def _last_incident(entries: tuple[Entry, ...]) -> Document | None:
    for index in range(len(entries) - 1, -1, -1):
        if not _is_incident(entries[index]):
            continue
        decision = entries[index].record
        made = next(
            (e.record for e in reversed(entries[:index]) if e.record.event is Event.DIAGNOSIS_MADE),
            None,
        )
        return {
            "attempt": decision.attempt,
            "at": entries[index].ts,
            "kind": decision.facts["kind"],
            "why": made.facts["reason"] if made is not None else None,
            "decision": decision.facts["decision"],
            "reason": decision.facts["reason"],
        }
    return None


def _waiting_for(entries: tuple[Entry, ...], state: State) -> str | None:
    if not isinstance(state.phase, Waiting | WaitingForRoom | Probing):
        return None
    started = {Event.BACKOFF_STARTED, Event.PROMOTION_STARTED}
    waits = (e.record for e in reversed(entries) if e.record.event in started)
    return next(waits).message
