import json
import os
import tracemalloc
from pathlib import Path

import pytest

from humigence_supervise.contract import ATTEMPTS_DIR, LAUNCHER_LOG, RANKS_DIR, attempt_name
from humigence_supervise.log_files import MAX_LINE_BYTES, LogLine, attempts
from humigence_supervise.logs_view import LogFollower, read_logs
from humigence_supervise.printable import for_people


def write(run_dir: Path, attempt: int, rank: int | None, stream: str, data: bytes) -> Path:
    """Append to one output file of an attempt."""
    folder = run_dir / ATTEMPTS_DIR / attempt_name(attempt)
    path = folder / LAUNCHER_LOG
    if rank is not None:
        path = folder / RANKS_DIR / str(rank) / f"{stream}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
    return path


def texts(lines) -> list[str]:
    """Return only the texts."""
    return [line.text for line in lines]


def test_the_newest_attempt_with_all_its_files_is_shown(tmp_path):
    """Launcher, then rank by rank with both streams; older attempts only when asked for."""
    write(tmp_path, 1, 0, "stdout", b"old\n")
    write(tmp_path, 12, None, "", b"launching\n")
    write(tmp_path, 12, 10, "stdout", b"ten\n")
    write(tmp_path, 12, 2, "stderr", b"warn\nunfinished")
    write(tmp_path, 12, 2, "stdout", b"two\n")
    assert attempts(tmp_path) == (1, 12)
    assert list(read_logs(tmp_path)) == [
        LogLine(12, None, "launcher", "launching"),
        LogLine(12, 2, "stdout", "two"),
        LogLine(12, 2, "stderr", "warn"),
        LogLine(12, 2, "stderr", "unfinished"),
        LogLine(12, 10, "stdout", "ten"),
    ]
    assert list(read_logs(tmp_path, attempt=1)) == [LogLine(1, 0, "stdout", "old")]
    assert list(read_logs(tmp_path, rank=10)) == [LogLine(12, 10, "stdout", "ten")]


def test_a_run_without_attempts_or_files_has_no_lines(tmp_path):
    """Nothing there is nothing shown, whatever is asked for."""
    assert list(read_logs(tmp_path)) == []
    write(tmp_path, 1, 0, "stdout", b"")
    assert list(read_logs(tmp_path)) == []
    assert list(read_logs(tmp_path, rank=7)) == []
    assert list(read_logs(tmp_path, attempt=9)) == []


def test_files_take_turns(tmp_path):
    """A rank that floods does not hide the others: their lines come within its first turn."""
    write(tmp_path, 1, 0, "stdout", b"flood of rank 0\n" * 20_000)
    write(tmp_path, 1, 1, "stdout", b"quiet\n")
    lines = list(read_logs(tmp_path))
    assert len(lines) == 20_001
    assert texts(lines).index("quiet") < 2000
    assert "quiet" in texts(LogFollower(tmp_path).poll())


def test_empty_lines_and_line_ends_of_other_systems_are_kept_apart(tmp_path):
    """An empty line is a line, and a carriage return before the line feed belongs to the end."""
    write(tmp_path, 1, 0, "stdout", b"a\r\n\nb\n\n")
    assert texts(read_logs(tmp_path)) == ["a", "", "b", ""]


def test_bytes_survive_any_encoding(tmp_path):
    """What was written can be had back from the text, and the text always fits into JSON."""
    raw = (
        bytes(range(256)).replace(b"\n", b"") + "Gr\u00fc\u00dfe \u2028".encode() + b"\xed\xa0\x80"
    )
    write(tmp_path, 1, 0, "stdout", raw + b"\n")
    (line,) = read_logs(tmp_path)
    assert line.text.encode("utf-8", "surrogateescape") == raw
    assert json.loads(json.dumps(line.text)) == line.text


@pytest.mark.parametrize("count", [21_845, 21_846, 23_000, 100_000])
def test_a_huge_line_comes_in_pieces_that_join(tmp_path, count):
    """No byte of a long line is lost, and no character of it is cut in two."""
    text = "\u20ac" * count
    write(tmp_path, 1, 0, "stdout", b"x" + text.encode() + b"\nnext\n")
    lines = texts(read_logs(tmp_path))
    assert lines[-1] == "next"
    assert "".join(lines[:-1]) == "x" + text
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in lines)


