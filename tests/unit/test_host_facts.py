"""What the host did to an attempt: noted, captured, kept, and read again from its folder."""

import json
import os
import time
from pathlib import Path

import pytest

from humigence_supervise import proc
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import (
    Confidence,
    Evidence,
    ExitStatus,
    Gpu,
    GpuState,
    Hit,
    Kind,
    RankExit,
    Role,
)
from humigence_supervise.observe.evidence import gather
from humigence_supervise.observe.host_facts import (
    HOST_FILE,
    KERNEL_LOG,
    START_FILE,
    capture,
    note_start,
    noted_levels,
)
from humigence_supervise.reading import diagnosis_document, diagnosis_text
from humigence_supervise.which_gpu import which_gpu

AT = "2026-12-01T02:42:08.795761Z "
KILL = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1kB, UID:0 pgtables:1kB"
XID = "NVRM: Xid (PCI:0000:{}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SEGFAULT = "pt_autograd_0[{}]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch_cuda.so[7f+1]"
READONLY = "EXT4-fs (sda1): Remounting filesystem read-only"
GPUS = (
    Gpu(0, "GPU-aa", "RTX", None, None, "0000:01:00"),
    Gpu(1, "GPU-bb", "RTX", None, None, "0000:41:00"),
)
KILLED = {1: RankExit(1, 4243, ExitStatus(signal=9))}


def write(folder, name, text):
    """Write one file of the attempt."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def gathered(folder, **facts):
    """Gather with nothing known but what stands in the folder."""
    unknown = ("accelerator", "first_dead", "first_step", "last_step", "target_step")
    known = dict.fromkeys((*unknown, "disk_free_mib")) | {"world_size": 2, "rank_exits": {}}
    return gather(folder, **(known | {"stop_requested": False, "hang_suspected": False} | facts))


def attempt(folder, *kernel, gpus=GPUS, **host):
    """Write what a capture left in an attempt's folder."""
    facts = {"oom_kills": 0, "pids_comparable": True, "unread": [], **host}
    write(folder, HOST_FILE, json.dumps(facts))
    write(folder, KERNEL_LOG, "".join(f"{AT}{line}\n" for line in kernel))
    planned = [{"index": g.index, "uuid": g.uuid, "name": g.name, "bus_id": g.bus_id} for g in gpus]
    write(folder, "plan.json", json.dumps({"world_size": 2, "gpus": planned}))
    write(folder, "exit.json", json.dumps({"launcher": {"pid": 4200, "code": 1, "signal": None}}))
    return folder


def found_in(folder, **facts):
    """Gather and diagnose."""
    evidence = gathered(folder, **facts)
    return evidence, diagnose(evidence)


# --- the kernel's log ---------------------------------------------------------------------------


def test_the_kernel_names_a_rank(tmp_path):
    """Certain, with the line, the rank and the time the kernel wrote it."""
    attempt(tmp_path, KILL.format(999), KILL.format(4243))
    evidence, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert evidence.host_oom_pids == (999, 4243)
    assert (found.kind, found.confidence, found.rank) == (Kind.HOST_OOM, Confidence.CERTAIN, 1)
    assert found.root is not None
    assert (found.root.file, found.root.line) == (KERNEL_LOG, 2)
    assert found.root.at_s == pytest.approx(1796092928.795761)
    assert found.gpu == "GPU-bb"


@pytest.mark.parametrize("line", [KILL.format(999), KILL.format(42430), SEGFAULT.format(999)])
def test_a_stranger_of_the_machine_is_no_cause(tmp_path, line):
    """What the kernel did to other processes is not what happened to this attempt."""
    attempt(tmp_path, line)
    evidence, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert [hit for hit in evidence.hits if hit.file == KERNEL_LOG] == []
    assert found.kind is Kind.UNKNOWN


