"""The eyes on an attempt: nothing a worker leaves lying about blinds or ends them."""

import json
import os
import resource

import pytest

from humigence_supervise import contract, proc
from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import Beginning
from humigence_supervise.happenings import LogSampled, ProgressMade, SignatureSeen
from humigence_supervise.observe.attempt import AttemptWatch
from humigence_supervise.observe.progress import POLL_BYTES

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def line(step, section="train"):
    """Return one good progress line."""
    value = {"ts": 1.0, "step": step, "epoch": 0, "samples": [0, 8], "loss": 1, "section": section}
    return json.dumps(value) + "\n"


@pytest.fixture
def attempt(tmp_path):
    """An attempt of two ranks, the second of which runs, made progress and ran out of memory."""
    folder = tmp_path / "attempt"
    (folder / contract.RANKS_DIR / "1").mkdir(parents=True)
    (folder / contract.PROGRESS_DIR).mkdir()
    (folder / contract.PROGRESS_DIR / "1.jsonl").write_text(line(7))
    (folder / contract.RANKS_DIR / "1" / "stderr.log").write_text(OOM)
    me = proc.identity(os.getpid())
    said = {"rank": 1, "local_rank": 1, "pid": me.pid, "start_ticks": me.start_ticks}
    (folder / contract.RANKS_DIR / "1" / contract.RANK_PROCESS_FILE).write_text(json.dumps(said))
    return folder


@pytest.fixture
def watch(attempt, tmp_path):
    """A watch of that attempt, closed after the test."""
    made = AttemptWatch(attempt, 2, tmp_path / "checkpoints", load_catalogue())
    yield made
    made.close()


def saw_rank_1(watch, happenings):
    """Tell whether everything of the sound rank was seen."""
    kinds = [type(happening) for happening in happenings]
    return kinds == [ProgressMade, SignatureSeen] and len(watch.descriptors()) == 1


def log_loop(attempt, _):
    """The rank's log is a link to itself."""
    (attempt / contract.RANKS_DIR / "0").mkdir()
    (attempt / contract.RANKS_DIR / "0" / "stderr.log").symlink_to("stderr.log")


def rank_is_a_file(attempt, _):
    """The rank's folder is a file."""
    (attempt / contract.RANKS_DIR / "0").write_text("")


def process_fifo(attempt, _):
    """The rank's process.json is a pipe."""
    (attempt / contract.RANKS_DIR / "0").mkdir()
    os.mkfifo(attempt / contract.RANKS_DIR / "0" / contract.RANK_PROCESS_FILE)


def progress_loop(attempt, _):
    """The rank's progress is a link to itself."""
    (attempt / contract.PROGRESS_DIR / "0.jsonl").symlink_to("0.jsonl")


def checkpoints_file(_, checkpoints):
    """The checkpoint folder is a file."""
    checkpoints.write_text("")


def nothing(_, __):
    """All is well."""


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (nothing, None),
        (log_loop, "the log of rank 0"),
        (rank_is_a_file, "rank 0 cannot be watched"),
        (process_fifo, "not a regular file"),
        (progress_loop, "0.jsonl"),
        (checkpoints_file, "checkpoints could not be listed"),
    ],
)
def test_one_unreadable_thing_is_told_and_the_rest_is_seen(attempt, tmp_path, watch, spoil, words):
    """Whatever of rank 0 cannot be read, rank 1 is seen, and `unread` says what is missing."""
    spoil(attempt, tmp_path / "checkpoints")
    assert saw_rank_1(watch, watch.poll())
    assert (words is None) == (watch.unread == ())
    assert words is None or any(words in sentence for sentence in watch.unread)


def test_no_descriptors_for_a_while(watch):
    """With none to be had a poll sees nothing and says so; with some again it sees everything."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open("/", os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        assert watch.poll() == []
        assert any("Too many open files" in sentence for sentence in watch.unread)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert saw_rank_1(watch, watch.poll())
    assert watch.unread == ()


def test_drain_goes_to_the_end(attempt, watch):
    """Progress longer than a poll's bite is read to its last line, and what failed is told."""
    path = attempt / contract.PROGRESS_DIR / "1.jsonl"
    path.write_text("".join(map(line, range(1, 12_001))))
    assert path.stat().st_size > 2 * POLL_BYTES
    watch.poll()
    assert watch.last_progress.step < 12_000
    assert [happening.progress.step for happening in watch.drain()] == [12_000]
    assert watch.last_progress.step == 12_000
    (attempt / contract.PROGRESS_DIR / "0.jsonl").symlink_to("0.jsonl")
    assert watch.drain() == []
    assert "0.jsonl" in watch.unread[0]


def test_a_flood_is_sampled_and_said_when_it_doubled(attempt, watch):
    """What was left out of a live log is said, thinned; the error at the flood's end is seen."""
    log = attempt / contract.RANKS_DIR / "1" / "stderr.log"
    said = []
    for _ in range(8):
        with log.open("ab") as stream:
            stream.write(b"an ordinary line\n" * 700_000)
        said += [one for one in watch.poll() if isinstance(one, LogSampled)]
    with log.open("ab") as stream:
        stream.write(b"an ordinary line\n" * 700_000 + OOM.encode())
    last = watch.poll()
    assert {one.rank for one in said} == {1}
    assert [one.skipped_bytes >> 20 for one in said] == sorted(
        {one.skipped_bytes >> 20 for one in said}
    )
    assert said[-1].skipped_bytes > 4 * said[0].skipped_bytes > 0
    assert len(said) < 5
    assert [one.facts["rank"] for one in last if isinstance(one, SignatureSeen)] == [1]


@pytest.mark.parametrize(
    ("lines", "began"),
    [
        ([(10, "init"), (11, "train"), (12, "train")], (10, 10)),
        ([(11, "train")], (0, 10)),
        ([(11, "train"), (12, "train"), (13, "train")], (10, 10)),
        ([(20, "train"), (30, "train"), (31, "train")], (10, 19)),
        ([(11, "eval"), (14, "train"), (15, "train")], (13, 13)),
    ],
)
def test_where_a_worker_began_is_read_from_its_first_lines(attempt, watch, lines, began):
    """Its own word for it, or the distance of its first two steps."""
    path = attempt / contract.PROGRESS_DIR / "1.jsonl"
    path.write_text("".join(line(step, section) for step, section in lines))
    watch.poll()
    assert watch.began == Beginning(*began)
