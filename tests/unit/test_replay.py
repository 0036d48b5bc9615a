"""An old run or a log judged by the present policy, beside what happened."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from journals import Book, diagnosis_of, fallen_back, nccl_failure

from humigence_supervise.aftermath import BEFORE_STEPPING_DOWN
from humigence_supervise.budgets import Policy
from humigence_supervise.config import ConfigError
from humigence_supervise.contract import JOURNAL_FILE
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import Diagnosed, NotPrepared, Tick, TreeGone
from humigence_supervise.journal import JournalError, decode, encode
from humigence_supervise.reading import UnreadableError
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.replay.courses import forecast
from humigence_supervise.replay.document import replay_document
from humigence_supervise.replay.log import DEFAULT_RUNGS
from humigence_supervise.replay.text import replay_text
from humigence_supervise.run_ref import RunNotFoundError
from humigence_supervise.state import StateError

OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
NCCL_LOG = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote"
    " process exited or there was a network error, NCCL version 2.27.5\n"
)
CONFIG = {
    "name": "demo",
    "worker": {"script": "train.py"},
    "batch": {"global": 8, "micro": 4},
}


def replay(source, cwd, config=None, *, rediagnose=False):
    """Return the document as a program reads it."""
    document = replay_document(str(source), cwd, config, rediagnose=rediagnose)
    return json.loads(json.dumps(document))


def config_with(folder, policy, name="with.json"):
    """Write a config with a policy section; return its path."""
    path = folder / name
    path.write_text(json.dumps({**CONFIG, "policy": policy}))
    return path


def rewritten(journal: Path, change):
    """Write a journal's records anew as `change` makes them (None: left out)."""
    entries = [decode(line) for line in journal.read_bytes().splitlines()]
    records = [(one, new) for one in entries if (new := change(one.record)) is not None]
    journal.write_bytes(
        b"".join(
            encode(Entry(seq, one.ts, one.mono_ns, one.run, record))
            for seq, (one, record) in enumerate(records, start=1)
        )
    )


def without(*names):
    """Return a change that leaves facts out, as an older version did."""

    def change(record):
        facts = {key: value for key, value in record.facts.items() if key not in names}
        return Record(
            record.event, record.message, record.level, record.attempt, record.rung, facts
        )

    return change


def ran_out(book, at_s, last_step, checkpoint_step=10):
    """Let an attempt run out of GPU memory."""
    oom = diagnosis_of(Kind.CUDA_OOM, "The GPU had no memory left.", root=None)
    book.fails(at_s, last_step, oom, checkpoint_step)


# --- a journal -----------------------------------------------------------------------------------


def test_the_same_policy_decides_the_same(tmp_path):
    """A run judged by the policy that judged it: every decision is the same."""
    fallen_back(tmp_path)
    document = replay(tmp_path / JOURNAL_FILE, tmp_path)
    (one,) = document["decisions"]
    assert (one["attempt"], one["rung"], one["step"]) == (1, "multi_gpu", 19)
    assert one["kind"] == "nccl_remote"
    assert (one["same"], one["new_kind"], one["unknown"]) == (True, None, [])
    assert one["happened"]["decision"] == one["now"]["decision"] == "StepDown"
    assert one["now"]["rung"] == "single_gpu"
    assert one["now"]["reason"] == one["happened"]["reason"]
    assert document["summary"] == "1 of 1 decision is the same."
    assert document["policy"] == {
        "source": "default",
        "config": None,
        "why": "no config is named",
    }
    assert "what really happened" in document["history"]


def test_another_policy_decides_otherwise_and_says_why(tmp_path):
    """With "stop_and_tell" the fallback would have been the end of the run, with its code."""
    fallen_back(tmp_path)
    config = config_with(tmp_path, {"nccl_remote": "stop_and_tell"})
    document = replay(tmp_path / JOURNAL_FILE, tmp_path, config)
    (one,) = document["decisions"]
    assert one["same"] is False
    assert (one["happened"]["decision"], one["now"]["decision"]) == ("StepDown", "Stop")
    assert one["now"]["exit_code"] in (75, 93)
    assert one["now"]["why_not"]
    assert one["now"]["unless"]
    assert document["policy"]["config"] == str(config)
    text = replay_text(document)
    assert "DIFFERENT: Stop (" in text
    assert one["now"]["unless"] in text
    assert "0 of 1 decision is the same." in text


