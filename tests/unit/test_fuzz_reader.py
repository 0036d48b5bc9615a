"""Whatever stands in a log is read: no exception, always a valid document, in bounded time.

Seeds are the corpus and the catalogue's samples; mutations are seeded, so a failure repeats.
"""

import json
import random
import re
import time
from pathlib import Path

import pytest
from corpus.mutations import INCIDENTS, LINES, ORDINARY, PREFIXES, mutated
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from humigence_supervise.catalogue import HINT, load_catalogue
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Confidence, Kind, Remedy
from humigence_supervise.reading import (
    UnreadableError,
    diagnosis_document,
    diagnosis_text,
    read_input,
)

MOST_S = 2.0
"""CPU seconds one input may take; the slowest seen is printed by the long run."""


def checked(path: Path, exit_code: int | None = None) -> dict[str, object] | None:
    """Return the document of a path, every promise about it kept; None where it is unreadable."""
    began_s = time.process_time()
    try:
        found = diagnose(read_input(str(path), exit_code))
    except UnreadableError:
        return None
    document = diagnosis_document(str(path), found)
    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    diagnosis_text(str(path), found).encode()
    assert document["kind"] in set(Kind)
    assert document["action"] in set(Remedy)
    assert document["confidence"] in set(Confidence)
    assert document["reason"]
    assert document["remedy"]
    root = document["root"]
    assert root is None or (isinstance(root, dict) and root["line"] >= 1 and root["signature"])
    assert time.process_time() - began_s < MOST_S
    return document


# --- any folder ----------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**63, -(2**63), 10**400, -9, 0, 1, 137])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(), st.just("\ud800")),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)
ODD = st.sampled_from([None, True, "x", "\ud800", 1.5, -1, 10**30, [], [1], {}, {"a": 1}])
PAIRS = st.one_of(st.integers(-2, 9), ODD)
STATUS = st.fixed_dictionaries({"pid": PAIRS, "rank": PAIRS, "code": PAIRS, "signal": PAIRS})
EXIT = st.fixed_dictionaries(
    {
        "launcher": st.one_of(STATUS, ODD),
        "error": ODD,
        "reaped": st.one_of(st.lists(st.one_of(STATUS, ODD), max_size=4), ODD),
        "stop": st.one_of(st.sampled_from(["none", "graceful", "kill"]), ODD),
    }
)
PLAN = st.fixed_dictionaries({"world_size": PAIRS, "attempt": PAIRS})
WORDS = st.one_of(st.sampled_from(LINES).map(bytes.decode), ODD)
ERROR = st.fixed_dictionaries(
    {
        "message": st.one_of(
            WORDS,
            st.fixed_dictionaries(
                {
                    "message": WORDS,
                    "extraInfo": st.one_of(
                        st.fixed_dictionaries({"py_callstack": WORDS, "timestamp": PAIRS}), ODD
                    ),
                }
            ),
        ),
    }
)
PROGRESS = st.fixed_dictionaries(
    dict.fromkeys(("ts", "step", "target_step", "samples", "section", "loss"), PAIRS)
)
TEXT = st.one_of(
    st.binary(max_size=400),
    st.text(max_size=400).map(lambda text: text.encode(errors="replace")),
    st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=9)), max_size=6).map(b"\n".join),
)


ANYTHING = st.one_of(
    TEXT,
    JSON.map(lambda value: json.dumps(value).encode()),
    st.integers(0, 100_000).map(lambda depth: b"[" * depth),
)
RECORDS = {
    "exit.json": EXIT,
    "plan.json": PLAN,
    "ranks/0/error.json": ERROR,
    "ranks/1/error.json": ERROR,
    "progress/0.jsonl": PROGRESS,
}
NAMES = (
    *RECORDS,
    "launcher.log",
    "ranks/0/stderr.log",
    "ranks/0/stdout.log",
    "ranks/1/stderr.log",
    "rank3.log",
    "logs/none_x/attempt_0/1/stderr.log",
    "slurm-7.out",
    "dmesg.txt",
    "a.err",
    "stdout",
)
CODES = st.one_of(st.none(), st.integers(), st.sampled_from([0, 1, -9, 139]))
OFTEN = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def check_folder(folder: Path, files: dict[str, bytes], exit_code: int | None) -> None:
    """Write the files and read the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    checked(folder, exit_code)


@given(files=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6), exit_code=CODES)
@example(files={"exit.json": b'{"launcher": {"code": true, "signal": 1e999}}'}, exit_code=None)
@example(files={"exit.json": b'{"error": "\\ud800"}'}, exit_code=None)
@example(files={"ranks/0/error.json": b'{"message": "\\ud800 CUDA out of memory"}'}, exit_code=1)
@OFTEN
def test_any_folder_is_read(tmp_path_factory, files, exit_code):
    """Arbitrary bytes, text and JSON in the places of an attempt's files: a valid document."""
    check_folder(tmp_path_factory.mktemp("any"), files, exit_code)


