"""A reader that trips over what a worker left is said; it never ends the run."""

import json
import subprocess
import sys

from humigence_supervise.contract import EXIT_GAVE_UP
from humigence_supervise.journal import read_journal
from humigence_supervise.records import Event

TRIPPING = """
from humigence_supervise.observe import evidence

def trip(*args, **options):
    raise ValueError("planted")

evidence.scan_file = trip
from humigence_supervise.cli import main
main()
"""


def test_a_reader_that_trips_is_unknown_and_the_run_goes_on(tmp_path):
    """The attempt is diagnosed from how its ranks ended; the journal says what was not read."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    config = {
        "name": "trips",
        "worker": {"script": "train.py"},
        "accelerator": "cpu",
        "ladder": [{"name": "one", "gpus": 1, "launcher": "python"}],
        "policy": {"unknown": "stop_and_tell"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ended = subprocess.run(
        [sys.executable, "-c", TRIPPING, "start", str(tmp_path / "config.json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    entries = read_journal(tmp_path / "runs/trips/journal.jsonl")
    made = [entry.record for entry in entries if entry.record.event is Event.DIAGNOSIS_MADE]
    assert [record.facts["kind"] for record in made] == ["unknown"]
    assert "planted" in str(made[0].facts["unread"])
    assert ended.returncode == EXIT_GAVE_UP
    assert "Traceback" not in ended.stderr
