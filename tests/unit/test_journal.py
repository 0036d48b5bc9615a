"""The journal is the only state: it must come back whole, or say that it does not."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from humigence_supervise.journal import (
    BALLAST_BYTES,
    JournalError,
    decode,
    encode,
    open_journal,
    read_journal,
)
from humigence_supervise.records import Entry, Event, Level, Record

RECORDS = [
    Record(Event.RUN_STARTED, "The run starts.", facts={"run_id": "abc", "gpus": []}),
    Record(Event.RUNG_CHANGED, "⚠️ falling back", Level.WARNING, 3, "single_gpu", {"to": "x"}),
]


def written(path: Path) -> tuple[Entry, ...]:
    """Write a journal of two entries, one after the other."""
    journal, _ = open_journal(path, "demo")
    entries = (*journal.append(RECORDS[:1]), *journal.append(RECORDS[1:]))
    journal.close()
    return entries


def test_what_is_appended_reads_back(tmp_path: Path) -> None:
    """Entries come back equal, numbered from 1, with the public columns."""
    path = tmp_path / "journal.jsonl"
    entries = written(path)
    assert read_journal(path) == entries
    assert [entry.seq for entry in entries] == [1, 2]
    line = json.loads(path.read_bytes().splitlines()[1])
    assert list(line)[:9] == [
        "seq",
        "ts",
        "mono_ns",
        "event",
        "level",
        "run",
        "attempt",
        "rung",
        "message",
    ]
    assert line["ts"].endswith("Z")
    assert (line["attempt"], line["rung"], line["to"], line["run"]) == (
        3,
        "single_gpu",
        "x",
        "demo",
    )


def test_numbering_goes_on_after_reopening(tmp_path: Path) -> None:
    """A second supervisor appends where the first one ended."""
    path = tmp_path / "journal.jsonl"
    written(path)
    journal, old = open_journal(path, "demo")
    (new,) = journal.append(RECORDS[:1])
    journal.close()
    assert (len(old), new.seq) == (2, 3)
    assert len(read_journal(path)) == 3


@pytest.mark.parametrize("cut", [1, 2, 10, 60])
def test_a_torn_tail_is_cut_and_kept(tmp_path: Path, cut: int) -> None:
    """A line that was being written when the machine died is put aside, not guessed at."""
    path = tmp_path / "journal.jsonl"
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    first = whole.splitlines(keepends=True)[0]
    assert len(read_journal(path)) == 1
    journal, entries = open_journal(path, "demo")
    journal.close()
    assert len(entries) == 1
    assert path.read_bytes() == first
    (aside,) = tmp_path.glob("*.torn-*")
    assert first + aside.read_bytes() == whole[:-cut]


def test_what_was_written_together_counts_together(tmp_path: Path) -> None:
    """Wherever a block of lines is torn, none of it is believed: a decision needs its wait."""
    path = tmp_path / "journal.jsonl"
    journal, _ = open_journal(path, "demo")
    journal.append(RECORDS[:1])
    before = path.stat().st_size
    journal.append([*RECORDS, *RECORDS])
    journal.close()
    whole = path.read_bytes()
    assert [entry.more for entry in read_journal(path)] == [0, 3, 2, 1, 0]
    for end in range(before, len(whole)):
        path.write_bytes(whole[:end])
        assert len(read_journal(path)) == 1, end
    journal, entries = open_journal(path, "demo")
    (new,) = journal.append(RECORDS[:1])
    journal.close()
    assert (len(entries), new.seq, len(read_journal(path))) == (1, 2, 2)
    (aside,) = tmp_path.glob("*.torn-*")
    assert aside.read_bytes() == whole[before:-1]


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    """One flipped bit in an earlier line stops everything, with the line and a way out."""
    path = tmp_path / "journal.jsonl"
    written(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"abc")] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"journal.jsonl:1: .*--fresh"):
        open_journal(path, "demo")
    assert path.read_bytes() == bytes(content)


def test_a_missing_line_is_refused(tmp_path: Path) -> None:
    """Lines that are whole but do not follow each other are damage too."""
    path = tmp_path / "journal.jsonl"
    written(path)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(JournalError, match="seq is 2"):
        read_journal(path)


def test_a_newer_versions_line_is_neither_torn_nor_damage(tmp_path: Path) -> None:
    """A whole line with an event this version does not know is refused and stays where it is."""
    path = tmp_path / "journal.jsonl"
    written(path)
    body = b'{"seq":3,"ts":"t","mono_ns":1,"event":"run.teleported","level":"info","run":"r",'
    body += b'"attempt":1,"rung":"a","message":"m"}'
    path.write_bytes(path.read_bytes() + b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body)))
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"journal.jsonl:3: .*newer version"):
        open_journal(path, "demo")
    assert path.read_bytes() == before


def test_half_characters_and_numbers_survive() -> None:
    """Text that is not valid Unicode is escaped instead of losing the line."""
    record = Record(Event.DIAGNOSIS_MADE, "bad \udcff byte", facts={"n": 2**70, "x": 0.1})
    line = encode(Entry(1, "2026-01-01T00:00:00.000000Z", 1, "r", record))
    assert decode(line.rstrip(b"\n")).record.facts == {"n": 2**70, "x": 0.1}


FULL_DISK = """
import sys
import zlib
from pathlib import Path
from humigence_supervise.journal import open_journal
from humigence_supervise.records import Event, Record
folder = Path(sys.argv[1])
journal, _ = open_journal(folder / "journal.jsonl", "demo")
filler = open(folder / "filler", "wb", buffering=0)
try:
    while True:
        filler.write(b"x" * 4096)
except OSError:
    pass
try:
    journal.append([Record(Event.ATTEMPT_PROGRESS, "news " + "x" * 8000)], decisive=False)
    sys.exit("news took the ballast")
except OSError:
    pass
assert (folder / "journal.ballast").exists()
journal.append([Record(Event.BACKOFF_STARTED, "full " + "x" * 8000)])
journal.append([Record(Event.BACKOFF_STARTED, "still full")])
assert not (folder / "journal.ballast").exists()
filler.close()
(folder / "filler").unlink()
journal.reserve()
assert (folder / "journal.ballast").stat().st_size == int(sys.argv[2])
"""


def test_decisions_are_written_on_a_full_disk(tmp_path: Path) -> None:
    """The ballast makes room for the lines that say the disk is full, and comes back after."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    run = f'{mount} && exec {sys.executable} -c "$0" {tmp_path} {BALLAST_BYTES}'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", run, FULL_DISK]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_a_full_disk_without_ballast_is_an_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    """What could not be made durable raises, and the file still ends with a whole line."""
    path = tmp_path / "journal.jsonl"
    written(path)
    before = path.read_bytes()
    code = (
        "import resource, signal, sys\n"
        "from humigence_supervise.journal import open_journal\n"
        "from humigence_supervise.records import Event, Record\n"
        "from pathlib import Path\n"
        "journal, _ = open_journal(Path(sys.argv[1]), 'demo')\n"
        "Path(sys.argv[1]).with_name('journal.ballast').unlink()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try:\n"
        "    journal.append([Record(Event.RUN_FAILED, 'x' * 4096)])\n"
        "except OSError as error:\n"
        "    sys.exit(error.errno)\n"
    )
    argv = [sys.executable, "-c", code, str(path), str(len(before) + 100)]
    done = subprocess.run(argv, check=False, timeout=60)
    assert done.returncode == errno.EFBIG
    assert path.read_bytes() == before
