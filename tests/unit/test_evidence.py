"""What an attempt's folder says: logs, error files, exit records, and what cannot be read."""

import json
import os
import time

import pytest

from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import ExitStatus, Kind, RankExit, Role
from humigence_supervise.observe.evidence import gather

OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/w/train.py", line 88, in main\n'
    '  File "/w/model.py", line 12, in forward\n'
    '  File "/env/lib/python3.11/site-packages/torch/nn/linear.py", line 9, in forward\n'
)
TORCHRUN = """\
E0504 10:11:15.1 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) \
local_rank: 1 (pid: 100) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-05-01_11:12:35
  host      : box
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 99)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-05-01_11:12:34
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 100)
  error_file: <N/A>
"""


def write(folder, name, text):
    """Write one file of the attempt."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def gathered(folder, **facts):
    """Gather with nothing known but what stands in the folder."""
    known = {
        "world_size": 2,
        "accelerator": None,
        "first_dead": None,
        "first_step": None,
        "last_step": None,
        "target_step": None,
        "rank_exits": {},
        "disk_free_mib": None,
        "stop_requested": False,
        "hang_suspected": False,
    }
    return gather(folder, **(known | facts))


def causes(found):
    """Return the hits without the mere beginning of a traceback."""
    return [hit for hit in found.hits if hit.signature != "python.traceback"]


def test_nothing_there_is_nothing_known(tmp_path):
    """An attempt that left no files is no error."""
    found = gathered(tmp_path)
    assert (found.hits, found.ranks, found.launcher, found.unread) == ((), (), None, ())


def test_hits_name_rank_file_line_and_frame(tmp_path):
    """A traceback gives the innermost frame of the user's own code."""
    write(tmp_path, "ranks/1/stderr.log", "hello\n" + TRACEBACK + "ValueError: bad shape\n")
    (hit,) = causes(gathered(tmp_path))
    assert (hit.rank, hit.file, hit.line) == (1, "ranks/1/stderr.log", 6)
    assert hit.frame == "model.py:12 in forward"


def test_launcher_block_gives_exits_and_the_first_to_die(tmp_path):
    """The own report of torchrun is read, also where the supervisor saw nothing."""
    write(tmp_path, "launcher.log", TORCHRUN)
    found = gathered(tmp_path)
    assert found.ranks == (
        RankExit(0, 99, ExitStatus(code=1)),
        RankExit(1, 100, ExitStatus(signal=9)),
    )
    assert found.first_dead == 1


def test_what_the_supervisor_saw_wins(tmp_path):
    """A status seen live replaces the launcher's, an unknown one does not."""
    write(tmp_path, "launcher.log", TORCHRUN)
    live = {0: RankExit(0, 99, ExitStatus(signal=11)), 1: RankExit(1, 100, ExitStatus())}
    found = gathered(tmp_path, rank_exits=live, first_dead=0)
    assert [exit_.status for exit_ in found.ranks] == [ExitStatus(signal=11), ExitStatus(signal=9)]
    assert found.first_dead == 0


def test_exit_record_of_the_keeper(tmp_path):
    """The launcher's end and the ranks the keeper reaped are read."""
    record = {
        "attempt": 1,
        "launcher": {"pid": 5, "rank": None, "code": 1, "signal": None},
        "error": None,
        "reaped": [{"pid": 7, "rank": 0, "code": None, "signal": 9}],
    }
    write(tmp_path, "exit.json", json.dumps(record))
    found = gathered(tmp_path)
    assert found.launcher == ExitStatus(code=1)
    assert found.ranks == (RankExit(0, 7, ExitStatus(signal=9)),)


@pytest.mark.parametrize("nested", [True, False])
def test_error_file_speaks_for_a_silent_rank(tmp_path, nested):
    """A torchelastic error file counts where the rank's logs hold no cause, and only there."""
    text = TRACEBACK + "ValueError: from the file"
    message = {"message": "ValueError", "extraInfo": {"py_callstack": text}} if nested else text
    write(tmp_path, "ranks/0/error.json", json.dumps({"message": message}))
    (hit,) = causes(gathered(tmp_path))
    assert hit.file == "ranks/0/error.json"
    assert hit.text == "ValueError: from the file"
    write(tmp_path, "ranks/0/stderr.log", TRACEBACK + "ValueError: from the log\n")
    assert [one.text for one in causes(gathered(tmp_path))] == ["ValueError: from the log"]


@pytest.mark.parametrize("name", ["exit.json", "ranks/0/error.json"])
@pytest.mark.parametrize("text", [b"{", b"[" * 200_000, b"\xff\xfe", b"[]", b'{"message": 3}'])
def test_broken_records_are_unread_not_fatal(tmp_path, name, text):
    """A torn or foreign record is never an exception."""
    write(tmp_path, name, text)
    found = gathered(tmp_path)
    assert found.hits == ()


