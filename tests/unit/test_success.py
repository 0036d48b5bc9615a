"""The marker that has to stand in a rank's output before exit code 0 counts."""

import os
from types import SimpleNamespace

import pytest

from humigence_supervise.observe import success

MARKER = "all done"


def reason(attempt_dir):
    """Return why exit code 0 proves nothing for a run that needs the marker."""
    rule = SimpleNamespace(exit_code_only=False, marker=MARKER)
    return success.unproven(SimpleNamespace(success=rule), attempt_dir, progress_seen=True)


@pytest.fixture
def output(tmp_path):
    """The place of a rank's stdout; the attempt is three folders up."""
    path = tmp_path / "ranks" / "0" / "stdout.log"
    path.parent.mkdir(parents=True)
    return path


def test_the_marker_is_found_or_missed(tmp_path, output):
    """It counts on whatever rank and stream, and its absence is said with its text."""
    output.write_text("nothing\n")
    assert reason(tmp_path) == f"the marker {MARKER!r} stands in no rank's output"
    (tmp_path / "ranks" / "1").mkdir()
    (tmp_path / "ranks" / "1" / "stderr.log").write_text(f"xx{MARKER}xx")
    assert reason(tmp_path) == ""


@pytest.mark.parametrize("before", [-len(MARKER), -3, 0])
def test_the_marker_may_lie_on_the_edge_of_a_block(tmp_path, output, before):
    """Where the reader cuts the file is nothing to the marker."""
    output.write_bytes(bytes(success.BLOCK_BYTES + before) + MARKER.encode() + bytes(10))
    assert reason(tmp_path) == ""


def test_a_huge_output_is_searched_at_its_end(tmp_path, output, monkeypatch):
    """A bounded part is read; what was left out is said where the marker is missed."""
    monkeypatch.setattr(success, "_SEARCHED_BYTES", 1000)
    output.write_bytes(MARKER.encode() + bytes(2000))
    assert "ranks/0/stdout.log: only its end was searched" in reason(tmp_path)
    output.write_bytes(bytes(2000) + MARKER.encode())
    assert reason(tmp_path) == ""


def test_what_is_no_file_holds_nobody(tmp_path, output):
    """A pipe and a link to itself are passed by and named; the other stream is searched."""
    os.mkfifo(output)
    (output.parent / "stderr.log").symlink_to("stderr.log")
    assert "stdout.log: not a regular file" in reason(tmp_path)
    (output.parent / "stderr.log").unlink()
    (output.parent / "stderr.log").write_text(MARKER)
    assert reason(tmp_path) == ""
