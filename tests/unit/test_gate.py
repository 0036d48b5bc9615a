"""The gate: the same lines with and without the library, ordinary output stays out, bounds hold."""

import itertools
import random
import re
import subprocess
import sys
import time

import pytest
from bench import corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.fast_search import fast_search
from humigence_supervise.gate import Gate, VocabularySearch, line_numbers
from humigence_supervise.literals import LiteralIndex
from humigence_supervise.observe.evidence import scan_file

ROWS = load_catalogue().rows
LITERALS = load_catalogue().literals
SAMPLES = [line.encode() for row in ROWS for line in (*row.match, *row.near_miss)]
ORDINARY = [
    make(random.Random(number), number).encode()
    for number in range(2_000)
    for make in (corpus.usual_line, corpus.unlike_line)
]

needs_library = pytest.mark.skipif(
    fast_search(LITERALS) is None, reason="hyperscan is not installed"
)


def plain(lines):
    """Return the lines that hold a literal, looked for one by one."""
    return [at for at, line in enumerate(lines) if any(one.encode() in line for one in LITERALS)]


def mutated(chance, line):
    """Return a line with a part left out, doubled, or put elsewhere, or with strange bytes."""
    a, b = sorted(chance.randrange(len(line) + 1) for _ in range(2))
    other = chance.choice(SAMPLES)
    return chance.choice(
        [
            line[:a] + line[b:],
            line[:b] + line[a:],
            line[a:b],
            line[:a] + chance.choice([b"\r", b"\t", b"\x00", b"\xff", b"7", b" ", b"x"]) + line[a:],
            line[:a] + other + line[a:],
            b"".join(chance.choices([line[a:b], b"12", b" ", other[:9]], k=5)),
        ]
    )


def blocks():
    """Yield blocks of samples, of mutations of them, and of ordinary lines between them."""
    yield SAMPLES
    for seed in range(10):
        chance = random.Random(seed)
        lines = [mutated(chance, chance.choice(SAMPLES)) for _ in range(500)]
        yield chance.sample(lines + ORDINARY[:100], 600)


def test_search_without_library_finds_every_literal():
    """In samples and mutations, block after block, it finds what looking for each does."""
    search = VocabularySearch(LITERALS)
    for lines in blocks():
        assert line_numbers(b"\n".join(lines), search(b"\n".join(lines))) == plain(lines)


@needs_library
def test_library_finds_the_same_lines():
    """With and without the compiled library the same lines are hot."""
    fast, slow = fast_search(LITERALS), VocabularySearch(LITERALS)
    for lines in blocks():
        text = b"\n".join(lines)
        assert line_numbers(text, fast(text)) == line_numbers(text, slow(text))