@given(records=st.fixed_dictionaries(RECORDS), text=TEXT, exit_code=CODES)
@OFTEN
def test_any_records_are_read(tmp_path_factory, records, text, exit_code):
    """An attempt's records with values of any type in every place: a valid document."""
    files = {name: json.dumps(value).encode() for name, value in records.items()}
    files |= {"ranks/0/stderr.log": text}
    check_folder(tmp_path_factory.mktemp("records"), files, exit_code)


def test_a_plan_of_many_ranks_without_files_is_read_in_time(tmp_path):
    """What a plan promises costs little where nothing was left."""
    (tmp_path / "plan.json").write_text('{"world_size": 4096}')
    checked(tmp_path, 1)


# --- mutations -----------------------------------------------------------------------------------


def fuzz(folder: Path, inputs: int, seed: int) -> None:
    """Read so many mutated inputs; the one at fault stays in `folder`, its number is told."""
    rng = random.Random(seed)
    path = folder / "input.log"
    slowest_s, slowest, kinds = 0.0, 0, set()
    began_s = time.process_time()
    for number in range(inputs):
        path.write_bytes(mutated(rng))
        one_s = time.process_time()
        try:
            document = checked(path, rng.choice((None, None, 0, 1, -9, 137)))
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}: {path.read_bytes()[:2_000]!r}")
            raise
        kinds.add(document and document["kind"])
        one_s = time.process_time() - one_s
        if one_s > slowest_s:
            slowest_s, slowest = one_s, number
    rate = inputs / (time.process_time() - began_s)
    print(  # noqa: T201 - the figures of a long run, shown with -s
        f"{inputs} inputs, {rate:.0f}/s; slowest {slowest_s:.3f} s: {slowest}; {len(kinds)} kinds"
    )
    assert len(kinds) > 20, "the inputs no longer reach the catalogue"