def three_failures(run_dir):
    """Return a run that lost NCCL, ran out of memory twice and was finished with less."""
    book = Book(run_dir)
    book.progress(book.attempt(2), range(1, 20), 10)
    book.fails(40, 19, nccl_failure(), checkpoint_step=10)
    book.progress(book.attempt(43, resume_step=10), range(11, 22), 50)
    ran_out(book, 65, 21, 20)
    book.progress(book.attempt(70, resume_step=20), range(21, 26), 75)
    ran_out(book, 90, 25, 20)
    book.progress(book.attempt(100, resume_step=20), range(21, 31), 105)
    book.ends_well(120, 30)
    return book


def test_every_decision_is_judged_on_what_happened_before_it(tmp_path):
    """Only the one that an override is about differs; micro-batches go on from the real ones."""
    three_failures(tmp_path)
    document = replay(tmp_path, tmp_path)
    assert [one["now"]["micro_samples"] for one in document["decisions"]] == [None, 2, 1]
    assert document["summary"] == "3 of 3 decisions are the same."
    config = config_with(tmp_path, {"nccl_remote": "stop_and_tell"})
    document = replay(tmp_path, tmp_path, config)
    assert [one["same"] for one in document["decisions"]] == [False, True, True]
    assert document["summary"].startswith("2 of 3 decisions are the same. From incident 1 on")


def test_a_delay_is_no_difference(tmp_path):
    """A retry with another backoff is the same retry."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 20), 10)
    killed = diagnosis_of(Kind.HOST_OOM, "The kernel killed rank 0.", root=None)
    book.fails(40, 19, killed, checkpoint_step=10)
    config = config_with(tmp_path, {"backoff": {"first_s": 77.0}})
    (one,) = replay(tmp_path, tmp_path, config)["decisions"]
    assert "77.0 s" in one["now"]["reason"]
    assert "77.0 s" not in one["happened"]["reason"]
    assert one["same"] is True


def test_decisions_without_a_failure_are_listed_not_judged(tmp_path):
    """A rung that could not be planned led to a step down: no incident, no comparison."""
    book = Book(tmp_path)
    missing = NotPrepared("Two GPUs are wanted, one is there.", 75, lower_may_do=True)
    for look in range(BEFORE_STEPPING_DOWN):
        book.happen(100 * look + 1, missing)
        book.happen(100 * look + 99, Tick())
    book.happen(1000, missing)
    document = replay(tmp_path, tmp_path)
    assert document["decisions"] == []
    (one,) = document["not_judged"]
    assert one["decision"] == "StepDown"
    assert document["summary"].startswith("No attempt failed")
    assert "StepDown, no failure led to it" in replay_text(document)


def test_a_disk_that_was_waited_for_was_full(tmp_path):
    """The journal says how much was missing; without that it is unknown, and said to be."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 20), 10)
    full = diagnosis_of(Kind.DISK_FULL, "No space left on device.", root=None)
    book.happen(40, TreeGone("The launcher exited with code 1.", 0.0))
    book.happen(41, Diagnosed(full, 19, 10, need_mib=500, free_mib=3))
    (one,) = replay(tmp_path, tmp_path)["decisions"]
    assert one["happened"]["decision"] == one["now"]["decision"] == "WaitForSpace"
    assert one["unknown"] == []
    rewritten(
        tmp_path / JOURNAL_FILE, lambda r: r if r.event is not Event.BACKOFF_STARTED else None
    )
    (one,) = replay(tmp_path, tmp_path)["decisions"]
    assert one["unknown"] == ["free_mib"]


