"""Raw lines and log files of every kind, at rest and growing."""

import os
from pathlib import Path

import pytest

from humigence_supervise.observe.lines import normalize, windows
from humigence_supervise.observe.logs import LogReader, LogTail, OpenLog
from humigence_supervise.observe.pieces import pieces


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("[rank3]: ValueError: x", 3, "ValueError: x"),
        ("[default1]:ValueError: x", 1, "ValueError: x"),
        ("[trainer0|2]:ncclInternalError: x", 2, "ncclInternalError: x"),
        ("[1,5]<stderr>:oops", 5, "oops"),
        ("7: oops", 7, "oops"),
        ("host1:22:33 [4] NCCL INFO a", 4, "NCCL INFO a"),
        ("[2] NCCL WARN a", 2, "NCCL WARN a"),
        (
            "(Worker pid=12, ip=10.0.0.1) [rank1]:[E1224 16:23:05.48 ProcessGroupNCCL.cpp:5] z",
            1,
            "z",
        ),
        ("\x1b[31mRuntimeError: y\x1b[0m", None, "RuntimeError: y"),
        ("[36m(pid=4)[0m y", None, "y"),
        ("stderr: y", None, "y"),
        ("trainer-2: y", None, "y"),
        ("[E ProcessGroupNCCL.cpp:458] [Rank 6] Watchdog", 6, "Watchdog"),
        ("ValueError: 3: bad", None, "ValueError: 3: bad"),
        ("[Errno 28] No space left", None, "[Errno 28] No space left"),
        ("", None, ""),
    ],
)
def test_prefixes_are_peeled(raw, rank, text):
    """Rank and text are found behind stacked prefixes; what only looks like one stays."""
    line = normalize(raw)
    assert (line.rank, line.text) == (rank, text)


@pytest.mark.parametrize(
    ("raw", "at_s"),
    [
        ("1970-01-02T00:00:00Z x", 86_400.0),
        ("1970-01-01T02:00:00.5+01:00 x", 3_600.5),
        ("[1970-01-01 00:01:00,250] x", 60.25),
        ("[E102 00:00:01.5 a.cpp:3] x", 86_401.5),
        ("9999-99-99 99:99:99 x", None),
        ("x", None),
    ],
)
def test_stamps_become_unix_time(raw, at_s):
    """The first stamp of a line is its time; nonsense is no time."""
    assert normalize(raw).at_s == at_s


def test_progress_bars_and_json_are_split():
    """An error glued to a progress bar, or inside a JSON string, is a line of its own."""
    assert pieces("10%|#\r20%|##\rValueError: x") == ["10%|#", "20%|##", "ValueError: x"]
    assert pieces('{"e": "Traceback\\n  File x\\nValueError: y"}')[2].startswith("ValueError: y")


def test_long_text_is_read_through_windows():
    """Of a huge line only bounded pieces around gate words are read, the word inside one."""
    text = "x" * 1_000_000 + "Error here" + "y" * 1_000_000
    pieces = windows(text, ("Error",))
    assert any("Error here" in piece for piece in pieces)
    assert sum(map(len, pieces)) < 100_000


def read_all(path, max_bytes=None):
    """Return all (number, line) pairs of a file and what was left out."""
    log = OpenLog(path)
    try:
        reader = LogReader(log.descriptor, path.name, max_bytes)
        blocks = list(reader.blocks())
    finally:
        log.close()
    lines = [(block.first_line + at, raw) for block in blocks for at, raw in enumerate(block.lines)]
    return lines, reader.unread


def test_lines_are_numbered_from_one(tmp_path):
    """Every line comes once with its number, the last without a newline too."""
    path = tmp_path / "a.log"
    path.write_bytes(b"a\nb\n\xff\x00\nlast")
    assert read_all(path) == ([(1, b"a"), (2, b"b"), (3, b"\xff\x00"), (4, b"last")], "")


def test_numbers_hold_across_blocks(tmp_path):
    """A file of several blocks loses and doubles no line."""
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(1, 300_001)))
    lines, unread = read_all(path)
    assert (
        [int(raw) for _, raw in lines] == [number for number, _ in lines] == list(range(1, 300_001))
    )
    assert unread == ""


def test_bounded_reading_takes_head_and_tail_and_says_so(tmp_path):
    """Of a file above the bound, its first and last lines are read and the gap is named."""
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n" + b"filler\n" * 1_000_000 + b"last\n")
    lines, unread = read_all(path, 1_000_000)
    assert lines[0][1] == b"first"
    assert lines[-1][1] == b"last"
    assert "a.log" in unread
    assert "bytes in the middle were not read" in unread


