"""Evidence in, root cause out: the tables are the specification."""

from dataclasses import replace

import pytest

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import (
    Confidence,
    Evidence,
    ExitStatus,
    Hit,
    Kind,
    RankExit,
    Remedy,
)
from humigence_supervise.remedies import USUAL

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total "
    "capacity of 31.36 GiB of which 1.03 GiB is free."
)
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] "
    "Connection closed by peer [127.0.0.1]:43210"
)
TIMEOUT = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
)
STORE = "[c10d] recvValue failed on SocketImpl(fd=6): failed to recv, got 0 bytes"
IMPORT = "ModuleNotFoundError: No module named 'torchh'"
ARGUMENT = "train.py: error: unrecognized arguments: --lr0"
WORKER_CONFIG = "configuration error: data/train.jsonl:7: not valid JSON"
DISK = "OSError: [Errno 28] No space left on device: '/ckpt/model.safetensors'"
VALUE = "ValueError: too many values"
DIST = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled "
    "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7"
)


def hit(text, rank=None, line=1, *, at_s=None, frame=""):
    """Return the hit of a real line, as the catalogue reads it."""
    row = load_catalogue().match(text)
    assert row is not None, text
    return Hit(row.id, row.kind, row.role, rank, "stderr.log", line, text, at_s, frame)


def ended(rank, code=None, signal=None):
    """Return a rank's end; its pid is 100 + rank."""
    return RankExit(rank, 100 + rank, ExitStatus(code, signal))


def evidence(*hits, ranks=(), **facts):
    """Return evidence of an attempt of two ranks."""
    return Evidence(hits=tuple(hits), ranks=tuple(ranks), world_size=2, **facts)


def test_the_same_nccl_text_means_another_thing_after_the_first_step():
    """Before training a failed call of NCCL is a failed set-up; afterwards it is not."""
    at_start = evidence(hit(DIST, 1), ranks=BAD, first_step=10, last_step=10)
    trained = evidence(hit(DIST, 1), ranks=BAD, first_step=10, last_step=11)
    printed = evidence(hit(DIST, 1), ranks=BAD, progress_seen=True)
    kinds = [diagnose(one).kind for one in (at_start, trained, printed)]
    assert kinds == [Kind.NCCL_INIT, Kind.NCCL_INTERNAL, Kind.NCCL_INTERNAL]


BAD = (ended(0, code=1), ended(1, code=1))

TEXTS = [
    ("an OOM beats a closed connection", [hit(CLOSED, 0), hit(OOM, 1, 9)], Kind.CUDA_OOM, 1),
    ("a time-out beats a lost store", [hit(STORE, 1), hit(TIMEOUT, 0, 5)], Kind.NCCL_TIMEOUT, 0),
    (
        "a time-out beats a closed connection",
        [hit(CLOSED, 1), hit(TIMEOUT, 0)],
        Kind.NCCL_TIMEOUT,
        0,
    ),
    ("an exception beats a time-out", [hit(TIMEOUT, 0), hit(VALUE, 1)], Kind.USER_CODE, 1),
    ("a full disk beats an exception", [hit(VALUE, 0), hit(DISK, 1, 9)], Kind.DISK_FULL, 1),
    ("alone, a closed connection counts", [hit(CLOSED, 0)], Kind.NCCL_REMOTE, 0),
    ("alone, a NCCL wrapper counts", [hit(DIST, 1)], Kind.NCCL_INIT, 1),
    ("an import error", [hit(IMPORT, 0), hit(IMPORT, 1)], Kind.IMPORT_ERROR, 0),
    ("an unknown argument", [hit(ARGUMENT, 0)], Kind.CONFIG_ERROR, 0),
    ("the worker's own complaint", [hit(WORKER_CONFIG, 0)], Kind.CONFIG_ERROR, 0),
]


@pytest.mark.parametrize(
    ("hits", "kind", "rank"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS]
)
def test_root_before_symptom(hits, kind, rank):
    """The cause is found among its consequences, whatever stands first, in any order."""
    for order in (hits, hits[::-1]):
        found = diagnose(evidence(*order, ranks=BAD))
        assert found.kind is kind
        if len(hits) == 1 or hits[0].text != hits[1].text:
            assert found.rank == rank


