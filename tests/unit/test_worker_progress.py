"""Progress lines: what the supervisor reads, and a full disk that does not end a training."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys

from humigence_worker.progress import ProgressWriter


def lines_of(folder, rank):
    """Return the parsed lines of one rank's file."""
    return [json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()]


def test_a_rank_tells_start_steps_saves_and_evaluation(tmp_path):
    """Every kind of line is there, in order, with the fields and ranges of the contract."""
    folder = tmp_path / "progress"
    writer = ProgressWriter(1, {"HUMIGENCE_PROGRESS_DIR": str(folder)})
    writer.init(4, 0, 30)
    writer.train(5, 1, range(32, 40), 2.5)
    writer.section("checkpoint", 5, 1)
    writer.section("eval", 5, 1)
    lines = lines_of(folder, 1)
    assert [line["section"] for line in lines] == ["init", "train", "checkpoint", "eval"]
    assert all(line.pop("ts") > 1_500_000_000 for line in lines)
    assert lines[0] == {
        "step": 4,
        "epoch": 0,
        "samples": [0, 0],
        "loss": None,
        "section": "init",
        "target_step": 30,
    }
    assert lines[1] == {
        "step": 5,
        "epoch": 1,
        "samples": [32, 40],
        "loss": 2.5,
        "section": "train",
    }


def test_a_second_attempt_appends_and_a_loss_that_is_no_number_stays_json(tmp_path):
    """Nothing already told is lost, and NaN, which is not JSON, becomes null."""
    environ = {"HUMIGENCE_PROGRESS_DIR": str(tmp_path)}
    ProgressWriter(0, environ).train(1, 0, range(8), 1.0)
    ProgressWriter(0, environ).train(2, 0, range(8, 16), float("nan"))
    assert [line["loss"] for line in lines_of(tmp_path, 0)] == [1.0, None]


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    """By hand, without a supervisor, a writer has no file and does not mind."""
    monkeypatch.chdir(tmp_path)
    for environ in ({}, {"HUMIGENCE_PROGRESS_DIR": ""}):
        ProgressWriter(0, environ).init(0, 0, 1)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told_once_and_raises_nothing(tmp_path, capsys):
    """A file in place of the folder: one line on stderr, then silence."""
    (tmp_path / "file").write_text("")
    writer = ProgressWriter(0, {"HUMIGENCE_PROGRESS_DIR": str(tmp_path / "file")})
    writer.init(0, 0, 1)
    writer.train(1, 0, range(8), 1.0)
    assert capsys.readouterr().err.count("progress: cannot be written") == 1


def test_a_full_disk_is_told_once_and_the_lines_come_back_with_the_space(tmp_path):
    """A file size limit is the full disk: no exception, one complaint, no line lost in the end."""
    program = f"""
import resource, sys
from humigence_worker.progress import ProgressWriter
writer = ProgressWriter(0, {{"HUMIGENCE_PROGRESS_DIR": {str(tmp_path)!r}}})
writer.train(1, 0, range(8), 1.0)
for step in range(2, 8):
    writer.train(step, 0, range(8), 1.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
writer.train(8, 0, range(8), 1.0)
"""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, 1 << 20))

    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=limit,
        restore_signals=False,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("progress: cannot be written") == 1
    assert [line["step"] for line in lines_of(tmp_path, 0)] == list(range(1, 9))