def test_what_an_old_journal_does_not_tell_is_unknown(tmp_path):
    """Without ladder, micro-batch, holder and diagnosis the decisions are judged all the same."""
    three_failures(tmp_path)
    journal = tmp_path / JOURNAL_FILE
    leave_out = without("ladder", "micro_batch", "holder", "why_not", "unless", "action")
    rewritten(journal, lambda r: None if r.event is Event.DIAGNOSIS_MADE else leave_out(r))
    document = replay(journal, tmp_path)
    assert [one["unknown"] for one in document["decisions"]] == [
        ["diagnosis"],
        ["diagnosis", "holder", "micro_batch"],
        ["diagnosis", "holder", "micro_batch"],
    ]
    assert document["ladder"] == ["multi_gpu", "single_gpu"]
    assert document["ladder_known"] is False
    text = replay_text(document)
    assert "who held the GPU memory" in text
    assert "the ladder (taken from the attempts)" in text


def test_the_config_of_the_run_is_the_default_while_it_can_be_read(tmp_path):
    """The journal names its config: used as it is now; when it is gone, the default policy is."""
    config = config_with(tmp_path, {"nccl_remote": "stop_and_tell"}, "run.json")
    fallen_back(tmp_path)
    named = Record(Event.RUN_STARTED, "The run starts.", facts={"run_id": "r1", "config": "x"})

    def change(record):
        if record.event is not Event.RUN_STARTED:
            return record
        return Record(named.event, named.message, facts={"run_id": "r1", "config": str(config)})

    rewritten(tmp_path / JOURNAL_FILE, change)
    document = replay(tmp_path, tmp_path)
    assert document["policy"]["config"] == str(config)
    assert document["decisions"][0]["same"] is False
    config.unlink()
    document = replay(tmp_path, tmp_path)
    assert document["policy"]["source"] == "default"
    assert "does not exist" in document["policy"]["why"]
    assert document["decisions"][0]["same"] is True


def test_an_empty_journal_says_so(tmp_path):
    """Nothing is journaled yet: no error."""
    (tmp_path / JOURNAL_FILE).write_bytes(b"")
    document = replay(tmp_path, tmp_path)
    assert (document["of"], document["summary"]) == (0, "Nothing is journaled yet.")
    assert "Nothing is journaled yet." in replay_text(document)


def test_a_damaged_journal_is_refused(tmp_path):
    """Damage in the middle is named with its line; a torn tail is passed over."""
    fallen_back(tmp_path)
    journal = tmp_path / JOURNAL_FILE
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-9])
    assert replay(journal, tmp_path)["of"] == 1
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{}\n", *lines[2:]]))
    with pytest.raises(JournalError, match="jsonl:2: the journal is damaged"):
        replay(journal, tmp_path)
    journal.write_bytes(b"".join([b"{}\n", *lines[1:]]))
    with pytest.raises(JournalError, match="jsonl:1: the journal is damaged"):
        replay(journal, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "of_tomorrow"),
        ("holder", "nobody"),
        ("rung_index", "two"),
        ("rung_index", 10**9),
        ("rung_index", -1),
        ("at_s", 10**400),
        ("micro_samples", 10**400),
        ("micro_samples", -1),
        ("last_step", None),
    ],
)
def test_a_fact_that_cannot_be_understood_is_an_error_in_words(tmp_path, name, value):
    """A whole line with a word of a newer version is no traceback."""
    fallen_back(tmp_path)

    def change(record):
        if record.event is not Event.DECISION_MADE:
            return record
        facts = {**record.facts, name: value}
        return Record(
            record.event, record.message, record.level, record.attempt, record.rung, facts
        )

    rewritten(tmp_path / JOURNAL_FILE, change)
    with pytest.raises(StateError):
        replay(tmp_path, tmp_path)


def test_an_event_of_a_newer_version_is_named(tmp_path):
    """Even as the first line, where a journal is told from a log."""
    fallen_back(tmp_path)
    copy = tmp_path / "copied"
    line = (tmp_path / JOURNAL_FILE).read_bytes().splitlines()[0]
    body = line.rpartition(b',"crc":"')[0].replace(b"run.started", b"run.dreamed") + b"}"
    copy.write_bytes(b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body)))
    with pytest.raises(JournalError, match=r"run\.dreamed"):
        replay(copy, tmp_path)