def test_what_cannot_be_read_is_said(tmp_path):
    """A folder in a log's place is named in `unread`."""
    (tmp_path / "ranks/0/stderr.log").mkdir(parents=True)
    os.mkfifo(tmp_path / "launcher.log")
    unread = " ".join(gathered(tmp_path).unread)
    assert "ranks/0/stderr.log" in unread
    assert "launcher.log" in unread


def test_a_fifo_among_the_records_holds_nobody(tmp_path):
    """Pipes in the place of records are unread, and the logs are read all the same."""
    for name in ("exit.json", "ranks/0/error.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    write(tmp_path, "ranks/1/stderr.log", OOM)
    found = gathered(tmp_path)
    assert {unread.split(":")[0] for unread in found.unread} == {"exit.json", "ranks/0/error.json"}
    assert [hit.rank for hit in found.hits] == [1]


def test_bounded_whatever_the_size(tmp_path):
    """Logs of a hundred megabytes are read in seconds, their ends included, and the gap said."""
    line = b"step 1 | loss 0.5 | error rate 0.1\n"
    for rank in (0, 1):
        write(tmp_path, f"ranks/{rank}/stderr.log", line * 2_000_000)
    with (tmp_path / "ranks/1/stderr.log").open("a") as stream:
        stream.write(OOM)
    started = time.process_time()
    found = gathered(tmp_path)
    assert time.process_time() - started < 2.0
    assert diagnose(found).kind is Kind.CUDA_OOM
    assert "were not read" in found.unread[0]


def test_survived_error_is_context(tmp_path):
    """An error that many steps follow did not end the run; right before the end it did."""
    steps = "".join(f"step {step} loss 0.5\n" for step in range(40))
    survived = TRACEBACK + "ValueError: bad sample\n"
    write(tmp_path, "ranks/0/stderr.log", survived + steps)
    assert [hit.role for hit in causes(gathered(tmp_path))] == [Role.CONTEXT]
    assert gathered(tmp_path).progress_seen
    write(tmp_path, "ranks/0/stderr.log", steps + survived)
    assert [hit.role for hit in causes(gathered(tmp_path))] == [Role.ROOT]


def test_bare_exception_name_counts_only_near_the_end(tmp_path):
    """An exception's name without a traceback is a cause at the end of a log, not amid it."""
    bare, filler = "ValueError: bad sample\n", "reading shard\n" * 40
    write(tmp_path, "ranks/0/stderr.log", bare + filler)
    assert gathered(tmp_path).hits == ()
    write(tmp_path, "ranks/0/stderr.log", filler + bare)
    assert [hit.text for hit in gathered(tmp_path).hits] == ["ValueError: bad sample"]


def test_words_in_user_data_are_no_failure(tmp_path):
    """Training text about errors is text."""
    text = 'sample: "He said ValueError: is an exception"\nprompt: CUDA error handling\n' * 3
    write(tmp_path, "ranks/0/stdout.log", text + "step 3 loss 0.2\n" * 40)
    assert [hit for hit in gathered(tmp_path).hits if hit.role is not Role.CONTEXT] == []


def test_faulthandler_stack_below_its_title(tmp_path):
    """A crash's own frame is read from the stack under "Fatal Python error"."""
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x0000df5922093368 (most recent call first):\n"
        '  File "/env/lib/python3.11/site-packages/cv2/x.py", line 7 in resize\n'
        '  File "/w/data.py", line 78 in read\n'
    )
    write(tmp_path, "ranks/0/stderr.log", text)
    (hit,) = causes(gathered(tmp_path))
    assert (hit.kind, hit.frame) == (Kind.SEGFAULT, "data.py:78 in read")


@pytest.mark.parametrize(
    ("flooded", "found"), [(["1/stdout.log"], True), (["0/stderr.log", "1/stdout.log"], False)]
)
def test_all_files_share_a_number_of_lines_that_are_looked_at(tmp_path, flooded, found):
    """Of a flood of different errors the first and last are read; what others leave is for it."""
    digits = str.maketrans("0123456789", "ghijklmnop")
    flood = [f"ValueError: {number:06}\n".translate(digits) for number in range(14_000)]
    flood[10_000] = "OSError: [Errno 28] No space left on device\n"
    for name in flooded:
        write(tmp_path, f"ranks/{name}", "".join(flood))
    hits = gathered(tmp_path).hits
    assert any(hit.kind is Kind.DISK_FULL for hit in hits) == found