ENDINGS = [
    ("SIGKILL alone is unknown", [ended(1, signal=9)], {"first_dead": 1}, Kind.UNKNOWN),
    ("a crash", [ended(1, signal=11)], {"first_dead": 1}, Kind.SEGFAULT),
    ("an abort without a text", [ended(1, signal=6)], {"first_dead": 1}, Kind.SEGFAULT),
    ("a bus error", [ended(1, signal=7)], {"first_dead": 1}, Kind.SEGFAULT),
    ("SIGTERM from outside", [ended(0, signal=15)], {"first_dead": 0}, Kind.PREEMPTED),
    ("143 without a stop", [ended(0, code=143)], {"first_dead": 0}, Kind.PREEMPTED),
    ("exit 78", [ended(0, code=78)], {"first_dead": 0}, Kind.CONFIG_ERROR),
    ("exit 1 without a text", [ended(0, code=1)], {"first_dead": 0}, Kind.UNKNOWN),
    ("137 from a shell", [ended(0, code=137)], {"first_dead": 0}, Kind.UNKNOWN),
    ("139 from a shell", [ended(0, code=139)], {"first_dead": 0}, Kind.SEGFAULT),
    ("a status nobody saw", [RankExit(0, 5, ExitStatus())], {}, Kind.UNKNOWN),
    (
        "all well, target reached",
        [ended(0, code=0)],
        {"last_step": 9, "target_step": 9},
        Kind.HEALTHY,
    ),
    (
        "all well, too early",
        [ended(0, code=0)],
        {"last_step": 8, "target_step": 9},
        Kind.PREMATURE_SUCCESS,
    ),
    ("all well, no target", [ended(0, code=0)], {}, Kind.HEALTHY),
    ("a hang", [], {"hang_suspected": True}, Kind.HANG),
    ("killed for memory", [ended(1, signal=9)], {"host_oom_pids": (101,)}, Kind.HOST_OOM),
    (
        "another process killed for memory",
        [ended(1, signal=9)],
        {"host_oom_pids": (7,)},
        Kind.UNKNOWN,
    ),
    ("stopped on request", [ended(0, code=143)], {"stop_requested": True}, Kind.PREEMPTED),
]


@pytest.mark.parametrize(
    ("ranks", "facts", "kind"), [row[1:] for row in ENDINGS], ids=[row[0] for row in ENDINGS]
)
def test_exits_alone(ranks, facts, kind):
    """Without any text, the ends of the ranks say what they can, and no more."""
    assert diagnose(evidence(ranks=ranks, **facts)).kind is kind


def test_killed_first_outweighs_what_the_others_say():
    """When rank 1 was seen to die first of a signal, rank 0's exceptions are consequences."""
    ranks = (ended(0, code=1), ended(1, signal=9))
    found = diagnose(evidence(hit(CLOSED, 0), hit(VALUE, 0), ranks=ranks, first_dead=1))
    assert (found.kind, found.rank) == (Kind.UNKNOWN, 1)
    assert "memory.events" in found.advice
    assert {one.rank for one in found.symptoms} == {0}
    seen_last = diagnose(evidence(hit(CLOSED, 0), ranks=ranks, first_dead=0))
    assert seen_last.kind is Kind.NCCL_REMOTE


def test_abort_is_explained_by_its_own_text():
    """SIGABRT after a time-out of any rank is its consequence; a lost connection is one of it."""
    ranks = (ended(0, signal=6),)
    for rank in (0, 1):
        timed_out = evidence(hit(TIMEOUT, rank), ranks=ranks, first_dead=0)
        assert diagnose(timed_out).kind is Kind.NCCL_TIMEOUT
    assert diagnose(evidence(hit(CLOSED, 0), ranks=ranks, first_dead=0)).kind is Kind.NCCL_REMOTE
    assert diagnose(evidence(hit(CLOSED, 1), ranks=ranks, first_dead=0)).kind is Kind.SEGFAULT


def test_bus_error_inside_nccl_is_shared_memory():
    """SIGBUS with NCCL frames is a full /dev/shm."""
    frames = hit("1 0x000000000008170d ncclGroupEnd()  ???:0", 0)
    assert diagnose(evidence(frames, ranks=(ended(0, signal=7),))).kind is Kind.SHM