def test_memory_is_bounded_whatever_the_file_holds(tmp_path):
    """Neither a line without end nor a flood of empty lines is ever held as a whole."""
    write(tmp_path, 1, 0, "stdout", b"x" * 16_000_000)
    write(tmp_path, 1, 0, "stderr", b"\n" * 200_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_logs(tmp_path)) > 200_000
        _, peak_once = tracemalloc.get_traced_memory()
        follower = LogFollower(tmp_path)
        for _ in range(5):
            assert follower.poll(64 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_once < 6_000_000
    assert peak < 12_000_000


def test_reading_ends_although_the_attempt_goes_on_writing(tmp_path):
    """Only what was there at the beginning is shown."""
    write(tmp_path, 1, 0, "stdout", b"line\n" * 10_000)
    count = 0
    for _ in read_logs(tmp_path):
        count += 1
        if count % 10 == 0:
            write(tmp_path, 1, 0, "stdout", b"line\n" * 20)
    assert count == 10_000


def test_a_follower_returns_each_line_once_and_holds_back_half_ones(tmp_path):
    """Lines come when they are complete; nothing new is an empty answer."""
    follower = LogFollower(tmp_path)
    assert follower.poll() == ()
    write(tmp_path, 1, 0, "stdout", b"one\ntw")
    assert texts(follower.poll()) == ["one"]
    assert follower.poll() == ()
    write(tmp_path, 1, 0, "stdout", b"o\n")
    write(tmp_path, 1, 1, "stdout", b"a rank that came late\n")
    assert sorted(texts(follower.poll())) == ["a rank that came late", "two"]
    write(tmp_path, 1, 0, "stdout", b"half")
    assert follower.poll() == ()
    assert texts(follower.finish()) == ["half"]


def test_a_follower_goes_on_to_each_new_attempt_in_order(tmp_path):
    """The rest of an attempt comes first, its unfinished line too, then the next attempts."""
    write(tmp_path, 1, 0, "stdout", b"ancient\n")
    write(tmp_path, 2, 0, "stdout", b"a\n")
    follower = LogFollower(tmp_path)
    found = list(follower.poll())
    write(tmp_path, 2, 0, "stdout", b"b\nkilled here")
    write(tmp_path, 3, 0, "stdout", b"c\n")
    write(tmp_path, 5, 0, "stdout", b"d\n")
    for _ in range(5):
        found.extend(follower.poll())
    assert [(line.attempt, line.text) for line in found] == [
        (2, "a"),
        (2, "b"),
        (2, "killed here"),
        (3, "c"),
        (5, "d"),
    ]


def test_a_follower_of_one_attempt_or_rank_stays_there(tmp_path):
    """What was asked for is all that comes."""
    write(tmp_path, 1, 0, "stdout", b"a\n")
    write(tmp_path, 2, 0, "stdout", b"b\n")
    write(tmp_path, 2, 1, "stdout", b"c\n")
    write(tmp_path, 2, None, "", b"launching\n")
    assert texts(LogFollower(tmp_path, attempt=1).poll()) == ["a"]
    assert texts(LogFollower(tmp_path, rank=1).poll()) == ["c"]


def test_a_poll_is_bounded_and_the_polls_together_are_complete(tmp_path):
    """A backlog comes in bites, nothing of it twice and nothing lost."""
    expected = [f"line {number}" for number in range(20_000)]
    write(tmp_path, 1, 0, "stdout", "\n".join([*expected, ""]).encode())
    follower = LogFollower(tmp_path)
    found: list[str] = []
    while lines := follower.poll(10_000):
        assert len(lines) < 2_000
        found.extend(texts(lines))
    assert found == expected


@pytest.mark.parametrize("replace", [False, True], ids=["truncated", "rotated"])
def test_a_log_cut_or_rotated_is_followed_from_its_beginning(tmp_path, replace):
    """After a rotation the half line of the old file is not glued to the new one's first."""
    path = write(tmp_path, 1, 0, "stdout", b"before, a long line\nhalf")
    follower = LogFollower(tmp_path)
    follower.poll()
    if replace:
        path.rename(path.with_name("stdout.log.1"))
        path.write_bytes(b"after, a line that is longer than before\n")
    else:
        path.write_bytes(b"after\n")
    first, second = follower.poll()
    assert first.text == "half"
    assert second.text.startswith("after")


def test_what_cannot_be_read_is_said(tmp_path):
    """A log that is a link to itself is named; the others are shown."""
    loop = write(tmp_path, 1, 0, "stdout", b"")
    loop.unlink()
    loop.symlink_to(loop)
    write(tmp_path, 1, 1, "stdout", b"fine\n")
    follower = LogFollower(tmp_path)
    assert texts(follower.poll()) == ["fine"]
    assert str(loop) in follower.unread
    assert texts(read_logs(tmp_path)) == ["fine"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_fifo_or_folder_in_a_logs_place_holds_nobody(tmp_path, make):
    """What is no regular file is passed over."""
    path = write(tmp_path, 1, 0, "stdout", b"")
    path.unlink()
    make(path)
    write(tmp_path, 1, 1, "stdout", b"fine\n")
    assert texts(read_logs(tmp_path)) == ["fine"]
    assert texts(LogFollower(tmp_path).poll()) == ["fine"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00fc \u2705 text\twith tab", "plain \u00fc \u2705 text\twith tab"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone\x1b(B\x1bc", "gone"),
        ("\x1b]0;never ended", "\\x1b]0;never ended"),
        ("\x1b[31", "\\x1b[31"),
        ("\x1b\x1b[mc", "\\x1bc"),
        ("\x9b31mred", "\\x9b31mred"),
        ("bell\x07 nul\x00 back\x08", "bell\\x07 nul\\x00 back\\x08"),
        ("  5%|\r 50%|\r100%|done\r", "100%|done"),
        ("a\x85b\u2028c\x0bd", "a\\x85b\\u2028c\\x0bd"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\udcff\ud800", "\\xff\\ud800"),
        ("", ""),
    ],
)
def test_people_see_what_was_printed_and_nothing_acts(text, shown):
    """Sequences are dropped, every other control is written out; the result prints anywhere."""
    assert for_people(text) == shown
    assert "\x1b" not in for_people(text)
    for_people(text).encode("utf-8")