def test_pids_of_another_namespace_prove_nothing(tmp_path):
    """In a container an equal number is another process; that is said, and only when it matters."""
    attempt(tmp_path, KILL.format(4243), pids_comparable=False)
    evidence, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert (evidence.host_oom_pids, found.kind) == ((), Kind.UNKNOWN)
    assert "pids of the host" in " ".join(found.unread)
    attempt(tmp_path, XID.format("99"), pids_comparable=False)
    assert found_in(tmp_path)[0].unread == ()


def test_a_dataloader_worker_the_kernel_killed(tmp_path):
    """The worker's pid stands in the rank's own text; without the record it is a DataLoader's."""
    text = "RuntimeError: DataLoader worker (pid {}) is killed by signal: Killed. \n"
    exits = {0: RankExit(0, 4242, ExitStatus(code=1))}
    attempt(tmp_path, KILL.format(77))
    write(tmp_path, "ranks/0/stderr.log", text.format(77))
    _, found = found_in(tmp_path, rank_exits=exits, first_dead=0)
    assert (found.kind, found.confidence, found.rank) == (Kind.HOST_OOM, Confidence.CERTAIN, 0)
    write(tmp_path, "ranks/0/stderr.log", text.format(78))
    _, found = found_in(tmp_path, rank_exits=exits, first_dead=0)
    assert found.kind is Kind.DATALOADER


def test_xids_of_the_attempts_gpus_only(tmp_path):
    """Rank and GPU come from the bus id; another GPU's fault is not ours."""
    attempt(tmp_path, XID.format("41"))
    _, found = found_in(tmp_path, rank_exits={0: RankExit(0, 1, ExitStatus(code=1))})
    assert (found.kind, found.rank, found.gpu) == (Kind.GPU_FAULT, 1, "GPU-bb")
    attempt(tmp_path, XID.format("81"))
    _, found = found_in(tmp_path, rank_exits={0: RankExit(0, 1, ExitStatus(code=1))})
    assert found.kind is not Kind.GPU_FAULT


def test_lines_without_a_row_are_told_as_context(tmp_path):
    """A disk's trouble always, a crash only where a rank ended by one (it names a thread)."""
    attempt(tmp_path, READONLY, SEGFAULT.format(5))
    _, found = found_in(tmp_path, rank_exits={0: RankExit(0, 1, ExitStatus(signal=11))})
    assert [text for text in found.context if "libtorch_cuda" in text or "read-only" in text] == [
        f"The kernel's log says ({KERNEL_LOG}:1): {READONLY}",
        f"The kernel's log says ({KERNEL_LOG}:2): {SEGFAULT.format(5)}",
    ]
    _, found = found_in(tmp_path, rank_exits={0: RankExit(0, 1, ExitStatus(code=1))})
    assert "libtorch_cuda" not in " ".join(found.context)


# --- the cgroup's counter -----------------------------------------------------------------------


def test_a_counted_kill_and_a_sigkill_are_likely_one(tmp_path):
    """Only both together, and only when nothing of ours sent the signal."""
    attempt(tmp_path, oom_kills=1, pids_comparable=False)
    _, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert (found.kind, found.confidence, found.rank) == (Kind.HOST_OOM, Confidence.LIKELY, 1)
    aborted = {1: RankExit(1, 4243, ExitStatus(signal=6))}
    for facts in (
        {"rank_exits": KILLED, "first_dead": 0},  # the launcher cleared it away
        {"rank_exits": aborted, "first_dead": 1},
        {"rank_exits": KILLED, "first_dead": 1, "stop_requested": True},
        {"rank_exits": KILLED, "first_dead": 1, "hang_suspected": True},
    ):
        assert found_in(tmp_path, **facts)[1].kind is not Kind.HOST_OOM
    attempt(tmp_path, oom_kills=0)
    assert found_in(tmp_path, rank_exits=KILLED, first_dead=1)[1].kind is Kind.UNKNOWN