def test_mutated_logs_are_read(tmp_path):
    """Two thousand mutated logs: no exception, valid documents, in time."""
    fuzz(tmp_path, 2_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_mutated_logs_are_read(tmp_path, seed):
    """The same a hundred thousand times, in four parts."""
    fuzz(tmp_path, 25_000, seed)


# --- what must not change the answer -------------------------------------------------------------

CASES = [
    pytest.param(line, row.at_end or row.strength <= HINT, id=f"{row.id}-{number}")
    for row in load_catalogue().rows
    for number, line in enumerate(row.match)
]
ONE_FILE = [incident for incident in INCIDENTS if (incident / "train.log").exists()]


def kind_of(path: Path, data: bytes, exit_code: int | None = None) -> object:
    """Return the kind that is read in these bytes."""
    path.write_bytes(data)
    document = checked(path, exit_code)
    assert document is not None
    return document["kind"]


def same_kind(path: Path, data: bytes, other: bytes, exit_code: int | None = None) -> None:
    """Assert that both bytes are read as the same kind."""
    assert kind_of(path, other, exit_code) == kind_of(path, data, exit_code)


def ranked(data: bytes) -> bytes:
    """Put torch's own prefix before every line."""
    return b"\n".join(b"[rank0]: " + line for line in data.split(b"\n"))


@pytest.mark.parametrize(("line", "at_end"), CASES)
def test_ordinary_lines_and_a_prefix_change_no_sample(tmp_path, line, at_end):
    """A sample of the catalogue keeps its kind among training lines and behind a rank's prefix.

    A first step comes before it in any case: what some texts mean depends on whether the program
    had trained. After it come fewer lines of progress than show that an error was survived, and
    none after what means something only at the end of a log, as a hang or a mere hint does.
    """
    path = tmp_path / "a.log"
    hang = kind_of(path, line.encode()) == Kind.HANG
    before = b"".join(ORDINARY[3:] if hang else ORDINARY)
    data = before + line.encode() + b"\n"
    same_kind(path, data, before * 20 + data)
    same_kind(path, data, ranked(data))
    if not hang and not at_end:
        same_kind(path, data, data + b"".join(ORDINARY[:3]))


@pytest.mark.parametrize("prefix", PREFIXES, ids=range(len(PREFIXES)))
def test_a_launchers_or_loggers_prefix_changes_no_sample(tmp_path, prefix):
    """Samples keep their kind behind each prefix, alone and stacked upon another one."""
    rng = random.Random(prefix)
    for line in rng.sample(CASES, 60):
        path, text = tmp_path / "a.log", line.values[0].encode() + b"\n"
        before = b"".join(ORDINARY)
        if kind_of(path, text) != Kind.HANG:
            same_kind(path, before + text, before + prefix + text)
            same_kind(path, before + text, before + rng.choice(PREFIXES) + prefix + text)


@pytest.mark.parametrize("incident", ONE_FILE, ids=lambda incident: incident.name)
def test_ordinary_lines_and_a_prefix_change_no_incident(tmp_path, incident):
    """The same for the whole logs of the corpus."""
    path, data = tmp_path / "a.log", (incident / "train.log").read_bytes()
    exit_code = json.loads((incident / "expected.json").read_text())["exit_code"]
    same_kind(path, data, b"".join(ORDINARY[3:] * 20) + data, exit_code)
    same_kind(path, data, data + b"".join(ORDINARY[:3]), exit_code)
    same_kind(path, data, data.replace(b"\n", b"\r\n"), exit_code)
    # Where other ranks speak, the prefix of one rank before all lines would be a lie.
    if not re.search(rb"[Rr]ank[ :]*[1-9]|GLOBAL_RANK", data):
        same_kind(path, data, ranked(data), exit_code)


def test_order_of_writing_does_not_matter(tmp_path):
    """A folder's answer depends on what its files hold, not on the order they were made in."""
    rng = random.Random(7)
    for number in range(100):
        names = [f"rank{rank}.log" for rank in range(4)]
        contents = dict(zip(names, (rng.choice(LINES) for _ in names), strict=True))
        documents = []
        for order in (names, names[::-1], rng.sample(names, 4)):
            folder = tmp_path / f"{number}-{len(documents)}"
            folder.mkdir()
            for name in order:
                (folder / name).write_bytes(contents[name])
            document = checked(folder, 1)
            documents.append(json.dumps(document).replace(str(folder), ""))
        assert len(set(documents)) == 1, contents


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"[rank0]: " * 100_000,
        b"2026-02-18 13:28:25,496 " * 40_000,
        b"\r".join([b"CUDA out of memory"] * 50_000),
        b"\\n".join([b"Traceback (most recent call last):"] * 30_000),
        b'File "a.py", line 1\n' * 50_000,
        b"ValueError: x\n" * 50_000,
        b"a.b.C" * 200_000 + b"Error: x",
        b"\x1b[" * 400_000,
        b"\x1b]" + b"a" * 1_000_000,
        b"NCCL error" + b" " * 30_000 + b"internal error",
        b"Assertion `" + b"a" * 1_000_000 + b"` failed",
        b"\x00" * 1_000_000 + b"Killed",
        b"0 " * 500_000,
    ],
    ids=range(14),
)
def test_adversarial_megabytes_take_bounded_time(tmp_path, data):
    """Long lines and floods made to cost much do not."""
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert checked(path, 1) is not None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fill", [b" ", b"a", b"0", b"[", b".", b"-", b"\t ", b"a.", b"0:", b"/"])
def test_a_long_run_inside_a_sample_takes_bounded_time(tmp_path, fill):
    """No pattern's gap, prefix or margin costs the square of a line: 30 kB put into samples."""
    rng = random.Random(fill)
    path = tmp_path / "a.log"
    for line in rng.sample(LINES, 12):
        at = rng.randint(0, len(line))
        path.write_bytes(line[:at] + fill * (30_000 // len(fill)) + line[at:])
        assert checked(path, 1) is not None