def test_nothing_is_written(tmp_path):
    """Replaying leaves the run as it was, with and without its evidence."""
    fallen_back(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    replay(tmp_path, tmp_path)
    replay(tmp_path, tmp_path, rediagnose=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# --- diagnosed anew ------------------------------------------------------------------------------


def test_the_evidence_is_read_again(tmp_path):
    """Logs that say out-of-memory: the new kind stands beside the old one and is decided on."""
    book = fallen_back(tmp_path)
    folder = book.folder(1) / "ranks" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(OOM)
    (one,) = replay(tmp_path, tmp_path, rediagnose=True)["decisions"]
    assert (one["kind"], one["new_kind"]) == ("nccl_remote", "cuda_oom")
    assert one["now"]["reason"].startswith("cuda_oom on this rung")
    (one,) = replay(tmp_path, tmp_path)["decisions"]
    assert one["new_kind"] is None
    assert one["now"]["reason"].startswith("nccl_remote on this rung")


def failed_twice(run_dir, kind, log):
    """Return a run that failed twice at step 19 on its first rung, with a log of today's."""
    book = Book(run_dir)
    for at_s in (0, 100):
        attempt = book.attempt(at_s + 2)
        book.progress(attempt, range(1, 20), at_s + 10)
        folder = book.folder(attempt) / "ranks" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(log)
        name = f"{kind.value}|{at_s}"  # an old reader that took them for two failures
        found = replace(diagnosis_of(kind, "It failed.", root=None), fingerprint=name)
        book.fails(at_s + 40, 19, found, checkpoint_step=0)
        if at_s == 0:
            book.happen(at_s + 90, Tick())
    return book


def test_the_moves_that_were_made_stay_what_they_were(tmp_path):
    """Unknown was retried; out of memory today: the step down was never made, so it is first."""
    failed_twice(tmp_path, Kind.UNKNOWN, OOM)
    decisions = replay(tmp_path, tmp_path, rediagnose=True)["decisions"]
    assert [one["new_kind"] for one in decisions] == ["cuda_oom", "cuda_oom"]
    assert [one["now"]["decision"] for one in decisions] == ["StepDown", "StepDown"]


def test_the_same_failure_is_known_again(tmp_path):
    """Both were told apart by the old reader; read anew they are one, and deterministic."""
    failed_twice(tmp_path, Kind.USER_CODE, "Traceback (most recent call last):\nKeyError: 'a'\n")
    (_, old) = replay(tmp_path, tmp_path)["decisions"]
    (_, new) = replay(tmp_path, tmp_path, rediagnose=True)["decisions"]
    assert new["new_kind"] == "user_code"
    assert "twice" in new["now"]["reason"]
    assert "twice" not in old["now"]["reason"]


def test_what_the_supervisor_saw_belongs_to_the_evidence(tmp_path):
    """A worker that resumed at the wrong step wrote nothing wrong: the journal tells it."""
    book = Book(tmp_path)
    book.attempt(2, resume_step=10)
    book.fails(20, 10, nccl_failure(), checkpoint_step=10)
    mismatch = Record(
        Event.RESUME_MISMATCH,
        "The worker began elsewhere.",
        attempt=1,
        facts={"promised_step": 10, "began_step": 0},
    )
    journal = tmp_path / JOURNAL_FILE
    lines = journal.read_bytes().splitlines(keepends=True)
    entries = [decode(line.rstrip(b"\n")) for line in lines]
    at = next(i for i, one in enumerate(entries) if one.record.event is Event.ATTEMPT_EXITED)
    entries.insert(at, Entry(0, entries[0].ts, 1, "demo", mismatch))
    journal.write_bytes(
        b"".join(
            encode(Entry(seq, one.ts, one.mono_ns, one.run, one.record))
            for seq, one in enumerate(entries, start=1)
        )
    )
    (one,) = replay(tmp_path, tmp_path, rediagnose=True)["decisions"]
    assert one["new_kind"] == "user_code"
    assert "began at step 0" in one["now"]["reason"]


def test_evidence_that_is_gone_leaves_the_journaled_diagnosis(tmp_path):
    """A journal alone has no attempts: each incident says so."""
    fallen_back(tmp_path)
    shutil.rmtree(tmp_path / "attempts")
    document = replay(tmp_path, tmp_path, rediagnose=True)
    (one,) = document["decisions"]
    assert one["new_kind"] is None
    assert "The journaled diagnosis stands." in one["not_rediagnosed"]
    assert one["same"] is True
    assert "The journaled diagnosis stands." in replay_text(document)


# --- a log ---------------------------------------------------------------------------------------


def courses_of(document, number=0):
    """Return the decisions of a sequence by name."""
    return [one["decision"] for one in document["sequences"][number]["decisions"]]


def test_a_log_is_followed_until_the_run_would_end(tmp_path):
    """Out of memory again and again: down, halved twice, then the end with its code."""
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.0\n" + OOM)
    document = replay(log, tmp_path, config_with(tmp_path, {}))
    assert document["diagnosis"]["kind"] == "cuda_oom"
    (sequence,) = document["sequences"]
    courses = [(one["decision"], one["micro_samples"]) for one in sequence["decisions"]]
    assert courses == [
        ("StepDown", None),
        ("ShrinkMicroBatch", 2),
        ("ShrinkMicroBatch", 1),
        ("Stop", 1),
    ]
    assert sequence["exit_code"] == 93
    text = replay_text(document)
    assert "1.            StepDown to single_gpu: cuda_oom" in text
    assert "3.            ShrinkMicroBatch to 1: " in text
    assert "4.            Stop (93): " in text


def test_the_very_same_failure_ends_sooner_than_one_of_its_kind(tmp_path):
    """Where it matters whether a failure is deterministic, both sequences are there."""
    log = tmp_path / "train.log"
    log.write_text("step 5 loss 2.0\n" + NCCL_LOG)
    document = replay(log, tmp_path)
    assert document["diagnosis"]["kind"] == "nccl_remote"
    assert courses_of(document, 0) == ["StepDown", "Stop"]
    assert courses_of(document, 1) == ["StepDown", "Retry", "Stop"]
    assert [one["exit_code"] for one in document["sequences"]] == [93, 75]
    text = replay_text(document)
    assert "if            the very same failure comes back" in text
    assert "2.            Retry: " in text


def test_decisions_that_repeat_take_one_line(tmp_path):
    """A full disk is waited for often; the text says so once, the document each time."""
    log = tmp_path / "train.log"
    log.write_text("OSError: [Errno 28] No space left on device\n")
    document = replay(log, tmp_path)
    waits = courses_of(document).count("WaitForSpace")
    assert waits > 3
    text = replay_text(document)
    assert f"1-{waits}." in text
    assert "and waiting for room." in text


def test_a_log_without_a_config_has_two_rungs_and_no_batch(tmp_path):
    """What had to be assumed is said."""
    log = tmp_path / "train.log"
    log.write_text(OOM)
    document = replay(log, tmp_path)
    assert document["ladder"] == ["multi_gpu", "single_gpu"]
    assert courses_of(document) == ["StepDown", "Stop"]
    assert any("--config names one" in one for one in document["assumed"])
    assert document["policy"]["source"] == "default"


def test_the_policy_of_a_config_decides_about_a_log(tmp_path):
    """An override is followed."""
    log = tmp_path / "train.log"
    log.write_text(OOM)
    config = config_with(tmp_path, {"cuda_oom": "stop_and_tell"})
    assert courses_of(replay(log, tmp_path, config)) == ["Stop"]


def test_a_healthy_log_is_complete(tmp_path):
    """Nothing failed: nothing comes back, and nothing is assumed."""
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.0\n")
    document = replay(log, tmp_path)
    assert courses_of(document) == ["Complete"]
    assert document["sequences"][0]["exit_code"] == 0
    assert document["assumed"] == []
    assert "Nothing in it shows a failure, so there is nothing to decide." in replay_text(document)


def test_gpus_that_fail_one_after_the_other_run_out(tmp_path):
    """Two GPUs, each lost: down to the healthy one, then none is left."""
    log = tmp_path / "dmesg.log"
    log.write_text("NVRM: Xid (PCI:0000:41:00): 79, pid=4243, GPU has fallen off the bus.\n")
    document = replay(log, tmp_path)
    assert document["diagnosis"]["kind"] == "gpu_fault"
    assert courses_of(document) == ["StepDown", "Stop"]
    assert "No healthy GPU is left" in document["sequences"][0]["decisions"][1]["reason"]


def test_an_attempts_folder_is_a_log(tmp_path):
    """The folder of one attempt is diagnosed by itself, with the steps it made."""
    book = fallen_back(tmp_path)
    folder = book.folder(1) / "ranks" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(NCCL_LOG)
    document = replay(book.folder(1), tmp_path)
    assert (document["what"], document["diagnosis"]["kind"]) == ("log", "nccl_remote")
    assert "at step 19" in document["sequences"][0]["decisions"][-1]["reason"]


def test_every_kind_comes_to_an_end():
    """Whatever failed, the sequence of decisions is finite, under a generous policy too."""
    generous = Policy(retries=3, attempts_without_progress=10)
    for kind in set(Kind) - {Kind.HEALTHY}:
        for policy in (Policy(), generous):
            courses = forecast(
                diagnosis_of(kind, "It failed.", root=None),
                DEFAULT_RUNGS,
                policy,
                micro_samples=8,
                steps=(10, 20),
                gpus=2,
                alike=False,
            )
            assert courses[-1].decision == "Stop", kind
            assert courses[-1].exit_code in (75, 78, 93), kind


# --- what is meant -------------------------------------------------------------------------------


def test_a_run_is_named_in_every_way(tmp_path):
    """Journal, run directory, name and config lead to the same journal; a copy to its own."""
    run_dir = tmp_path / "runs" / "demo"
    run_dir.mkdir(parents=True)
    fallen_back(run_dir)
    config_with(tmp_path, {}, "demo.json")
    for source in ("runs/demo", "runs/demo/journal.jsonl", "demo", "demo.json"):
        document = replay(source, tmp_path)
        assert (document["what"], document["of"]) == ("journal", 1)
        assert document["journal"] == str(run_dir / JOURNAL_FILE)
    shutil.copy(run_dir / JOURNAL_FILE, tmp_path / "mailed.txt")
    assert replay("mailed.txt", tmp_path)["run"] == "demo"


def test_what_is_neither_journal_nor_log_is_an_error_in_words(tmp_path):
    """A name that is not there, a config without a run, an unusable policy, an empty name."""
    config = config_with(tmp_path, {}, "never-started.json")
    for source in ("no-such-thing", "no/such/thing", "a" * 300, str(config), "", "a\0b"):
        with pytest.raises(RunNotFoundError):
            replay(source, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableError):
        replay(tmp_path / "empty", tmp_path)
    log = tmp_path / "train.log"
    log.write_text(OOM)
    with pytest.raises(ConfigError):
        replay(log, tmp_path, tmp_path / "missing.json")


def test_the_verb(tmp_path):
    """One JSON document, or lines; stdin is a log; bad input exits as in other verbs."""
    fallen_back(tmp_path)

    def call(*arguments, text=""):
        return subprocess.run(
            [sys.executable, "-m", "humigence_supervise.cli", "replay", *arguments],
            input=text,
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUTF8": "1"},
            timeout=60,
            check=False,
        )

    shown = call(".", "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["same"] == 1
    shown = call("-", text=OOM)
    assert shown.returncode == 0
    assert "StepDown to single_gpu" in shown.stdout
    (tmp_path / JOURNAL_FILE).write_bytes(b"{}\n{}\n")
    shown = call(".")
    assert (shown.returncode, shown.stdout) == (70, "")
    assert "the journal is damaged" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert call("nothing").returncode == 64
