import json
import math
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from humigence_supervise.domain import Progress, Section
from humigence_supervise.observe.progress import (
    MAX_LINE_BYTES,
    POLL_BYTES,
    ProgressTail,
    parse_line,
    stream,
)


def line(number: int, **changes: object) -> bytes:
    """Return one good progress line with some of its fields changed."""
    value = {
        "ts": 1000.5 + number,
        "step": number,
        "epoch": 0,
        "samples": [8 * (number - 1), 8 * number],
        "loss": 2.5,
        "section": "train",
    }
    return json.dumps(value | changes).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    """Append as a worker does."""
    with path.open("ab") as file:
        file.write(data)


def steps(found: Iterable[Progress]) -> list[tuple[int, int]]:
    """Return (rank, step) of what was found."""
    return [(one.rank, one.step) for one in found]


def test_a_line_becomes_progress():
    """Every field of a line arrives, with the rank of its file."""
    assert parse_line(3, line(5, target_step=60, loss=None, section="init")) == Progress(
        rank=3,
        at_s=1005.5,
        step=5,
        epoch=0,
        first_sample=32,
        last_sample=40,
        loss=None,
        section=Section.INIT,
        target_step=60,
    )


def test_a_loss_that_is_not_finite_is_passed_on():
    """NaN and infinity are facts about the training, and unknown fields are ignored."""
    loss = parse_line(0, line(1, loss=math.nan, extra=1)).loss
    assert loss is not None
    assert math.isnan(loss)
    assert parse_line(0, line(1, loss=math.inf)).loss == math.inf


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0",
        b"\xff\xfe",
        b"[]",
        b"5",
        b"[" * 10_000,
        b"9" * 9000,
        line(1)[:-10],
        line(1) + line(2),
        line(1, step=True),
        line(1, step="1"),
        line(1, step=-1),
        line(1, step=10**30),
        line(1, step=1.0),
        line(1, epoch=None),
        line(1, samples=None),
        line(1, samples=[0]),
        line(1, samples=[0, 8, 16]),
        line(1, samples=[8, 0]),
        line(1, samples=[0, True]),
        line(1, ts=math.nan),
        line(1, ts=-1),
        line(1, ts="now"),
        line(1, loss="2.5"),
        line(1, loss=True),
        line(1, section="sleep"),
        line(1, section=["train"]),
        line(1, target_step=-5),
    ],
)
def test_a_line_that_is_no_progress_is_refused(raw):
    """Anything but a whole progress line is a ValueError and never anything else."""
    with pytest.raises(ValueError):  # noqa: PT011 - which one is nobody's business
        parse_line(0, raw)


def test_only_what_is_new_is_returned(tmp_path):
    """A poll returns what came since the last one; files and the folder may appear late."""
    folder = tmp_path / "progress"
    tail = ProgressTail(folder)
    assert tail.poll() == ()
    folder.mkdir()
    append(folder / "0.jsonl", line(1) + line(2))
    assert steps(tail.poll()) == [(0, 1), (0, 2)]
    assert tail.poll() == ()
    append(folder / "1.jsonl", line(1))
    append(folder / "0.jsonl", line(3))
    assert sorted(steps(tail.poll())) == [(0, 3), (1, 1)]
    assert (tail.skipped, tail.unread) == (0, "")


def test_an_unfinished_line_waits_for_its_end(tmp_path):
    """A line written in two halves is read once, whole."""
    tail = ProgressTail(tmp_path)
    whole = line(1)
    append(tmp_path / "0.jsonl", whole[:20])
    assert tail.poll() == ()
    append(tmp_path / "0.jsonl", whole[20:-1])
    assert tail.poll() == ()
    append(tmp_path / "0.jsonl", b"\n")
    assert steps(tail.poll()) == [(0, 1)]
    assert tail.skipped == 0


def test_garbage_between_lines_is_skipped_and_counted(tmp_path):
    """Forged, binary and empty lines harm no other line."""
    forged = b'{"step": 9999}\n\x00\xff\n\n   \nnot json\n'
    append(tmp_path / "0.jsonl", line(1) + forged + line(2))
    tail = ProgressTail(tmp_path)
    assert steps(tail.poll()) == [(0, 1), (0, 2)]
    assert tail.skipped == 3


@pytest.mark.parametrize("length", [MAX_LINE_BYTES + 1, 3_000_000])
def test_a_huge_line_is_skipped_in_bounded_memory(tmp_path, length):
    """Of a line without end nothing is kept, and the line after it counts again."""
    append(tmp_path / "0.jsonl", line(1) + b"x" * length)
    tail = ProgressTail(tmp_path)
    found = [one for _ in range(200) for one in tail.poll(32 * 1024)]
    assert all(len(reader._held) <= MAX_LINE_BYTES for reader in tail._readers.values())  # noqa: SLF001 - memory has no other witness
    append(tmp_path / "0.jsonl", b"\n" + line(2))
    found += tail.poll()
    assert [one.step for one in found] == [1, 2]
    assert tail.skipped == 1


def test_a_poll_reads_a_bounded_part_and_starves_no_rank(tmp_path):
    """A flood in rank 0's file leaves every poll short, and rank 1 gets its turn."""
    append(tmp_path / "0.jsonl", b"".join(map(line, range(1, 20_001))))
    append(tmp_path / "1.jsonl", line(1))
    tail = ProgressTail(tmp_path)
    first = tail.poll(64 * 1024)
    assert 100 < len(first) < 1000
    assert (1, 1) in steps(first + tail.poll(64 * 1024))


