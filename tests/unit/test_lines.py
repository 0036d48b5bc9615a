"""Prefixes of every program, stacked in any order, and what tells a line's rank."""

import itertools

import pytest

from humigence_supervise.observe.lines import normalize, read_line

MESSAGE = "RuntimeError: CUDA error: device-side assert triggered"

ONE_PREFIX = [
    ("[rank3]: ", 3),
    ("[rank3]:", 3),
    ("[rank: 3] ", 3),
    ("[Rank 3] ", 3),
    ("(rank 3) ", 3),
    ("Rank 3: ", 3),
    ("rank3[1234][MainThread]: ", 3),
    ("[default3]:", 3),
    ("[trainer0|3]:", 3),
    ("[trainer3]:", 3),
    ("[1,3]<stdout>:", 3),
    ("[1,3]<stderr>:", 3),
    ("[1,mpirank:3,algo-1]<stderr>:", 3),
    ("[3]<stderr>:", 3),
    ("host:3]:", 3),
    ("3: ", 3),
    (" 3: ", 3),
    ("[3]:", 3),
    ("(VllmWorker rank=3 pid=77) ", 3),
    ("(Worker pid=123, ip=10.0.0.1) ", None),
    ("(RayTrainWorker pid=123) ", None),
    ("\x1b[36m(RayTrainWorker pid=123)\x1b[0m ", None),
    ("(main_task pid=123) ", None),
    ("(raylet) ", None),
    ("(raylet, ip=10.0.0.1) ", None),
    ("stderr: ", None),
    ("worker-1: ", None),
    ("10.0.0.12: ", None),
    ("trainer-1  | ", None),
    ("wandb: ", None),
    ("[pod/trainer-0/pytorch] ", None),
    ("2024-01-02T03:04:05.678901234Z ", None),
    ("2024-01-02T03:04:05.678901234Z stderr F ", None),
    ("2024-01-02T03:04:05.678+00:00 stdout F ", None),
    ("Jan 02 03:04:05 host1 python[12]: ", None),
    ("Jan  2 03:04:05 host1 train.sh: ", None),
    ("2024-01-01 00:00:00 ", None),
    ("2024/01/01 00:00:00 ", None),
    ("[2024-01-01 00:00:00,123] ", None),
    ("[2024-01-01 00:00:00,123] [ERROR] [launch.py:315:sigkill_handler] ", None),
    ("[2024-01-01 00:00:00,123][__main__][ERROR] - ", None),
    ("ERROR:module:", None),
    ("ERROR:torch.distributed.elastic.multiprocessing.api:", None),
    ("2024-01-01 00:00:00,123 - module - ERROR - ", None),
    ("2024-01-01 00:00:00,123 - ERROR - module - ", None),
    ("01/02/2024 03:04:05 - ERROR - __main__ -   ", None),
    ("01/02 03:04:05 - mmengine - ERROR - ", None),
    ("[01/02 03:04:05 d2.engine.train_loop]: ", None),
    ("2024-01-01 00:00:00.123 | ERROR    | mod:func:12 - ", None),
    ("[ERROR|trainer.py:1234] 2024-01-01 00:00:00,123 >> ", None),
    ("[NeMo E 2024-01-01 00:00:00 exp_manager:123] ", None),
    ("ERROR 05-06 12:34:56 llm_engine.py:72] ", None),
    ("ERROR 05-06 12:34:56 [core.py:72] ", None),
    ("E0102 03:04:05.000000 140123 torch/distributed/elastic/api.py:826] ", None),
    ("E0102 03:04:05.000000 140123 torch/distributed/elastic/api.py:826] [0/2] ", None),
    ("[E206 21:44:12.715298746 ProcessGroupNCCL.cpp:607] ", None),
    ("[E ProcessGroupNCCL.cpp:607] ", None),
    ("[ 1234.567890] ", None),
    ("[Worker:3] [INFO] ", 3),
    ("17-Jan-23 17:21:19 [Worker:3] [INFO] ", 3),
    ("2023-01-17 17:21:35,472\tWARNING worker.py:1829 -- ", None),
    ("(TrainTrainable pid=96138) 2022-03-22 10:41:28,079\tERROR function_runner.py:281 -- ", None),
    ("2021-05-10 10:56:59 ERROR    __main__   ", None),
    ("[2m[36m(RayTrainWorker pid=1942, ip=10.0.0.1)[0m ", None),
    ("[2026-01-27 06:50:01 TP4] ", None),
    ("[2024-01-01 00:00:00 root](main.py 12): ERROR ", None),
    ("│ ", None),
    ("    | ", None),
]
STACKABLE = [
    ("2024-01-02T03:04:05.678Z ", None),
    ("[default0]:", 0),
    ("[rank5]:", 5),
    ("(RayTrainWorker pid=123, ip=10.0.0.1) ", None),
    ("[1,2]<stderr>:", 2),
    ("stderr: ", None),
    ("node-1: ", None),
    ("[E206 21:44:12.715298746 ProcessGroupNCCL.cpp:607] ", None),
]


