"""An incident explained: what failed, on what evidence, what was decided, what it cost."""

import json

import pytest
from journals import NCCL_TEXT, Book, diagnosis_of, fallen_back, hit, nccl_failure

from humigence_supervise.contract import EXIT_SIGTERM
from humigence_supervise.domain import Kind
from humigence_supervise.explain import NoIncidentError, explain_document, explain_text
from humigence_supervise.happenings import NotPrepared, StopRequested, Tick


def test_cause_evidence_decision_and_loss_of_the_incident(tmp_path):
    """Every part of an explanation is there, and it is a JSON document."""
    fallen_back(tmp_path)
    document = json.loads(json.dumps(explain_document(tmp_path)))
    assert (document["incident"], document["incidents"], document["attempt"]) == (1, 1, 1)
    assert (document["kind"], document["confidence"]) == ("nccl_remote", "likely")
    assert document["cause"] == "Another rank went away (rank 1)."
    root = document["root"]
    assert (root["rank"], root["file"], root["line"]) == (1, "ranks/1/stderr.log", 15)
    assert root["text"] == NCCL_TEXT
    assert root["path"] == str(tmp_path / "attempts/0001/ranks/1/stderr.log")
    assert [symptom["rank"] for symptom in document["symptoms"]] == [0]
    assert document["decision"] == "StepDown"
    assert "falling back to single GPU" in document["rung_change"]
    assert document["next_attempt"]["resume_step"] == 10
    assert document["ended"] == "Rank 1 (pid 77) exited with code 1."
    assert document["advice"] == "Look at the other rank."


def test_what_was_lost_is_counted_from_the_last_step_to_the_next_new_one(tmp_path):
    """Step 19 at 29 s, step 20 (after nine redone ones) at 60 s."""
    fallen_back(tmp_path)
    lost = explain_document(tmp_path)["lost"]
    assert (lost["last_step"], lost["resume_step"], lost["redone_steps"]) == (19, 10, 9)
    assert lost["seconds_to_new_step"] == 31.0


def test_a_step_is_new_only_beyond_all_that_was_done_before(tmp_path):
    """A second failure during the redone steps does not make them new."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 20), 10)
    book.fails(40, 19, nccl_failure(), checkpoint_step=10)
    book.progress(book.attempt(43, resume_step=10), range(11, 14), 50)
    again = diagnosis_of(Kind.HOST_OOM, "The kernel killed rank 0.", root=None)
    book.fails(60, 13, again, checkpoint_step=10)
    book.happen(70, Tick())
    book.progress(book.attempt(80, resume_step=10), range(11, 31), 90)
    first, second = (explain_document(tmp_path, number) for number in (1, 2))
    assert first["lost"]["seconds_to_new_step"] == 71.0
    assert second["lost"]["seconds_to_new_step"] == 47.0
    assert second["lost"]["redone_steps"] == 3
    assert explain_document(tmp_path) == second


def test_an_incident_that_nothing_followed_yet(tmp_path):
    """No next attempt, no new step: both are said, and what a resume would do again."""
    book = Book(tmp_path)
    book.progress(book.attempt(2), range(1, 20), 10)
    book.fails(40, 19, nccl_failure(), checkpoint_step=10)
    document = explain_document(tmp_path)
    assert document["next_attempt"] is None
    assert document["lost"]["seconds_to_new_step"] is None
    text = explain_text(document)
    assert "9 steps would be done again; no new step was made since" in text
    assert "no further attempt was begun yet" in text


def test_the_text_says_it_all_in_lines(tmp_path):
    """File, line, rank, text, decision, loss and advice are there for people."""
    fallen_back(tmp_path)
    text = explain_text(explain_document(tmp_path, 1))
    assert f"{tmp_path}/attempts/0001/ranks/1/stderr.log:15 (rank 1)" in text
    assert NCCL_TEXT in text
    assert "ranks/0/stderr.log:15 nccl_remote: Connection closed by peer" in text
    assert "StepDown: nccl_remote on this rung" in text
    assert "attempt 2 on single_gpu, from the checkpoint of step 10" in text
    assert "9 steps were done again; 31.0 s" in text
    assert "Look at the other rank." in text


def test_a_cause_without_a_line_says_so(tmp_path):
    """What was read from exit codes alone names no file."""
    book = Book(tmp_path)
    book.attempt(2)
    book.fails(5, 0, diagnosis_of(Kind.SEGFAULT, "A process crashed.", root=None), 0)
    document = explain_document(tmp_path)
    assert document["root"] is None
    assert "no line of a log shows it" in explain_text(document)


def test_hostile_log_lines_cannot_act_on_the_terminal(tmp_path):
    """Escapes of a log line are dropped or written out, and it stays one line."""
    book = Book(tmp_path)
    book.attempt(2)
    nasty = hit(Kind.UNKNOWN, "\x1b]0;owned\x07boom\x1b[2J\n\u202eforged: line\ud800")
    book.fails(5, 0, diagnosis_of(Kind.UNKNOWN, "A\x1b[31m reason", nasty), 0)
    text = explain_text(explain_document(tmp_path))
    assert "boom" in text
    assert not {"\x1b", "\x07", "\u202e", "\ud800"} & set(text)
    assert not any(line.startswith("forged") for line in text.splitlines())


def test_nothing_to_explain_is_told_with_what_there_is(tmp_path):
    """No journal, no failure, a stop: each is said; a wrong number lists the right ones."""
    with pytest.raises(NoIncidentError, match="nothing is journaled yet"):
        explain_document(tmp_path)
    failing = tmp_path / "failing"
    failing.mkdir()
    fallen_back(failing)
    for wrong in (0, -1, 2, 10**20):
        with pytest.raises(NoIncidentError) as told:
            explain_document(failing, wrong)
        assert str(told.value) == (
            f"The run demo has no incident {wrong}. There are: 1 (attempt 1, nccl_remote)."
        )
    assert isinstance(told.value, ValueError)


def test_a_run_that_failed_before_any_attempt_says_how(tmp_path):
    """There is no incident, so the reason of the end is what the message gives."""
    Book(tmp_path).happen(1, NotPrepared("the script is missing"))
    with pytest.raises(NoIncidentError, match=r"no attempt failed\. the script is missing"):
        explain_document(tmp_path)


def test_a_stop_on_request_is_no_incident(tmp_path):
    """Only what was judged as a failure is explained."""
    book = Book(tmp_path)
    book.attempt(2)
    book.happen(5, StopRequested(EXIT_SIGTERM))
    with pytest.raises(NoIncidentError, match="no attempt failed"):
        explain_document(tmp_path)


def test_steps_known_only_from_the_journal_count_too(tmp_path):
    """A program without progress files is explained by the journal's thinned progress."""
    book = Book(tmp_path)
    book.attempt(2)
    book.heartbeat(29, 19)
    book.fails(40, 19, nccl_failure(), checkpoint_step=10)
    book.attempt(43, resume_step=10)
    book.heartbeat(55, 15)
    assert explain_document(tmp_path)["lost"]["seconds_to_new_step"] is None
    book.heartbeat(66, 25)
    assert explain_document(tmp_path)["lost"]["seconds_to_new_step"] == 37.0