def test_a_counted_kill_that_the_log_names_is_not_the_ranks(tmp_path):
    """The kernel killed one process, and says which: not this rank."""
    attempt(tmp_path, KILL.format(999), oom_kills=1)
    evidence, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert (evidence.unnamed_oom_kills, found.kind) == (0, Kind.UNKNOWN)
    attempt(tmp_path, KILL.format(999), oom_kills=2)
    assert found_in(tmp_path, rank_exits=KILLED, first_dead=1)[1].kind is Kind.HOST_OOM


def test_an_unknown_count_is_unknown(tmp_path):
    """Not zero: and why it is unknown stands in the diagnosis."""
    attempt(tmp_path, oom_kills=None, unread=["kills for memory are not counted: because"])
    evidence, found = found_in(tmp_path, rank_exits=KILLED, first_dead=1)
    assert evidence.unnamed_oom_kills is None
    assert found.unread == ("kills for memory are not counted: because",)


# --- the GPUs -----------------------------------------------------------------------------------


def test_a_lost_gpu_of_the_attempt_is_the_cause(tmp_path):
    """A GPU that is gone tells no UUID; the plan knows it by its index."""
    crash = {0: RankExit(0, 1, ExitStatus(code=1))}
    write(tmp_path, "ranks/0/stderr.log", "ValueError: strange\n")
    attempt(tmp_path)
    lost = {"index": 1, "error": "GPU is lost"}
    for states, kind in (
        ([{"index": 0, "uuid": "GPU-aa"}, lost], Kind.GPU_FAULT),
        ([{"index": 7, "error": "GPU is lost"}], Kind.USER_CODE),
        ([{"index": 1, "error": "Insufficient Permissions"}], Kind.USER_CODE),
        ([{"index": 1, "uuid": "GPU-bb"}], Kind.USER_CODE),
    ):
        write(tmp_path, HOST_FILE, json.dumps({"gpus": states}))
        _, found = found_in(tmp_path, rank_exits=crash, first_dead=0)
        assert found.kind is kind, states
    write(tmp_path, HOST_FILE, json.dumps({"gpus": [lost]}))
    _, found = found_in(tmp_path, rank_exits=crash, first_dead=0)
    assert (found.rank, found.gpu) == (1, "GPU-bb")
    assert "GPU 1 (GPU-bb): GPU is lost" in found.reason


def test_what_is_odd_about_the_attempts_gpus_is_told(tmp_path):
    """Processes left on them, ECC errors, repairs due, heat; nothing where all is well."""
    odd = {
        "index": 1,
        "uuid": "GPU-bb",
        "total_mib": 32607,
        "used_mib": 31000,
        "processes": [{"pid": 77, "used_mib": 30000}, {"pid": 78, "used_mib": None}],
        "ecc_uncorrected": 3,
        "recovery": "reset the GPU",
        "throttled": ["too hot (hardware)"],
        "temperature_c": 97,
    }
    fine = {"index": 0, "uuid": "GPU-aa", "used_mib": 500, "processes": [], "recovery": ""}
    foreign = odd | {"index": 2, "uuid": "GPU-cc"}
    attempt(tmp_path)
    write(tmp_path, HOST_FILE, json.dumps({"gpus": [fine, odd, foreign]}))
    (told,) = found_in(tmp_path)[1].context
    assert told == (
        "GPU 1 (GPU-bb) after the attempt: 31000 of 32607 MiB used, by pid 77 (30000 MiB), pid 78; "
        "3 uncorrected ECC errors since the driver was loaded; the driver wants: reset the GPU; "
        "slowed down: too hot (hardware), 97 degrees C."
    )