def test_success_beats_scary_text():
    """A run that ended with 0 at its target is healthy, whatever its log says."""
    ranks = (ended(0, code=0), ended(1, code=0))
    found = diagnose(evidence(hit(OOM, 0), ranks=ranks, last_step=5, target_step=5))
    assert (found.kind, found.remedy) == (Kind.HEALTHY, Remedy.NONE)


def test_stop_request_is_never_restarted():
    """A stop is no failure, even if a rank complains while it goes."""
    found = diagnose(evidence(hit(CLOSED, 0), ranks=BAD, stop_requested=True))
    assert (found.kind, found.remedy) == (Kind.PREEMPTED, Remedy.NONE)


def test_earliest_stamp_wins_among_equals():
    """Of two causes of one strength, the earlier in time is the root."""
    late = hit(OOM, 0, at_s=20.0)
    early = hit(DISK, 1, at_s=10.0)
    assert diagnose(evidence(late, early, ranks=BAD)).kind is Kind.DISK_FULL
    assert diagnose(evidence(replace(late, at_s=5.0), early, ranks=BAD)).kind is Kind.CUDA_OOM


def test_first_exception_of_the_last_chain():
    """Survived tracebacks do not count, and in a chain the first exception is the cause."""
    survived = hit("KeyError: 'old'", 0, 10)
    first = hit("ValueError: first", 0, 500)
    second = hit("RuntimeError: second", 0, 510)
    assert diagnose(evidence(survived, first, second, ranks=BAD)).root == first


BROKEN_ALLOCATOR = (
    "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of "
    "which 201.87 GiB is free."
)
OOM_TEXTS = [
    ("too large a batch", OOM, Remedy.REDUCE_MICROBATCH, "no memory left"),
    (
        "a stranger holds the card",
        OOM + " Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this "
        "process has 10.00 GiB memory in use.",
        Remedy.WAIT_THEN_RETRY,
        "pid 4711",
    ),
    (
        "another rank is on the card",
        OOM + " Process 101 has 20.00 GiB memory in use. Including non-PyTorch memory, this "
        "process has 10.00 GiB memory in use.",
        Remedy.STOP_AND_TELL,
        "share one GPU",
    ),
    (
        "only this process is named",
        OOM + " Process 4711 has 30.00 GiB memory in use.",
        Remedy.REDUCE_MICROBATCH,
        "no memory left",
    ),
    (
        "the allocator is broken",
        BROKEN_ALLOCATOR,
        Remedy.STOP_AND_TELL,
        "at fault",
    ),
    (
        "fragmentation",
        OOM + " Of the allocated memory 15.00 GiB is allocated by PyTorch, and 12.00 GiB is "
        "reserved by PyTorch but unallocated.",
        Remedy.REDUCE_MICROBATCH,
        "reserved in pieces",
    ),
]


@pytest.mark.parametrize(
    ("text", "remedy", "said"), [row[1:] for row in OOM_TEXTS], ids=[row[0] for row in OOM_TEXTS]
)
def test_oom_says_who_holds_the_memory(text, remedy, said):
    """The sizes in the text tell apart what looks the same."""
    found = diagnose(evidence(hit(text, 0), ranks=BAD))
    assert (found.kind, found.remedy) == (Kind.CUDA_OOM, remedy)
    assert said in found.reason


@pytest.mark.parametrize(
    ("devices", "remedy"),
    [("cuda:0 and cuda:1", Remedy.FALLBACK_SINGLE_GPU), ("cpu and cuda:0", Remedy.STOP_AND_TELL)],
)
def test_mixed_devices(devices, remedy):
    """Between two GPUs one GPU helps; with the cpu only the program can."""
    text = f"RuntimeError: Expected all tensors to be on the same device, but found {devices}!"
    assert diagnose(evidence(hit(text, 0), ranks=BAD)).remedy is remedy


def test_fingerprint_folds_what_changes_between_two_times():
    """The same failure has one fingerprint; another line of code has another."""

    def fingerprint(text, frame):
        return diagnose(evidence(hit(text, 1, frame=frame), ranks=BAD)).fingerprint

    assert fingerprint("ValueError: 3", "train.py:84 in step") == fingerprint(
        "ValueError: 4", "train.py:84 in step"
    )
    assert fingerprint(VALUE, "train.py:84 in step") != fingerprint(VALUE, "data.py:3 in read")