@pytest.mark.parametrize(("prefix", "rank"), ONE_PREFIX)
def test_each_prefix_is_peeled(prefix, rank):
    """The message stands alone behind each known prefix, and the rank is taken from it."""
    line = normalize(prefix + MESSAGE)
    assert (line.text, line.rank) == (MESSAGE, rank)


@pytest.mark.parametrize(("prefix", "rank"), ONE_PREFIX)
def test_an_indented_frame_is_peeled_too(prefix, rank):
    """The lines of a traceback are indented behind the prefix and belong to the same rank."""
    line = normalize(prefix + '  File "train.py", line 3, in main')
    assert (line.text.strip(), line.rank) == ('File "train.py", line 3, in main', rank)


@pytest.mark.parametrize("order", list(itertools.permutations(STACKABLE, 3)))
def test_prefixes_stack_in_any_order(order):
    """Three prefixes in any order are peeled; a global rank wins over a local one."""
    line = normalize("".join(prefix for prefix, _ in order) + MESSAGE)
    ranks = [rank for _, rank in order if rank is not None]
    assert line.text == MESSAGE
    assert line.rank == (5 if 5 in ranks else ranks[0] if ranks else None)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: 3: bad",
        "[Errno 28] No space left on device",
        "[WinError 1455] The paging file is too small for this operation to complete",
        "Error: something",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate",
        "CUDA error: out of memory",
        "Killed",
        "[1]+  Killed                  python train.py",
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: out of memory",
        "step 3 | loss 0.5",
        "tensor([1, 2, 3])",
        "KeyError: 'rank'",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "W&B run finished",
        "Ranks: 8",
    ],
)
def test_what_is_no_prefix_stays(text):
    """The message itself is never taken for a prefix, and gives no rank."""
    assert (normalize(text).text, normalize(text).rank) == (text, None)


def test_the_wall_of_a_box_goes():
    """Rich draws its tracebacks between walls; the text between them is the line."""
    line = normalize("│ /home/user/train.py:84 in forward                       │")
    assert line.text == "/home/user/train.py:84 in forward"


def test_a_list_of_possibilities_is_no_text():
    """Ray's "potential root causes" name the OOM killer and SIGSEGV without having seen either."""
    told = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system "
        "error. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits "
        "with a connection error code 2. End of file. There are some potential root causes. (1) "
        "The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop "
        "--force is called. (3) The worker is crashed unexpectedly due to SIGSEGV."
    )
    text = normalize(told).text
    assert text.startswith("A worker died or was killed")
    assert "OOM killer" not in text
    assert "SIGSEGV" not in text


def test_a_part_without_rank_has_that_of_its_line():
    """All lines of a string that one rank printed are that rank's."""
    lines = read_line('[rank2]: b"Traceback (most recent call last):\\n  File x\\nValueError: y"')
    assert [line.rank for line in lines] == [2, 2, 2]