@pytest.mark.parametrize(
    ("text", "rank", "gpu"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. GPU 1 has a total capacity of 31 GiB", 0, 1),
        ("RuntimeError: CUDA out of memory. (GPU 0; 10.76 GiB total capacity;", None, 0),
        ("RuntimeError: on cuda:1 failed", None, 1),
        ("tensors on cuda:0 and cuda:1", 1, 1),
        ("tensors on cuda:0 and cuda:1", None, None),
        ("NVRM: Xid (PCI:0000:41:00): 79, GPU lost", None, 1),
        ("ValueError: bad", 1, 1),
        ("ValueError: bad", 7, None),
        ("ValueError: bad", None, None),
    ],
)
def test_which_gpu(text, rank, gpu):
    """The text's, in the order of the plan, else the rank's."""
    hit = Hit("x", Kind.UNKNOWN, Role.ROOT, rank, "f", 1, text)
    uuid = None if gpu is None else GPUS[gpu].uuid
    assert which_gpu(Evidence(gpus=GPUS), hit, rank) == uuid


def test_without_a_plan_the_text_is_all_there_is():
    """An index or a bus id, as it stands there; the driver may know the bus id's UUID."""
    oom = Hit("x", Kind.UNKNOWN, Role.ROOT, 0, "f", 1, "GPU 3 has a total capacity of 1 GiB")
    xid = Hit("x", Kind.UNKNOWN, Role.ROOT, 0, "f", 1, "NVRM: Xid (PCI:0000:C1:00): 79")
    assert which_gpu(Evidence(), oom, 0) == "3"
    assert which_gpu(Evidence(), xid, None) == "0000:c1:00"
    known = Evidence(gpu_states=(GpuState(5, "GPU-ee", "0000:c1:00"),))
    assert which_gpu(known, xid, None) == "GPU-ee"


# --- dumps, error files -------------------------------------------------------------------------


def test_flight_recorder_dumps_are_told_and_never_loaded(tmp_path):
    """Rank, size and time; a pickle that would act when it is loaded does not."""
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "acted").encode() + b"'\ntR."
    write(tmp_path, "flight_rank_1", evil)
    write(tmp_path, "flight_rank_0", b"x" * 10)
    write(tmp_path, "flight_rank_x", b"")
    os.utime(tmp_path / "flight_rank_0", (1e9, 1e9))
    (told,) = found_in(tmp_path)[1].context
    assert told.startswith(f"Flight-recorder dumps of ranks 0, 1 are in {tmp_path} (")
    assert "flight_rank_0: 10 bytes, 2001-09-09T01:46:40Z; flight_rank_1: " in told
    assert not (tmp_path / "acted").exists()


STACK = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in main\nValueError: x'


@pytest.mark.parametrize(
    "record",
    [
        {"message": STACK, "timestamp": 1700000000},
        {"message": {"message": STACK, "timestamp": "1700000000"}},
        {"message": {"message": "x", "extraInfo": {"py_callstack": STACK, "timestamp": 1.7e9}}},
        {
            "message": {
                "message": "ValueError: x",
                "errorCode": 1,
                "extraInfo": {"py_callstack": STACK, "timestamp": "1700000000"},
            }
        },
        {"message": "x", "extraInfo": {"py_callstack": STACK, "timestamp": "1700000000"}},
    ],
)
def test_every_shape_of_an_error_file(tmp_path, record):
    """Text and time are found wherever a version puts them."""
    write(tmp_path, "ranks/0/error.json", json.dumps(record))
    hits = [hit for hit in gathered(tmp_path).hits if hit.kind is Kind.USER_CODE]
    assert [(hit.text, hit.at_s) for hit in hits] == [("ValueError: x", 1.7e9)]


@pytest.mark.parametrize("timestamp", [None, "", "soon", "nan", "1e400", -5, 1e30, [], True])
def test_odd_times_are_unknown(tmp_path, timestamp):
    """The text counts all the same."""
    record = {"message": {"message": STACK, "extraInfo": {"timestamp": timestamp}}}
    write(tmp_path, "ranks/0/error.json", json.dumps(record))
    hits = [hit for hit in gathered(tmp_path).hits if hit.kind is Kind.USER_CODE]
    assert [hit.at_s for hit in hits] == [None]


