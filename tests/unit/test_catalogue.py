"""Every row proves itself: it has lines it matches, lines it must not, and it is bounded."""

import re
import time

import pytest

from humigence_supervise.catalogue import Catalogue, Row, load_catalogue, parse_row
from humigence_supervise.domain import Kind, Role
from humigence_supervise.gate import Gate
from humigence_supervise.literals import gate_words, required_literals

ROWS = load_catalogue().rows
KINDS_READ_FROM_EXITS_ALONE = {Kind.HEALTHY, Kind.PREMATURE_SUCCESS, Kind.UNKNOWN}
ENTRY = {
    "id": "x.y",
    "kind": "shm",
    "role": "root",
    "pattern": "no room",
    "means": "m",
    "not_proof_of": "n",
    "source": "s",
    "match": ["no room"],
    "near_miss": ["room"],
}


def name(row: Row) -> str:
    """Return the row's id for test names."""
    return row.id


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_row_says_what_it_is(row):
    """A row has a meaning, a limit, a source, a near miss, and a match unless it needs context."""
    assert row.means
    assert row.not_proof_of
    assert row.source
    assert row.near_miss
    assert row.match or row.above is not None


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_samples_are_read_as_this_row(row):
    """The catalogue answers a sample with its own row, and a near miss never with it."""
    for line in row.match:
        assert load_catalogue().match(line) is row
    for line in row.near_miss:
        assert not row.matches(line)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_one_root_a_line(row):
    """No second root row of the same strength matches a sample: the answer is never by chance."""
    for line in row.match:
        rivals = [
            other.id
            for other in ROWS
            if other is not row
            and other.role is Role.ROOT
            and other.above is None
            and other.fallback == row.fallback
            and other.strength == row.strength
            and other.matches(line)
        ]
        assert rivals == []


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_no_greedy_gap(row):
    """No pattern has an unbounded gap: it would read a line of megabytes as one."""
    assert not re.search(r"(?<!\\)\.[*+]|\\[SWD][*+]\??[^ )/]", row.pattern.pattern)


def test_every_kind_of_failure_has_a_row():
    """Each kind that a text can show is in the catalogue."""
    missing = set(Kind) - {row.kind for row in ROWS} - KINDS_READ_FROM_EXITS_ALONE
    assert missing == {Kind.HANG} - {row.kind for row in ROWS}


@pytest.mark.parametrize(
    "filler",
    ["x", "a.b", "(", "Error ", "NCCL error", 'File "', "Loss 0", "Call to recv", " \\n"],
)
def test_long_line_in_bounded_time(filler):
    """A line of 100 kB of anything is matched within a fraction of a second."""
    line = (filler * 100_000)[:100_000]
    started = time.process_time()
    load_catalogue().match(line)
    assert time.process_time() - started < 1.0


def test_stronger_row_wins_and_context_decides():
    """With a semaphore frame above, errno 28 is shared memory; without one it is the disk."""
    line = "OSError: [Errno 28] No space left on device"
    frame = 'File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__'
    assert load_catalogue().match(line, lambda: frame).kind is Kind.SHM
    assert load_catalogue().match(line).kind is Kind.DISK_FULL


def test_context_is_asked_for_only_when_needed():
    """A line that no contextual row matches does not cost the reading of its neighbours."""

    def fail() -> str:
        raise AssertionError("asked")

    assert load_catalogue().match("RuntimeError: CUDA error: out of memory", fail) is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "unknown colour"),
        ({"pattern": ".*"}, "requires no literal"),
        ({"kind": "weather"}, "weather"),
    ],
)
def test_bad_row_is_refused_by_name(change, message):
    """A malformed row is an error that says what is wrong with it."""
    with pytest.raises(ValueError, match=message):
        parse_row(ENTRY | change)
    with pytest.raises(ValueError, match="missing means"):
        parse_row({key: value for key, value in ENTRY.items() if key != "means"})


def test_two_rows_of_one_id_are_refused():
    """An id names one row."""
    with pytest.raises(ValueError, match="same id"):
        Catalogue([parse_row(ENTRY), parse_row(ENTRY)])


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("out of memory", ("out of memory",)),
        (r"Errno (?:28|122)\b", ("Errno 122", "Errno 28")),
        ("aab?c", ("aabc", "aac")),
        ("x(?:alpha|beta)y+z", ("xalpha", "xbeta")),
        ("[Ll]oss is (?:nan|NaN)", ("Loss is NaN", "Loss is nan", "loss is NaN", "loss is nan")),
        ("a(?:bc)?d[^x]efg[a-c]", ("efg",)),
        (r"(?:one|two\.)", ("one", "two.")),
        (r"one|two\.", ("one", "two.")),
        ("not(?: all)? found", ("not all found", "not found")),
        ("(?i:any)thing", ("thing",)),
        (r"(?!not)only[\])]x", ("only)x", "only]x")),
        (r"(?:x \d+|why)more", ("more",)),
        ("(?:maybe)?", ()),
        (".{0,5}", ()),
    ],
)
def test_required_literals(pattern, literals):
    """The literal a match must contain is found, and none is invented."""
    assert required_literals(pattern) == literals


def test_literals_are_in_every_sample():
    """What is computed from a pattern is true of the real lines."""
    for row in ROWS:
        for line in row.match:
            assert any(literal in line for literal in row.literals)


def test_gate_passes_every_sample_and_stops_ordinary_output():
    """Whatever a row matches gets through the gate; steps and losses do not."""
    gate = Gate(load_catalogue().literals)
    samples = [line.encode() for row in ROWS if not row.at_end for line in row.match]
    assert gate.hot_lines(samples) == list(range(len(samples)))
    steps = [b"step %d | loss 0.%d | lr 1e-4 | 120 tokens/s" % (n, n) for n in range(100)]
    assert gate.hot_lines(steps) == []


def test_gate_reads_a_flood_only_at_its_beginning():
    """One message a thousand times costs some hundred readings; another one still counts."""
    gate = Gate(("rror",))
    flood = [b"error number %d" % n for n in range(5_000)]
    assert len(gate.hot_lines(flood)) < 1_000
    assert gate.hot_lines([b"another error"]) == [0]


def test_gate_words_have_no_digits():
    """Shapes have no digits, so a gate word with one could never match."""
    assert not any(
        character.isdigit() for word in gate_words(frozenset({"[Errno 28]"})) for character in word
    )
    with pytest.raises(ValueError, match="too short"):
        gate_words(frozenset({"1>2"}))


@pytest.mark.parametrize("row", [row for row in ROWS if row.above], ids=name)
@pytest.mark.parametrize(
    "line", ["Exception ignored in", "Traceback", "  File x, line 1", "a " * 900]
)
def test_what_stands_above_is_searched_in_bounded_time(row, line):
    """Eighty lines of anything over a hit cost a fraction of a second."""
    started = time.process_time()
    row.above.search("\n".join([line] * 80 + ["Traceback"] + [line] * 80))
    assert time.process_time() - started < 0.5


def test_an_exception_that_python_ignores_is_no_failure():
    """The one under "Exception ignored in" is context; the next traceback's is a cause."""
    ignored = (
        "Exception ignored in: <function f at 0x7f>\nTraceback (most recent call last):\n  File"
    )
    line = "AssertionError: can only test a child process"
    assert load_catalogue().match(line, lambda: ignored).role is Role.CONTEXT
    again = f"{ignored}\n{line}\nTraceback (most recent call last):\n  File"
    assert load_catalogue().match(line, lambda: again).role is Role.ROOT
