# ruff: noqa: ISC004, RUF001 - long lines of launchers; Chinese shells print full-width parentheses
"""How ranks and jobs ended, as launchers, schedulers and shells of every kind print it."""

import pytest

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import ExitStatus
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.scan import Scan, Scanner


def scan(text: str) -> Scan:
    """Scan a text as one file."""
    scanner = Scanner(load_catalogue(), "a.log")
    scanner.feed(Block(1, text.encode().split(b"\n")))
    return scanner.finish()


def ends(text):
    """Return rank -> (code, signal, pid) of a text, and the rank said to be the first."""
    result = scan(text)
    exits = {
        rank: (exit_.status.code, exit_.status.signal, exit_.pid)
        for rank, exit_ in result.exits.items()
    }
    return exits, result.first_dead


TORCH_1_9 = """\
*****************************************
           train.py FAILED
=======================================
Root Cause:
[0]:
  time: 2021-07-20_10:01:02
  rank: 3 (local_rank: 3)
  exitcode: -11 (pid: 4244)
  error_file: <N/A>
  msg: "Signal 11 (SIGSEGV) received by PID 4244"
=======================================
Other Failures:
[1]:
  time: 2021-07-20_10:01:02
  rank: 1 (local_rank: 1)
  exitcode: 1 (pid: 4242)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
*****************************************
"""
TORCH_2_2 = """\
[2024-02-24 07:37:50,964] torch.distributed.elastic.multiprocessing.api: [ERROR] failed \
(exitcode: -9) local_rank: 1 (pid: 77) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2024-02-24_07:37:50
  host      : node1
  rank      : 8 (local_rank: 0)
  exitcode  : 1 (pid: 76)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-02-24_07:37:49
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 77)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 77
============================================================
"""
TORCH_2_9 = """\
[rank0]:E0102 03:04:05.000000 10 torch/distributed/elastic/multiprocessing/api.py:984] failed \
(exitcode: 1) local_rank: 0 (pid: 4242) of binary: /opt/venv/bin/python
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-11-02_03:04:05
  host      : node1
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 4242)
  error_file: /tmp/torchelastic_x/none_y/attempt_0/0/error.json
  traceback : Traceback (most recent call last):
    File "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/multiprocessing/errors/\
__init__.py", line 362, in wrapper
      return f(*args, **kwargs)
    File "/app/train.py", line 84, in main
      raise ValueError("bad shape")
  ValueError: bad shape
============================================================
"""


def test_torchruns_box_of_1_9():
    """The first form of the block has its root cause above the other failures."""
    assert ends(TORCH_1_9) == ({3: (None, 11, 4244), 1: (1, None, 4242)}, 3)


def test_torchruns_block_of_2_2():
    """Global ranks replace the local ones of the line before; the root cause died first."""
    assert ends(TORCH_2_2) == ({8: (1, None, 76), 9: (None, 9, 77)}, 9)


def test_torchruns_block_holds_the_traceback():
    """An exception inside the block belongs to the rank of its entry, with its own frame."""
    result = scan(TORCH_2_9)
    [hit] = [hit for hit in result.hits if hit.text.strip() == "ValueError: bad shape"]
    assert (hit.rank, hit.frame) == (2, "train.py:84 in main")
    assert ends(TORCH_2_9) == ({2: (1, None, 4242)}, 2)


def test_behind_the_block_nobody_is_meant():
    """What follows the block's last rule is of no rank."""
    later = TORCH_2_9 + "RuntimeError: CUDA error: out of memory\n"
    assert [hit.rank for hit in scan(later).hits if "out of memory" in hit.text] == [None]


@pytest.mark.parametrize(
    ("text", "exits"),
    [
        ("failed (exitcode: -11) local_rank: 0 (pid: 5) of binary: python", {0: (None, 11, 5)}),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal "
            "SIGKILL",
            {1: (None, 9, 0)},
        ),
        ("Exception: process 2 terminated with exit code 1", {2: (1, None, 0)}),
        ("srun: error: node1: task 3: Killed", {3: (None, 9, 0)}),
        ("srun: error: node1: task 3: Out Of Memory", {3: (None, 9, 0)}),
        (
            "srun: error: node1: task 0: Segmentation fault (core dumped)",
            {0: (None, 11, 0)},
        ),
        (
            "srun: error: gpu-node1: tasks 0-1,3: Exited with exit code 2",
            {0: (2, None, 0), 1: (2, None, 0), 3: (2, None, 0)},
        ),
        ("0: srun: error: node1: task 1: Aborted (core dumped)", {1: (None, 6, 0)}),
    ],
)
def test_the_end_of_a_rank(text, exits):
    """Each launcher's words name the rank and how it ended."""
    assert ends(text)[0] == exits