def test_documents_and_texts_say_it(tmp_path):
    """What was not read, the GPU and the context stand in both forms of `diagnose`."""
    attempt(tmp_path, XID.format("41"), unread=["the kernel's log was not read"])
    write(tmp_path, "flight_rank_0", b"x")
    _, found = found_in(tmp_path, rank_exits={0: RankExit(0, 1, ExitStatus(code=1))})
    document = diagnosis_document(str(tmp_path), found)
    assert document["gpu"] == "GPU-bb"
    assert document["unread"] == ["the kernel's log was not read"]
    assert len(document["context"]) == 1
    text = diagnosis_text(str(tmp_path), found)
    for row in ("gpu       GPU-bb", "also      Flight-recorder", "not read  the kernel's log"):
        assert f"  {row}" in text


# --- noting and capturing -----------------------------------------------------------------------


def captured(folder):
    """Return what a capture kept."""
    return json.loads((folder / HOST_FILE).read_text())


def test_noted_then_captured_on_this_machine(tmp_path):
    """What this machine cannot tell is said; what it can is a number, and nothing was killed."""
    note_start(tmp_path)
    note = json.loads((tmp_path / START_FILE).read_text())
    assert note["boot_id"] == proc.boot_id()
    assert capture(tmp_path, (), tmp_path, failed=True) == ()
    facts = captured(tmp_path)
    assert facts["oom_kills"] in (0, None)
    told = " ".join(facts["unread"])
    assert (facts["oom_kills"] is None) == ("not counted" in told)
    assert ("pids_comparable" in facts) == ("kernel's log was not read" not in told)
    assert "gpus" not in facts


