import contextlib
import os
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from humigence_supervise.domain import Gpu
from humigence_supervise.observe.child_output import MAX_BYTES, NoAnswerError, ask
from humigence_supervise.observe.host import parse_query, read_host, visible

PYTHON = Path(sys.executable)
TWO_GPUS = """\
0, GPU-aa, NVIDIA GeForce RTX 5090, 32607, 31000, 575.57.08, 00000000:01:00.0
1, GPU-bb, NVIDIA GeForce RTX 5090, 32607, 20000, 575.57.08, 00000000:41:00.0
"""
PROC_INFORMATION = "Model: \t\t NVIDIA GeForce RTX 5090\nIRQ:   	 63\nGPU UUID: \t GPU-{}\n"
PROC_VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n"
    "GCC version:  gcc version 13.3.0\n"
)


def _fake_smi(folder, script):
    """Put a real child program called nvidia-smi on a PATH of its own, and return that PATH."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


def _answering(folder, text, code=0):
    answer = folder / "answer"
    answer.write_text(text)
    return _fake_smi(folder, f"cat {answer}; exit {code}")


def _proc(folder):
    """Return a folder as the kernel driver shows it, with two GPUs."""
    driver = folder / "proc"
    for bus, name in (("0000:01:00.0", "aa"), ("0000:41:00.0", "????-??")):
        (driver / "gpus" / bus).mkdir(parents=True)
        (driver / "gpus" / bus / "information").write_text(PROC_INFORMATION.format(name))
    (driver / "version").write_text(PROC_VERSION)
    return driver


def _read(environ, folder, timeout_s=5.0, proc="no-driver"):
    return read_host(PYTHON, timeout_s, environ=environ, proc_driver=folder / proc)


def test_gpus_are_read_from_nvidia_smi(tmp_path):
    """Index, UUID, name, memory and driver, asked from a real child program."""
    host = _read(_answering(tmp_path, TWO_GPUS), tmp_path)
    assert host.gpus == (
        Gpu(0, "GPU-aa", "NVIDIA GeForce RTX 5090", 32607, 31000, "0000:01:00"),
        Gpu(1, "GPU-bb", "NVIDIA GeForce RTX 5090", 32607, 20000, "0000:41:00"),
    )
    assert host.driver_version == "575.57.08"
    assert host.unread == ()


def test_nvidia_smi_is_asked_for_what_is_read(tmp_path):
    """The fields of the question are those of the answer, in order."""
    arguments = tmp_path / "arguments"
    _read(_fake_smi(tmp_path, f'echo "$@" > {arguments}'), tmp_path)
    assert arguments.read_text().split() == [
        "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version,pci.bus_id",
        "--format=csv,noheader,nounits",
    ]


def test_a_machine_without_nvidia_has_no_gpus_and_nothing_unread(tmp_path):
    """No program and no driver is an answer, not a failure."""
    host = _read({"PATH": str(tmp_path)}, tmp_path)
    assert host.gpus == ()
    assert host.driver_version is None
    assert host.unread == ()


def test_no_devices_is_an_answer(tmp_path):
    """The words of nvidia-smi on a driver without GPUs."""
    host = _read(_answering(tmp_path, "No devices were found\n"), tmp_path)
    assert (host.gpus, host.unread) == ((), ())


def test_a_hanging_nvidia_smi_costs_its_limit_and_leaves_no_process(tmp_path):
    """The child and what it started are gone, and the host says what was not read."""
    pids = tmp_path / "pids"
    environ = _fake_smi(tmp_path, f"echo $$ > {pids}; sleep 1000 & echo $! >> {pids}; wait")
    begun = time.monotonic()
    host = _read(environ, tmp_path, timeout_s=0.5)
    assert time.monotonic() - begun < 5
    assert host.gpus == ()
    assert "nvidia-smi did not answer within 0.5 s" in host.unread[0]
    for pid in map(int, pids.read_text().split()):
        _wait_until_gone(pid)


def _wait_until_gone(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(10)


def test_a_failing_nvidia_smi_is_told_with_its_words(tmp_path):
    """The exit code and the first line say what a person has to repair."""
    text = "Failed to initialize NVML: Driver/library version mismatch\nNVML library: 580\n"
    host = _read(_answering(tmp_path, text, code=18), tmp_path)
    assert host.gpus == ()
    assert "ended with 18: Failed to initialize NVML: Driver/library" in host.unread[0]


def test_the_drivers_own_files_answer_where_nvidia_smi_does_not(tmp_path):
    """GPUs in the order of the bus, memory unknown; a GPU the driver has not met by its index."""
    _proc(tmp_path)
    host = _read(_answering(tmp_path, "broken\n", code=9), tmp_path, proc="proc")
    assert host.gpus == (
        Gpu(0, "GPU-aa", "NVIDIA GeForce RTX 5090", None, None, "0000:01:00"),
        Gpu(1, "1", "NVIDIA GeForce RTX 5090", None, None, "0000:41:00"),
    )
    assert host.driver_version == "575.57.08"
    assert "ended with 9" in host.unread[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "0, GPU-aa",
        ",,,,,",
        "\x00\xff\n" * 100,
        "a" * 5000,
        "0,x,y,1,2,3",
        "-1,GPU-a,b,1,1,1",
    ],
)
def test_garbage_is_no_gpu(text):
    """Whatever is printed, there is no crash and no invented GPU."""
    reading = parse_query(text)
    assert reading.gpus == ()
    assert bool(reading.unread) == bool(text)


def test_odd_but_real_answers_are_read():
    """A name with a comma, memory that is shared with the host, and a warning above the list."""
    reading = parse_query(
        "WARNING: infoROM is corrupted\n"
        "0, GPU-aa, NVIDIA A, B, [N/A], [Not Supported], 580.1, [N/A]\n"
    )
    assert reading.gpus == (Gpu(0, "GPU-aa", "NVIDIA A, B", None, None),)
    assert "WARNING: infoROM" in reading.unread[0]


@pytest.mark.parametrize(
    ("selection", "indices", "told"),
    [
        (None, [0, 1, 2], False),
        ("0,1", [0, 1], False),
        ("2, 0", [2, 0], False),
        ("GPU-b", [1], False),
        ("", [], False),
        ("-1", [], False),
        ("0,-1,1", [0], False),
        ("0,7,1", [0], True),
        ("0,0", [0], True),
        ("GPU-", [], True),
        ("MIG-1234", [], True),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(selection, indices, told):
    """Order counts, a UUID may be shortened, and the first odd word ends the list."""
    gpus = tuple(Gpu(n, uuid, "x", 1, 1) for n, uuid in enumerate(("GPU-a1", "GPU-b1", "GPU-a2")))
    left, notes = visible(gpus, selection)
    assert [gpu.index for gpu in left] == indices
    assert bool(notes) == told


def test_gpus_hidden_from_the_supervisor_are_hidden_from_the_run(tmp_path):
    """CUDA_VISIBLE_DEVICES of the environment is respected."""
    environ = {**_answering(tmp_path, TWO_GPUS), "CUDA_VISIBLE_DEVICES": "1"}
    assert [gpu.uuid for gpu in _read(environ, tmp_path).gpus] == ["GPU-bb"]


def test_the_workers_torch_is_known_without_importing_it(tmp_path):
    """Its version is the installed one, read by the worker's own interpreter."""
    assert _read({"PATH": ""}, tmp_path).torch_version == metadata.version("torch")