def test_one_enormous_line_is_cut_in_its_middle(tmp_path):
    """A line of many megabytes keeps its head and tail, and costs no more memory."""
    path = tmp_path / "a.log"
    path.write_bytes(b"head" + b"x" * 20_000_000 + b"tail\nnext\n")
    lines, unread = read_all(path)
    assert lines[0][1].startswith(b"head")
    assert lines[0][1].endswith(b"tail")
    assert len(lines[0][1]) < 3_000_000
    assert lines[1] == (2, b"next")
    assert "1 very long lines were cut" in unread


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(tmp_path, kind):
    """A folder or a pipe in a log's place is an OSError, never a wait."""
    path = tmp_path / "x"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        OpenLog(path)


def test_a_long_line_of_progress_bars_keeps_what_is_glued_to_them(tmp_path):
    """Of progress bars without newlines the latest stays, with errors from anywhere between."""
    path = tmp_path / "a.log"
    bars = b"".join(
        b"\r%7d/900000 |%s| [00:10<00:20, 3.1it/s]" % (n, "█▌".encode() * (n % 9))
        for n in range(60_000)
    )
    glued = b"\rValueError: glued"
    path.write_bytes(b"first\n" + bars + glued + bars + b"\nthird\n" + bars + b"\rKeyError: 1")
    lines, unread = read_all(path)
    assert unread == ""
    assert [number for number, _ in lines] == [1, 2, 3, 4]
    assert b"ValueError: glued" in lines[1][1]
    assert b"59999/900000" in lines[1][1]
    assert lines[3][1].endswith(b"\rKeyError: 1")
    assert max(len(raw) for _, raw in lines) < 1_000


@pytest.fixture
def tailed(tmp_path):
    """Return a function that follows a log; what it opened is closed after the test."""
    tails = []

    def follow(name="stderr.log"):
        tails.append(LogTail(tmp_path / name))
        return tails[-1]

    yield follow
    for tail in tails:
        tail.close()


def open_descriptors():
    """Return how many descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def texts(tail):
    """Return the texts of one poll."""
    return [line.text for line in tail.poll()]


def test_tail_follows_a_growing_log(tmp_path, tailed):
    """New lines come once; an unfinished one waits for its end; ordinary output is left out."""
    path = tmp_path / "stderr.log"
    tail = tailed()
    assert texts(tail) == []
    path.write_text("step 1\nValueError: a\nValue")
    assert texts(tail) == ["ValueError: a"]
    with path.open("a") as stream:
        stream.write("Error: b\n")
    assert texts(tail) == ["ValueError: b"]
    assert texts(tail) == []


@pytest.mark.parametrize("how", ["rename", "truncate"])
def test_tail_survives_rotation(tmp_path, tailed, how):
    """After a rotation the new file is read from its beginning, not joined to an old half line."""
    path = tmp_path / "stderr.log"
    path.write_text("ValueError: old and long enough\nValueError: unfinished ")
    tail = tailed()
    assert len(texts(tail)) == 1
    if how == "rename":
        path.rename(tmp_path / "stderr.log.1")
    path.write_text("ValueError: new\n")
    assert texts(tail) == ["ValueError: unfinished", "ValueError: new"]


def test_what_was_appended_before_a_rename_is_not_lost(tmp_path, tailed):
    """The rest of a renamed or removed log is read before the new one, also what came late."""
    path, old = tmp_path / "stderr.log", tmp_path / "stderr.log.1"
    path.write_text("ValueError: one\n")
    tail = tailed()
    assert texts(tail) == ["ValueError: one"]
    with path.open("a") as stream:
        stream.write("ValueError: two\n")
        stream.flush()
        path.rename(old)
        assert texts(tail) == ["ValueError: two"]
        path.touch()  # logrotate makes it; the writer has not reopened its log
        stream.write("ValueError: three\n")
        stream.flush()
        assert texts(tail) == ["ValueError: three"]
        stream.write("ValueError: four\n")
    path.write_text("ValueError: five\n")
    old.unlink()
    assert texts(tail) + texts(tail) == ["ValueError: four", "ValueError: five"]
    path.unlink()
    assert texts(tail) == []


def test_tail_samples_a_flood_and_counts_what_it_left_out(tmp_path, tailed):
    """Far behind, only the newest part is read, and the rest is counted."""
    path = tmp_path / "stderr.log"
    path.write_bytes(b"x" * 99 + b"\n")
    tail = tailed()
    tail.poll()
    with path.open("ab") as stream:
        stream.write((b"y" * 80 + b" ValueError: y\n") * 200_000 + b"ValueError: end\n")
    seen = texts(tail)
    assert seen[-1] == "ValueError: end"
    assert all(text.startswith("y" * 80) for text in seen[:-1])  # no half line after the gap
    assert tail.skipped_bytes > 10_000_000


def test_tail_leaves_nothing_open(tmp_path):
    """A closed tail holds no descriptor, and can go on."""
    path = tmp_path / "stderr.log"
    path.write_text("ValueError: a\n")
    before = open_descriptors()
    tail = LogTail(path)
    assert texts(tail) == ["ValueError: a"]
    assert open_descriptors() == before + 1
    tail.close()
    assert open_descriptors() == before
    assert texts(tail) == []
    tail.close()