def test_a_later_supervisor_counts_from_the_note(tmp_path):
    """The rise since the attempt began, whoever asks; once captured, it stays as it was."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 5\n")
    note = {"boot_id": proc.boot_id(), "cgroup": {"file": str(counter), "oom_kill": 3}}
    write(tmp_path, START_FILE, json.dumps(note))
    capture(tmp_path, (), tmp_path, failed=False)
    assert captured(tmp_path)["oom_kills"] == 2
    counter.write_text("oom_kill 9\n")
    capture(tmp_path, (), tmp_path, failed=False)
    assert captured(tmp_path)["oom_kills"] == 2


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (None, "was not noted"),
        ([], "was not noted"),
        ({"boot_id": "another"}, "booted anew"),
        ({"boot_id": True, "cgroup": {"file": "/none", "oom_kill": 1}}, "not counted: /none"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, note, words):
    """No note, one of another boot, a cgroup that is gone."""
    if isinstance(note, dict) and note["boot_id"] is True:
        note["boot_id"] = proc.boot_id()
    if note is not None:
        write(tmp_path, START_FILE, json.dumps(note))
    capture(tmp_path, (), tmp_path, failed=True)
    facts = captured(tmp_path)
    assert facts["oom_kills"] is None
    assert words in " ".join(facts["unread"])


def test_what_cannot_be_kept_is_said(tmp_path):
    """A folder that takes no file stops neither the start nor the diagnosis."""
    (tmp_path / "incident").write_text("in the way")
    note_start(tmp_path)
    (told, *_) = capture(tmp_path, (), tmp_path, failed=True)
    assert "was not kept" in told


def test_a_capture_that_was_damaged_is_made_again(tmp_path):
    """A whole one is kept as it is: the kernel may have forgotten since."""
    note_start(tmp_path)
    write(tmp_path, HOST_FILE, "{")
    assert capture(tmp_path, (), tmp_path, failed=True) == ()
    kept = (tmp_path / HOST_FILE).read_text()
    assert "unread" in json.loads(kept)
    write(tmp_path, HOST_FILE, kept + " ")
    assert capture(tmp_path, (), tmp_path, failed=True) == ()
    assert (tmp_path / HOST_FILE).read_text() == kept + " "


@pytest.mark.parametrize("failed", [True, False])
def test_gpus_that_hang_delay_a_restart_by_less_than_two_seconds(tmp_path, monkeypatch, failed):
    """They are asked after a failure only, with one limit for all that is asked."""
    (tmp_path / "pynvml.py").write_text("import time; time.sleep(1000)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    note_start(tmp_path)
    begun = time.monotonic()
    capture(tmp_path, GPUS, tmp_path, failed=failed)
    took_s = time.monotonic() - begun
    assert took_s < 2.3
    assert ("gpus" in captured(tmp_path)) == failed
    assert ("did not answer within 1.5 s" in " ".join(captured(tmp_path)["unread"])) == failed


SMI = """#!/bin/sh
case "$1" in *query-gpu*)
echo "0, GPU-aa, 00000000:01:00.0, 32607, 612, 40, RTX"
echo "1, GPU-bb, 00000000:41:00.0, 32607, [N/A], 40, RTX"
echo "2, GPU-cc, 00000000:42:00.0, 32607, 3, 40, RTX"
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put a machine of three GPUs in the path; the second does not tell its memory."""
    folder = tmp_path / "machine"
    folder.mkdir()
    (folder / "pynvml.py").write_text("raise ImportError\n")
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.usefixtures("smi")
def test_the_memory_of_the_gpus_is_noted(tmp_path):
    """Of every GPU of the machine, since the next attempt may take others; unknown is said."""
    note_start(tmp_path, GPUS)
    assert noted_levels(tmp_path) == {"GPU-aa": 612, "GPU-cc": 3}
    capture(tmp_path, (), tmp_path, failed=False)
    said = [text for text in captured(tmp_path)["unread"] if "the memory in use" in text]
    assert said == [
        "the memory in use on GPU 1 before the attempt is unknown: the driver does not tell"
    ]


def test_gpus_that_nobody_can_ask_are_said_to_be_unknown(tmp_path, monkeypatch):
    """Neither NVML nor nvidia-smi: both are named."""
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    note_start(tmp_path, GPUS)
    assert noted_levels(tmp_path) == {}
    note = json.loads((tmp_path / START_FILE).read_text())
    (said,) = [text for text in note["unread"] if "GPU 0, 1 before the attempt" in text]
    assert "nvidia-ml-py is not installed; nvidia-smi gave no answer" in said


@pytest.mark.usefixtures("smi")
def test_an_attempt_without_gpus_asks_none(tmp_path):
    """On the CPU nothing is asked, and nothing is missed."""
    note_start(tmp_path)
    assert noted_levels(tmp_path) == {}
    assert "the memory in use" not in (tmp_path / START_FILE).read_text()


@pytest.mark.parametrize(
    "note", [None, [], {}, {"gpu_used_mib": [1]}, {"gpu_used_mib": {"a": "1", "b": -1, "c": True}}]
)
def test_levels_that_were_not_noted_are_unknown(tmp_path, note):
    """No file, an older one, a damaged one."""
    if note is not None:
        write(tmp_path, START_FILE, json.dumps(note))
    assert noted_levels(tmp_path) == {}


@pytest.mark.parametrize("name", [KERNEL_LOG, HOST_FILE, "plan.json"])
def test_a_fifo_in_the_place_of_a_file_holds_nobody(tmp_path, name):
    """Reading an attempt's folder ends, whatever stands there."""
    attempt(tmp_path, KILL.format(4243))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert found_in(tmp_path)[1].kind in Kind


@pytest.mark.parametrize("name", [HOST_FILE, START_FILE, "plan.json"])
@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"gpus": 5}', '{"gpus": [5, {"index": "x"}]}', '{"unread": 1}']
)
def test_damaged_files_are_no_crash(tmp_path, name, text):
    """What another program left there is unknown."""
    write(tmp_path, name, text)
    capture(tmp_path, (), Path("/none"), failed=False)
    assert found_in(tmp_path)[1].kind in Kind