def test_an_interpreter_without_torch_or_that_is_none_is_unknown(tmp_path):
    """Each is told; neither is a crash."""
    empty = tmp_path / "python"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    host = read_host(empty, environ={"PATH": ""}, proc_driver=tmp_path / "none")
    assert host.torch_version is None
    assert "has no torch" in host.unread[0]
    host = read_host(tmp_path / "no", environ={"PATH": ""}, proc_driver=tmp_path / "none")
    assert "cannot be started" in host.unread[0]


def test_cores_are_those_this_process_may_use(tmp_path):
    """An affinity mask counts, not the machine."""
    assert _read({"PATH": ""}, tmp_path).cpu_count == len(os.sched_getaffinity(0))


# --- asking a child -----------------------------------------------------------------------------


def test_a_child_that_answers():
    """Both streams come back as one text."""
    assert ask(("/bin/sh", "-c", "echo out; echo err >&2"), 10) == "out\nerr\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "ended with 3"),
        ("kill -9 $$", "ended with -9"),
        ("exec >&- 2>&-; sleep 1000", "did not answer"),
        (f"yes | head -c {2 * MAX_BYTES}; sleep 1000", "printed more than"),
    ],
)
def test_a_child_that_does_not(script, words):
    """Failing, closing its output, and flooding all end within the limit."""
    with pytest.raises(NoAnswerError, match=words):
        ask(("/bin/sh", "-c", script), 0.5)