def test_reason_names_rank_file_and_line():
    """A person reads who failed where, and what to do."""
    found = diagnose(evidence(hit(IMPORT, 1, frame="train.py:3 in <module>"), ranks=BAD))
    assert "torchh" in found.reason
    assert "rank 1" in found.reason
    assert "train.py:3" in found.reason
    assert found.advice
    assert found.confidence is Confidence.LIKELY or found.confidence is Confidence.CERTAIN


def test_unread_evidence_is_unknown_not_healthy():
    """Nothing found in files that could not be read proves nothing."""
    assert diagnose(Evidence(unread=("a.log: Permission denied",))).kind is Kind.UNKNOWN
    assert diagnose(Evidence()).kind is Kind.HEALTHY


def test_every_kind_has_its_usual_remedy():
    """The table of remedies is complete, and every sentence is one."""
    assert set(USUAL) == set(Kind)
    assert all(usual.means.endswith(".") and usual.advice.endswith(".") for usual in USUAL.values())


def test_an_attempt_of_which_nothing_is_known_is_not_healthy():
    """No exit status and no text: of a log that is no failure, of a watched attempt it is one."""
    assert diagnose(Evidence()).kind is Kind.HEALTHY
    assert diagnose(Evidence(world_size=1, last_step=12)).kind is Kind.UNKNOWN


OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; 7.79 GiB total capacity; "
    "{own} GiB already allocated; 23.94 MiB free; {own} GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    ("asked", "own", "remedy", "said"),
    [
        ("64.00 MiB", "2.20", Remedy.WAIT_THEN_RETRY, "Another process holds 5.6 GiB"),
        ("64.00 MiB", "7.10", Remedy.REDUCE_MICROBATCH, "no memory left"),
        ("130674.91 GiB", "7.10", Remedy.STOP_AND_TELL, "no card could hold"),
    ],
)
def test_the_sums_of_older_torch_tell_who_holds_the_memory(asked, own, remedy, said):
    """What is neither free nor torch's own is another's; a request beyond any card is a bug."""
    found = diagnose(evidence(hit(OLD_OOM.format(asked=asked, own=own), 0), ranks=BAD))
    assert (found.kind, found.remedy) == (Kind.CUDA_OOM, remedy)
    assert said in found.reason


def test_a_job_that_ended_well_survived_what_the_host_recorded():
    """A killed DataLoader worker is the cause of a failure only where there is one."""
    killed = hit("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ", 0)
    facts = {"host_oom_pids": (77,), "target_step": 10}
    well = evidence(killed, ranks=(ended(0, 0), ended(1, 0)), last_step=10, **facts)
    early = evidence(killed, ranks=(ended(0, 0), ended(1, 0)), last_step=5, **facts)
    assert diagnose(well).kind is Kind.HEALTHY
    assert diagnose(early).kind is Kind.HOST_OOM


def test_a_rank_told_to_end_after_a_crash_did_not_leave_early():
    """It may end with exit code 0; a peer's want is how others fail, but not by a crash."""
    steps = {"last_step": 5, "target_step": 10}
    crashed = evidence(ranks=(ended(0, 0), ended(1, signal=11)), **steps)
    failed = evidence(ranks=(ended(0, 0), ended(1, 1)), **steps)
    assert diagnose(crashed).kind is Kind.SEGFAULT
    assert diagnose(failed).kind is Kind.PREMATURE_SUCCESS


def test_the_end_of_the_launcher_blames_no_rank_of_several():
    """With one rank it is that one's; of two nobody knows."""
    killed = Evidence(launcher=ExitStatus(None, 11), world_size=2)
    assert diagnose(killed).rank is None
    assert "rank" not in diagnose(killed).reason
    assert diagnose(replace(killed, world_size=1)).rank == 0


def test_exit_78_quotes_only_what_speaks_of_a_configuration():
    """An OOM text is no reason for a refused configuration; the worker's own complaint is."""
    ranks = (ended(0, code=78),)
    bare = diagnose(evidence(hit(OOM, 0), ranks=ranks))
    assert (bare.kind, bare.root) == (Kind.CONFIG_ERROR, None)
    told = diagnose(evidence(hit(OOM, 0), hit(WORKER_CONFIG, 0, 9), ranks=ranks))
    assert told.root is not None
    assert told.root.text == WORKER_CONFIG