@needs_library
@given(st.lists(st.binary(max_size=60) | st.sampled_from(SAMPLES), max_size=20))
@settings(max_examples=50, deadline=None)
def test_library_finds_the_same_lines_in_any_bytes(lines):
    """So do both in lines of any bytes."""
    text = b"\n".join(line.replace(b"\n", b"") for line in lines)
    fast, slow = fast_search(LITERALS), VocabularySearch(LITERALS)
    assert line_numbers(text, fast(text)) == line_numbers(text, slow(text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_whatever_a_pattern_matches_holds_a_literal(row):
    """No text that a row's pattern matches is without the row's literals."""

    @given(st.from_regex(row.pattern))
    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(text):
        assert any(literal in text for literal in row.literals)

    check()


def test_index_tells_what_is_in_a_line():
    """The index yields exactly the literals that a line holds, each once."""
    index = LiteralIndex(("0/", *LITERALS))
    for sample in (*SAMPLES, b"0/1", b"", *ORDINARY[:50]):
        line = sample.decode()
        found = sorted(index.in_line(line))
        assert found == sorted({one for one in ("0/", *LITERALS) if one in line})


def test_ordinary_output_does_not_open_the_gate():
    """A literal that stands in usual lines would cost the reader its speed; in prose few may."""
    text = [line.decode() for line in ORDINARY]
    assert {one for one in LITERALS if any(one in line for line in text[::2])} == set()
    assert len(Gate(LITERALS).hot_lines(ORDINARY[1::2])) < 20


@pytest.mark.parametrize(
    "coloured",
    [
        b"CUDA out of \x1b[1mmemory\x1b[0m",
        b"CUDA out of [1mmem[0mory",
        b"CUDA out of ^[[31mmemory^[[0m",
        b"CUDA out \\u001b[31mof memory\\u001b[0m",
    ],
)
def test_colours_hide_nothing(coloured):
    """A literal with colours in it opens the gate, however the escape is written."""
    assert Gate(LITERALS).hot_lines([b"step 1", coloured]) == [1]


def test_flood_of_one_message_is_thinned():
    """One message with other numbers and names each time is read some hundred times."""
    gate = Gate(("rror",))
    flood = [b"error %d of 5e8400-e29b-41d4-%012x" % (n, n) for n in range(5_000)]
    assert len(gate.hot_lines(flood)) < 1_000
    assert gate.hot_lines([b"another error"]) == [0]


def test_memory_is_bounded():
    """Neither ever new words nor ever new messages make the gate grow for ever."""
    gate = Gate(LITERALS)
    search = gate._search  # noqa: SLF001 - what it remembers is the point
    letters = str.maketrans("0123456789", "ghijklmnop")
    names = (str(number).translate(letters) for number in itertools.count())
    most_words = most_messages = 0
    for _ in range(10):
        gate.hot_lines([f"Error: w {name}".encode() for name in itertools.islice(names, 8_000)])
        gate.hot_lines([name.encode() for name in itertools.islice(names, 8_000)])
        most_words = max(most_words, len(search._cold) + len(search._hot))  # noqa: SLF001
        most_messages = max(most_messages, len(gate._readings))  # noqa: SLF001
    assert 8_000 < most_words < 40_000
    assert 8_000 < most_messages < 40_000


@pytest.fixture
def without_library(monkeypatch):
    """Hyperscan cannot be imported."""
    fast_search.cache_clear()
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    yield
    fast_search.cache_clear()


@pytest.mark.usefixtures("without_library")
def test_where_the_library_is_missing_logs_are_read_without_it():
    """A large input is searched all the same."""
    gate = Gate(LITERALS, large=True)
    lines = [b"step %d" % n for n in range(100_000)]
    assert fast_search(LITERALS) is None
    assert gate.hot_lines(lines) == []
    assert gate.hot_lines([b"CUDA out of memory", *lines]) == [0]


@needs_library
@pytest.mark.parametrize(("lines", "wanted"), [(10, False), (100_000, True)])
def test_only_large_logs_pay_for_the_library(tmp_path, lines, wanted):
    """The command line and a small log do without the library; a large log uses it."""
    log = tmp_path / "a.log"
    log.write_bytes(b"a line of output\n" * lines)
    program = (
        "import sys, humigence_supervise.cli\n"
        "from humigence_supervise.reading import read_input\n"
        "read_input(sys.argv[1], None)\n"
        "print('hyperscan' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(wanted)


# --- lines that nearly match ----------------------------------------------------------------------

LINE_BYTES = 1_000_000
MOST_S = 1.0


def near_matches(row):
    """Yield long lines that begin to match over and over, or once and never end."""
    found = next(filter(None, map(row.pattern.search, (*row.match, *row.near_miss))), None)
    text = row.literals[0] if found is None else found[0]
    half = text[: (len(text) + 1) // 2]
    for part in (text[:-1], half):
        yield part * (LINE_BYTES // len(part))
    yield half + half[-1] * LINE_BYTES


def seconds_grow_slowly(pattern, line):
    """Tell whether ever longer parts of a line are searched fast; stops at the first slow one."""
    for size in (4_000, 16_000, 64_000, LINE_BYTES):
        began = time.process_time()
        pattern.search(line[:size])
        if time.process_time() - began > MOST_S * max(size / LINE_BYTES, 0.1):
            return False
    return True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_near_matches_in_bounded_time(row):
    """A megabyte of what a row nearly matches is searched within a second."""
    for line in near_matches(row):
        assert seconds_grow_slowly(row.pattern, line)


def test_a_quadratic_pattern_is_found_out():
    """The measure above tells a pattern with an unbounded gap from one with a bounded gap."""
    line = "Error " * (LINE_BYTES // 6)
    assert seconds_grow_slowly(re.compile("Error .{0,80}failed"), line)
    assert not seconds_grow_slowly(re.compile("Error .*failed"), line)


@pytest.mark.parametrize("row", ROWS[::8], ids=lambda row: row.id)
def test_reading_near_matches_in_bounded_time(row, tmp_path):
    """So is a log with such lines: what stands around a message is peeled off in time too."""
    path = tmp_path / "a.log"
    path.write_text("step 1\n" + "\nstep 2\n".join(near_matches(row)) + "\n")
    began = time.process_time()
    unread = []
    scan_file(path, path.name, None, unread, None)
    assert time.process_time() - began < 5 * MOST_S
    assert "3 very long lines were cut" in unread[0]