@pytest.mark.parametrize(
    ("text", "exits"),
    [
        (
            "mpirun noticed that process rank 1 with PID 4242 on node host1 exited on signal 9 "
            "(Killed).",
            {1: (None, 9, 4242)},
        ),
        ("Process name: [[123,1],3]\n  Exit code:    2", {3: (2, None, 0)}),
        ("Process name: 0\nExit code: 1", {0: (1, None, 0)}),
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
            "=   RANK 2 PID 4242 RUNNING AT host1\n=   KILLED BY SIGNAL: 9 (Killed)",
            {2: (None, 9, 4242)},
        ),
        (
            "=   RANK 2 PID 4242 RUNNING AT host1\n=   EXIT CODE: 1",
            {2: (1, None, 4242)},
        ),
    ],
)
def test_mpi_names_the_first(text, exits):
    """Launchers of MPI report the process that failed first, and only that."""
    assert ends(text) == (exits, next(iter(exits)))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[launch.py:321:sigkill_handler] ['python'] exits with return code = -9", (None, 9)),
        ("subprocess.CalledProcessError: Command '['python', 't.py']' died with "
         "<Signals.SIGSEGV: 11>.", (None, 11)),
        ("subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.",
         (1, None)),
        ("Child process with PID 4242 terminated with code 1. Forcefully terminating all other "
         "processes to avoid zombies", (1, None)),
        ("Killed", (None, 9)),
        ("train.sh: line 5: 12345 Killed                  python train.py", (None, 9)),
        ("/job/script.sh: line 184: 2324239 Aborted                 (core dumped) litgpt pretrain",
         (None, 6)),
        ("bash: line 1: 4242 Segmentation fault      (core dumped) python train.py", (None, 11)),
        ("Segmentation fault (core dumped)", (None, 11)),
        ("Aborted (core dumped)", (None, 6)),
        ("Bus error (core dumped)", (None, 7)),
        ("Bus error", (None, 7)),
        ("Segmentation fault: 11", (None, 11)),
        ("Illegal instruction (core dumped)", (None, 4)),
        ("zsh: killed     python train.py", (None, 9)),
        ("zsh: segmentation fault (core dumped)  python train.py", (None, 11)),
        ("[1]  + 12345 killed     python train.py", (None, 9)),
        ("[1]+  Killed                  python train.py", (None, 9)),
        ("fish: Job 1, 'python train.py' terminated by signal SIGKILL (Forced quit)", (None, 9)),
        ("trainer-1 exited with code 137", (137, None)),
        ("      Exit Code:    137", (137, None)),
        ('        "exitCode": 137,', (137, None)),
        ("Command terminated by signal 9", (None, 9)),
        (
            "W1212 04:02:33.403934 24044 init.cc:205] *** SIGSEGV (@0x0) received by PID 24044 "
            "(TID 0x7f6406bd7740) from PID 0; stack trace: ***",
            (None, 11),
        ),
        ("Speicherzugriffsfehler (Speicherabzug geschrieben)", (None, 11)),
        ("Getötet", (None, 9)),
        ("Abgebrochen (Speicherabzug geschrieben)", (None, 6)),
        ("Erreur de segmentation (core dumped)", (None, 11)),
        ("Processus arrêté", (None, 9)),
        ("Violación de segmento (`core' generado)", (None, 11)),
        ("段错误 (核心已转储)", (None, 11)),
        ("段错误（核心已转储）", (None, 11)),
        ("已杀死", (None, 9)),
        ("run.sh: 行 3: 4242 已杀死                  python train.py", (None, 9)),
        ("run.sh: Zeile 3: 4242 Getötet                 python train.py", (None, 9)),
        ("Ошибка сегментирования (образ памяти сброшен на диск)", (None, 11)),
        ("強制終了", (None, 9)),
    ],
)  # fmt: skip
def test_the_end_of_a_job(text, status):
    """Shells and launchers tell how the job as a whole ended, in any language."""
    assert scan(f"step 1\n{text}\n").job == ExitStatus(*status)


def test_an_old_encoding_is_read_too():
    """A shell in an old Western locale is understood."""
    scanner = Scanner(load_catalogue(), "a.log")
    scanner.feed(Block(1, [b"step 1", "Getötet".encode("latin-1")]))
    assert scanner.finish().job == ExitStatus(signal=9)


@pytest.mark.parametrize(
    "text",
    [
        "Killed 3 stale workers",
        "Aborted!",
        "Segmentation model loaded (core)",
        "Terminated the old run",
        "killed",
        "trainer-1 exited with code 0",
        "Exit code of the hook: fine",
        "the process was killed by SIGKILL by OOM killer",
    ],
)
def test_other_words_are_no_end(text):
    """Sentences that hold such a word say nothing about the job."""
    assert scan(text).job is None


@pytest.mark.parametrize("order", [1, -1])
def test_the_most_telling_report_stays(order):
    """A crash that one launcher names is not hidden by the plain 1 of the next, nor by SIGTERM."""
    lines = [
        "returned non-zero exit status 1.",
        "exits with return code = -11",
        "exits with return code = -15",
    ][::order]
    assert scan("\n".join(lines)).job == ExitStatus(signal=11)


def test_tasks_of_slurm_do_not_hide_ranks():
    """Where torchrun named the ranks, srun's task numbers (one a node) mean something else."""
    text = TORCH_2_2 + "srun: error: node1: task 8: Exited with exit code 5\n"
    assert ends(text) == ends(TORCH_2_2)


def test_a_long_list_of_tasks_is_bounded():
    """A range of a million tasks costs no more than some thousand."""
    text = "srun: error: n: tasks 0-9999999: Exited with exit code 1"
    assert len(scan(text).exits) <= 1_100
