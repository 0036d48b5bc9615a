"""The state of the GPUs, asked from real children that answer, hang, crash or are not there."""

import contextlib
import os
import re
import textwrap
import time

import psutil
import pytest

from humigence_supervise.domain import GpuProcess
from humigence_supervise.observe.gpu_state import parse_probe, read_gpu_states, state_of

FAKE = '''
"""A pynvml of two GPUs."""
import os, time
class NVMLError(Exception):
    pass
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU = 1, 0, 0
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
class Bag:
    def __init__(self, **facts):
        self.__dict__.update(facts)
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(gpu): return b"GPU-aa" if gpu == 0 else "GPU-bb"
def nvmlDeviceGetPciInfo(gpu): return Bag(busId="00000000:%02X:00.0" % (gpu * 0x40 + 1))
def nvmlDeviceGetName(gpu): return "NVIDIA GeForce RTX 5090"
def nvmlDeviceGetMemoryInfo(gpu): return Bag(total=32607 << 20, used=1000 << 20)
def nvmlDeviceGetComputeRunningProcesses(gpu):
    return [Bag(pid=77, usedGpuMemory=900 << 20), Bag(pid=78, usedGpuMemory=None)]
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): raise NVMLError("Not Supported")
def nvmlDeviceGetFieldValues(gpu, fields):
    return [Bag(nvmlReturn=0, value=Bag(uiVal=gpu))]
def nvmlDeviceGetCurrentClocksThrottleReasons(gpu): return 0x41
def nvmlDeviceGetTemperature(gpu, sensor): return 64
'''
SMI = """
case "$1" in
*compute-apps*) cat <<'END'
GPU-aa, 4242, 20480
GPU-aa, 4243, [N/A]
GPU-cc, [Not Supported], [Not Supported]
END
;;
*) cat <<'END'
0, GPU-aa, 00000000:01:00.0, 32607, 12, 40, NVIDIA A, B
1, GPU-bb, 00000000:41:00.0, [N/A], [N/A], [N/A], NVIDIA C
2, GPU-cc, 00000000:42:00.0, 32607, 12, 40, NVIDIA D
No devices were found
END
esac
"""
NO_NVML = "raise ImportError"