def test_every_line_is_read_exactly_once_however_small_the_polls(tmp_path):
    """Whatever the poll's size cuts, no line is lost or read twice."""
    append(tmp_path / "0.jsonl", b"".join(map(line, range(1, 501))))
    chance = random.Random(7)
    tail = ProgressTail(tmp_path)
    found: list[Progress] = []
    while len(found) < 500:
        before = len(found)
        for _ in range(200):
            found.extend(tail.poll(chance.randrange(1, 400)))
        assert len(found) > before
    assert [one.step for one in found] == list(range(1, 501))


@pytest.mark.parametrize("replace", [False, True], ids=["truncated", "replaced"])
def test_a_file_cut_or_replaced_is_read_from_its_beginning(tmp_path, replace):
    """After a truncation or a new file of the same name reading goes on with what is there."""
    path = tmp_path / "0.jsonl"
    append(path, line(1) + line(2) + b'{"half')
    tail = ProgressTail(tmp_path)
    tail.poll()
    if replace:
        path.rename(tmp_path / "old")
        append(path, line(3) + line(4) + line(5))
        expected = [(0, 3), (0, 4), (0, 5)]
    else:
        path.write_bytes(line(3))
        expected = [(0, 3)]
    assert steps(tail.poll()) == expected
    assert tail.skipped == 0


@pytest.mark.parametrize("name", ["x.jsonl", "-1.jsonl", "01.jsonl", "0.jsonl.tmp", "1e3.jsonl"])
def test_other_files_are_no_ranks(tmp_path, name):
    """Only ``<rank>.jsonl`` is read."""
    append(tmp_path / name, line(1))
    append(tmp_path / "0.jsonl", line(2))
    assert steps(ProgressTail(tmp_path).poll()) == [(0, 2)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_fifo_or_folder_in_a_files_place_is_empty(tmp_path, make):
    """What is no regular file does not hold the loop for ever, and other ranks are read."""
    make(tmp_path / "0.jsonl")
    append(tmp_path / "1.jsonl", line(1))
    assert steps(ProgressTail(tmp_path).poll()) == [(1, 1)]


def test_what_cannot_be_read_is_said_and_found_again(tmp_path):
    """A link to itself is named as unread; once repaired the file is read and nothing is unread."""
    loop = tmp_path / "0.jsonl"
    loop.symlink_to(loop)
    append(tmp_path / "1.jsonl", line(1))
    tail = ProgressTail(tmp_path)
    assert steps(tail.poll()) == [(1, 1)]
    assert "0.jsonl" in tail.unread
    loop.unlink()
    append(loop, line(1))
    assert steps(tail.poll()) == [(0, 1)]
    assert tail.unread == ""


def test_a_folder_that_vanishes_does_no_harm(tmp_path):
    """Removed under the reader, the folder is empty; back again, it is read."""
    folder = tmp_path / "progress"
    folder.mkdir()
    append(folder / "0.jsonl", line(1))
    tail = ProgressTail(folder)
    tail.poll()
    (folder / "0.jsonl").unlink()
    folder.rmdir()
    assert tail.poll() == ()
    folder.mkdir()
    append(folder / "0.jsonl", line(2))
    assert steps(tail.poll()) == [(0, 2)]


def test_nothing_new_opens_no_file(tmp_path):
    """An idle poll stats only; the interpreter's own audit shows every open."""
    opened: list[str] = []
    watching = False

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(audit)
    append(tmp_path / "0.jsonl", line(1))
    tail = ProgressTail(tmp_path)
    watching = True
    tail.poll()
    assert opened == [str(tmp_path / "0.jsonl")]
    for _ in range(100):
        assert tail.poll() == ()
    watching = False
    assert len(opened) == 1


def test_stream_returns_every_rank(tmp_path):
    """For the ledger everything is read, by rank, without the unfinished line."""
    append(tmp_path / "0.jsonl", b"".join(map(line, range(1, 2001))) + b'{"half')
    append(tmp_path / "10.jsonl", line(1) + b"garbage\n" + line(2))
    expected = [*((0, step) for step in range(1, 2001)), (10, 1), (10, 2)]
    assert steps(stream(tmp_path)) == expected
    assert list(stream(tmp_path / "none")) == []


def test_drain_reads_to_the_end_what_a_poll_leaves(tmp_path):
    """A file longer than a poll's bite is read whole, once, and polls go on behind it."""
    append(tmp_path / "0.jsonl", b"".join(map(line, range(1, 12_001))))
    append(tmp_path / "1.jsonl", line(1))
    assert (tmp_path / "0.jsonl").stat().st_size > 2 * POLL_BYTES
    tail = ProgressTail(tmp_path)
    polled = steps(tail.poll())
    assert (0, 12_000) not in polled
    drained = steps(tail.drain())
    assert sorted(polled + drained) == [*((0, step) for step in range(1, 12_001)), (1, 1)]
    assert tail.poll() == ()
    append(tmp_path / "0.jsonl", line(12_001))
    assert steps(tail.poll()) == [(0, 12_001)]


def test_drain_says_what_it_could_not_read(tmp_path):
    """A file that leads to itself is named, and the other rank is drained."""
    (tmp_path / "0.jsonl").symlink_to("0.jsonl")
    append(tmp_path / "1.jsonl", line(1))
    tail = ProgressTail(tmp_path)
    assert steps(tail.drain()) == [(1, 1)]
    assert "0.jsonl" in tail.unread