@pytest.fixture
def machine(tmp_path):
    """Give an environment in which `pynvml` and `nvidia-smi` are what the test says."""

    def lay_out(pynvml, smi=None):
        (tmp_path / "pynvml.py").write_text(textwrap.dedent(pynvml))
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if smi is not None:
            (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
            (folder / "nvidia-smi").chmod(0o755)
        path = f"{folder}:/usr/bin:/bin" if smi is not None else str(folder)
        return {"PATH": path, "PYTHONPATH": str(tmp_path)}

    return lay_out


def test_nvml_tells_each_fact(machine):
    """What a GPU refuses is unknown, the rest is told."""
    found = read_gpu_states(20, machine(FAKE))
    assert found.unread == ()
    first, second = found.gpus
    assert (first.uuid, first.bus_id, first.index) == ("GPU-aa", "0000:01:00", 0)
    assert (second.uuid, second.bus_id) == ("GPU-bb", "0000:41:00")
    assert (first.total_mib, first.used_mib, first.temperature_c) == (32607, 1000, 64)
    assert first.processes == (GpuProcess(77, 900), GpuProcess(78, None))
    assert first.ecc_uncorrected is None
    assert (first.recovery, second.recovery) == ("", "reset the GPU")
    assert first.throttled == ("too hot (hardware)",)
    assert first.error == ""


def test_a_lost_gpu_is_told_beside_a_good_one(machine):
    """By its handle, or at the first question."""
    at_handle = FAKE + (
        "def nvmlDeviceGetHandleByIndex(index):\n"
        "    if index: raise NVMLError('GPU is lost')\n"
        "    return index\n"
    )
    first, second = read_gpu_states(20, machine(at_handle)).gpus
    assert (first.error, second.error, second.uuid) == ("", "GPU is lost", "")
    at_question = FAKE + "def nvmlDeviceGetMemoryInfo(gpu): raise NVMLError('GPU is lost')\n"
    first, _ = read_gpu_states(20, machine(at_question)).gpus
    assert (first.error, first.used_mib, first.uuid) == ("GPU is lost", None, "GPU-aa")


def test_an_older_module_or_driver_tells_less(machine):
    """A missing call and a field of the driver's future are unknown, not fatal."""
    older = FAKE + "del nvmlDeviceGetFieldValues, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION\n"
    assert read_gpu_states(20, machine(older)).gpus[0].recovery is None
    refused = FAKE + (
        "def nvmlDeviceGetFieldValues(gpu, fields):\n"
        "    return [Bag(nvmlReturn=3, value=Bag(uiVal=1))]\n"
    )
    assert read_gpu_states(20, machine(refused)).gpus[0].recovery is None


def test_a_gpu_that_hangs_costs_the_limit_and_is_named(machine, tmp_path):
    """What the others said is kept, and the child is gone."""
    hanging = FAKE + (
        "def nvmlDeviceGetUUID(gpu):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "    if gpu: time.sleep(1000)\n"
        "    return 'GPU-aa'\n"
    )
    begun = time.monotonic()
    found = read_gpu_states(4, machine(hanging))
    assert time.monotonic() - begun < 6
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-aa"]
    assert found.unread == ("NVML did not answer about GPU 1 in time",)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(10)


@pytest.mark.parametrize(
    ("pynvml", "words"),
    [
        ("raise ImportError", "nvidia-ml-py is not installed"),
        ("import os; os.abort()", "NVML gave no answer: .* ended with -6"),
        (FAKE + "def nvmlInit(): raise NVMLError('Driver/library version mismatch')", "mismatch"),
        (FAKE + "def nvmlInit(): time.sleep(1000)", "did not answer within"),
    ],
)
def test_without_nvml_nothing_is_known_and_it_is_said(machine, pynvml, words):
    """No module, a crash, a driver that refuses, one that hangs."""
    found = read_gpu_states(2, machine(pynvml))
    assert found.gpus == ()
    assert re.search(words, found.unread[0])
    # The hanging one has used up the time in which nvidia-smi would have been asked.
    no_smi = () if "within" in words else ("nvidia-smi gave no answer: it is not in PATH",)
    assert found.unread[1:] == no_smi


def test_nvidia_smi_answers_where_nvml_does_not(machine):
    """Memory, temperature and processes at least; what is missing then is said."""
    found = read_gpu_states(20, machine(NO_NVML, SMI))
    first, second, third = found.gpus
    assert (first.name, first.bus_id, first.used_mib) == ("NVIDIA A, B", "0000:01:00", 12)
    assert first.processes == (GpuProcess(4242, 20480), GpuProcess(4243, None))
    assert (second.used_mib, second.temperature_c, second.processes) == (None, None, ())
    assert third.processes is None
    assert found.unread == (
        "ECC errors and repairs due on the GPUs: nvidia-ml-py is not installed",
    )


@pytest.mark.parametrize(
    ("trouble", "words"),
    [("exit 9", "ended with 9"), ("sleep 1000", "did not answer within")],
)
def test_processes_that_nvidia_smi_does_not_tell_are_unknown(machine, trouble, words):
    """The second question fails or hangs: the answer to the first is kept, in the same time."""
    smi = SMI.replace("*compute-apps*) cat", f"*compute-apps*) {trouble}; cat")
    begun = time.monotonic()
    found = read_gpu_states(3, machine(NO_NVML, smi))
    assert time.monotonic() - begun < 4.5
    assert [(gpu.used_mib, gpu.processes) for gpu in found.gpus] == [
        (12, None),
        (None, None),
        (12, None),
    ]
    assert "the processes on the GPUs are unknown" in found.unread[1]
    assert words in found.unread[1]


def test_both_are_asked_within_one_limit(machine):
    """The deadline is for all questions together: the second gets what the first left."""
    begun = time.monotonic()
    slow = "import time; time.sleep(2.5); raise ImportError"
    found = read_gpu_states(3, machine(slow, "sleep 1000"))
    assert time.monotonic() - begun < 4.5
    assert "nvidia-smi did not answer" in found.unread[1]


@pytest.mark.parametrize(
    "text",
    ["", "garbage", "[" * 100_000, "[]", '{"count": 1e9}', '{"index": "0"}', '{"count": null}'],
)
def test_garbage_is_no_gpu(text):
    """Whatever a child printed, there is no crash and no invented GPU."""
    assert parse_probe(text).gpus == ()


def test_a_count_out_of_this_world_is_bounded():
    """A broken driver's number makes no endless list."""
    assert len(parse_probe('{"count": 1000000000000}').unread[0]) < 2000


def test_odd_facts_are_unknown():
    """Types are checked, so that a kept file that was damaged harms nobody."""
    facts = {"uuid": 3, "total_mib": "1", "processes": [1, {"pid": "x"}, {"pid": 5}], "error": None}
    state = state_of(0, {**facts, "throttled": 5, "bus_id": "x"})
    assert (state.uuid, state.total_mib, state.error, state.bus_id) == ("", None, "", "")
    assert state.processes == (GpuProcess(5, None),)


def test_this_environment_is_the_default():
    """Without a GPU here, the answer comes, is empty, and leaves no child."""
    before = len(psutil.Process(os.getpid()).children())
    found = read_gpu_states()
    assert isinstance(found.gpus, tuple)
    assert len(psutil.Process(os.getpid()).children()) == before
