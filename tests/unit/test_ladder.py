import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humigence_supervise import contract
from humigence_supervise.config import parse_settings
from humigence_supervise.domain import Accelerator, Checkpoint, Gpu, Host, Launcher, RunPaths
from humigence_supervise.ladder import (
    PlanError,
    plan,
    resolve_accelerator,
    rungs,
    select_gpus,
    virtual_ranks,
    world_size,
)

RANK_ENTRY = str(Path(contract.__file__).with_name("rank_entry.py"))
CPU = Host(torch_version="2.13.0+cpu", cpu_count=8)
TWO_GPUS = Host(
    gpus=(Gpu(0, "GPU-aa", "RTX 5090", 32607, 20000), Gpu(1, "GPU-bb", "RTX 5090", 32607, 31000)),
    driver_version="575.57.08",
    torch_version="2.13.0+cu130",
    cpu_count=16,
)
CHECKPOINT = Checkpoint(Path("/r/checkpoints/step-00000020"), step=20, samples=160)


def _settings(**changes):
    document = {"name": "demo", "worker": {"script": "train.py"}, **changes}
    return parse_settings(json.dumps(document).encode(), Path("/jobs/c.json"))


def _plan(settings, index, host=CPU, **changes):
    paths = RunPaths("demo", "demo-7", Path("/r"), Path("/r/checkpoints"))
    values = {"attempt": 3, "resume_from": None, "port": 40123, "inherited": {}, **changes}
    return plan(settings, paths, index, host=host, **values)


def _env(launch_plan):
    return {change.name: change.value for change in launch_plan.env}


def test_the_torchrun_command_line():
    """No restarts inside, a fresh store for each attempt, and every rank behind the doorway."""
    launch_plan = _plan(_settings(), 0, TWO_GPUS)
    assert launch_plan.argv == (
        "python3",
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=2",
        "--max-restarts=0",
        "--rdzv-backend=static",
        "--master-addr=127.0.0.1",
        "--master-port=40123",
        "--rdzv-id=demo-7-3",
        f"--log-dir={launch_plan.attempt_dir}/torchrun",
        RANK_ENTRY,
        "/jobs/train.py",
    )
    assert launch_plan.launcher is Launcher.TORCHRUN
    assert "RANK" not in _env(launch_plan)


def test_the_single_process_is_started_directly_as_a_world_of_one():
    """No torchrun, and the environment torchrun would have given the only rank."""
    launch_plan = _plan(_settings(), 1, TWO_GPUS)
    assert launch_plan.argv == ("python3", RANK_ENTRY, "/jobs/train.py", "--fallback_single_gpu")
    env = _env(launch_plan)
    world = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [env[name] for name in world] == ["0", "0", "1", "1", "127.0.0.1", "40123"]


def test_a_module_is_started_with_m():
    """As after `python -m`, behind the doorway."""
    launch_plan = _plan(_settings(worker={"module": "pkg.train", "args": ["a"]}), 1)
    assert launch_plan.argv[1:] == (RANK_ENTRY, "-m", "pkg.train", "a", "--fallback_single_gpu")


def test_what_the_contract_promises_a_worker():
    """Every variable of the contract is there, on every rung, also from scratch."""
    env = _env(_plan(_settings(), 0))
    assert env[contract.ENV_RUN_DIR] == "/r"
    assert env[contract.ENV_RUN_ID] == "demo-7"
    assert env[contract.ENV_ATTEMPT] == "3"
    assert env[contract.ENV_RUNG] == "multi_gpu"
    assert env[contract.ENV_RESUME_FROM] == ""
    assert env[contract.ENV_CHECKPOINT_DIR] == "/r/checkpoints"
    assert env[contract.ENV_ATTEMPT_DIR] == "/r/attempts/0003"
    assert env[contract.ENV_PROGRESS_DIR] == "/r/attempts/0003/progress"
    assert env[contract.ENV_GLOBAL_BATCH] == "8"
    assert env[contract.ENV_MICRO_BATCH] == "4"
    assert env[contract.ENV_GRAD_ACCUM] == "1"
    assert env[contract.ENV_VIRTUAL_RANKS] == "2"


def test_no_variable_stands_twice_in_a_plan():
    """What a worker sees must not depend on the order of a list."""
    names = [change.name for change in _plan(_settings(worker={"env": {"A": "1"}}), 1).env]
    assert len(names) == len(set(names))


def test_the_fallback_keeps_global_and_micro_batch():
    """Eight samples a step on two GPUs and on one; the single one accumulates twice four."""
    two, one = (_plan(_settings(), index, TWO_GPUS).batch for index in (0, 1))
    assert (two.global_samples, two.micro_samples, two.grad_accum, two.world_size) == (8, 4, 1, 2)
    assert (one.global_samples, one.micro_samples, one.grad_accum, one.world_size) == (8, 4, 2, 1)


def test_a_smaller_micro_batch_keeps_the_global_one():
    """After an out-of-memory: half the micro-batch, twice the accumulation."""
    batch = _plan(_settings(), 1, TWO_GPUS, micro_samples=2).batch
    assert (batch.global_samples, batch.micro_samples, batch.grad_accum) == (8, 2, 4)


def test_a_gpu_lost_later_changes_neither_sums_nor_device_type():
    """What the run began with is passed in; without it one GPU would halve the global batch."""
    one_left = Host(gpus=TWO_GPUS.gpus[1:], cpu_count=16)
    kept = _plan(_settings(), 1, one_left, run_virtual_ranks=2, run_accelerator=Accelerator.CUDA)
    assert kept.batch.global_samples == 8
    assert _plan(_settings(), 1, one_left).batch.global_samples == 4
    with pytest.raises(PlanError, match="needs 1 GPU"):
        _plan(_settings(), 1, CPU, run_virtual_ranks=2, run_accelerator=Accelerator.CUDA)


def test_a_foreign_worker_without_a_batch_gets_empty_variables():
    """Nothing is invented for a program whose batch nobody said."""
    worker = {"script": "t.py", "preset": "hf_trainer"}
    launch_plan = _plan(_settings(worker=worker), 0)
    assert launch_plan.batch is None
    assert _env(launch_plan)[contract.ENV_GLOBAL_BATCH] == ""
    assert launch_plan.argv[-1] == "/jobs/t.py"


def test_arguments_of_batch_and_resume_come_last_and_are_filled():
    """Worker, rung, batch, resume: where a parser takes the last of equals, ours count."""
    worker = {
        "script": "t.py",
        "preset": "hf_trainer",
        "args": ["--out", "{run_dir}", "--n={world_size}/{attempt}"],
    }
    settings = _settings(worker=worker, batch={"global": 16, "micro": 4})
    resumed = _plan(settings, 1, TWO_GPUS, resume_from=CHECKPOINT)
    assert resumed.argv[3:] == (
        "--out",
        "/r",
        "--n=1/3",
        "--per_device_train_batch_size",
        "4",
        "--gradient_accumulation_steps",
        "4",
        "--resume_from_checkpoint",
        str(CHECKPOINT.path),
    )
    assert _env(resumed)[contract.ENV_RESUME_FROM] == str(CHECKPOINT.path)
    assert "--resume_from_checkpoint" not in _plan(settings, 1, TWO_GPUS).argv


def test_the_users_own_argument_lists_replace_the_presets():
    """An empty list turns a preset's arguments off."""
    worker = {"script": "t.py", "preset": "hf_trainer", "resume_args": [], "batch_args": ["-b"]}
    settings = _settings(worker=worker, batch={"global": 16})
    assert _plan(settings, 1, resume_from=CHECKPOINT).argv[3:] == ("-b",)


def test_braces_that_are_no_placeholder_survive():
    """JSON in an argument arrives as it was written, doubled braces as single ones."""
    args = ['{"a": {"b": 1}}', "{}", "{{checkpoint}}"]
    argv = _plan(_settings(worker={"script": "t.py", "args": args}), 0).argv
    assert argv[-3:] == ('{"a": {"b": 1}}', "{}", "{checkpoint}")


# --- GPUs ---------------------------------------------------------------------------------------


def test_the_single_rung_takes_the_gpu_with_most_free_memory():
    """By UUID, so that the worker sees it as cuda:0; an excluded one is not taken."""
    launch_plan = _plan(_settings(), 1, TWO_GPUS)
    assert [gpu.uuid for gpu in launch_plan.gpus] == ["GPU-bb"]
    assert _env(launch_plan)["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
    excluded = _plan(_settings(), 1, TWO_GPUS, excluded_gpus=("GPU-bb",))
    assert _env(excluded)["CUDA_VISIBLE_DEVICES"] == "GPU-aa"


def test_all_gpus_are_named_in_the_order_of_ranks():
    """Excluded ones are left out, and the world shrinks with them."""
    assert _env(_plan(_settings(), 0, TWO_GPUS))["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    shrunk = _plan(_settings(), 0, TWO_GPUS, excluded_gpus=("GPU-aa",))
    assert shrunk.world_size == 1
    assert shrunk.batch.global_samples == 8


def test_named_gpus_are_taken_in_the_order_they_are_named():
    """Indices and UUIDs both name a GPU."""
    (rung,) = rungs(_settings(ladder=[{"name": "a", "gpus": ["GPU-bb", 0]}]))
    assert [gpu.index for gpu in select_gpus(rung, TWO_GPUS)] == [1, 0]


@pytest.mark.parametrize(
    ("gpus", "host", "excluded", "words"),
    [
        (3, TWO_GPUS, (), "needs 3 GPU(s), this machine shows 2: 0 RTX 5090 (GPU-aa)"),
        (2, TWO_GPUS, ("GPU-aa",), "shows 2, 1 of them excluded"),
        (1, CPU, (), "shows 0: none"),
        ("all", CPU, (), "needs a GPU"),
        (1, Host(unread=("nvidia-smi did not answer",)), (), "none; nvidia-smi did not answer"),
        ([7], TWO_GPUS, (), "needs GPU 7"),
        (["GPU-bb"], TWO_GPUS, ("GPU-bb",), "needs GPU GPU-bb"),
    ],
)
def test_too_few_gpus_say_how_many_are_needed_and_seen(gpus, host, excluded, words):
    """The message also says what to change: the ladder, or the state of a faulty GPU."""
    settings = _settings(accelerator="cuda", ladder=[{"name": "a", "gpus": gpus}])
    with pytest.raises(PlanError) as caught:
        _plan(settings, 0, host, excluded_gpus=excluded)
    assert words in str(caught.value)
    advice = "--readmit-gpu" if excluded else '"accelerator": "cpu"'
    assert advice in str(caught.value)


def test_a_gpu_of_unknown_memory_is_better_than_none():
    """It is taken last, but it is taken."""
    unknown = Gpu(0, "GPU-cc", "RTX 5090", None, None)
    (rung,) = rungs(_settings(ladder=[{"name": "a", "gpus": 1}]))
    host = Host(gpus=(unknown, TWO_GPUS.gpus[1]))
    assert select_gpus(rung, host) == (TWO_GPUS.gpus[1],)
    assert select_gpus(rung, host, ("GPU-bb",)) == (unknown,)


# --- the CPU, and what is chosen ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "cores", "ranks"), [("all", 8, 2), ("all", 1, 1), (3, 1, 3), ([0, 1, 2], 8, 3)]
)
def test_ranks_on_the_cpu(gpus, cores, ranks):
    """All means two, or one on one core; a count and a list are meant as they stand."""
    (rung,) = rungs(_settings(ladder=[{"name": "a", "gpus": gpus}]))
    assert world_size(rung, Host(cpu_count=cores), Accelerator.CPU) == ranks


def test_a_run_on_the_cpu_never_touches_a_gpu():
    """Also on a machine that has some."""
    launch_plan = _plan(_settings(accelerator="cpu"), 0, TWO_GPUS)
    assert launch_plan.gpus == ()
    assert _env(launch_plan)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("chosen", "host", "accelerator", "words"),
    [
        ("auto", TWO_GPUS, Accelerator.CUDA, "2 visible GPU(s)"),
        ("auto", CPU, Accelerator.CPU, "no CUDA GPU is visible"),
        ("auto", Host(unread=("nvidia-smi did not answer",)), Accelerator.CPU, "did not answer"),
        ("cpu", TWO_GPUS, Accelerator.CPU, "as the configuration says"),
        ("cuda", CPU, Accelerator.CUDA, "as the configuration says"),
    ],
)
def test_the_accelerator_is_chosen_out_loud(chosen, host, accelerator, words):
    """Auto looks for a GPU; the sentence says what was found or could not be read."""
    found, sentence = resolve_accelerator(_settings(accelerator=chosen), host)
    assert found is accelerator
    assert words in sentence


@pytest.mark.parametrize(
    ("gpus", "launcher"),
    [("all", "torchrun"), (2, "torchrun"), (1, "python"), ([0], "python"), ([0, 1], "torchrun")],
)
def test_one_gpu_needs_no_torchrun(gpus, launcher):
    """Unless the configuration names the launcher itself."""
    (rung,) = rungs(_settings(ladder=[{"name": "a", "gpus": gpus}]))
    assert rung.launcher == launcher
    asked = {"name": "a", "gpus": gpus, "launcher": "torchrun"}
    (rung,) = rungs(_settings(ladder=[asked]))
    assert rung.launcher is Launcher.TORCHRUN


def test_leftovers_of_an_outer_launcher_are_unset():
    """What the plan itself sets is not among them, even if it was inherited."""
    inherited = {"PET_NNODES": "4", contract.ENV_RUNG: "old", "PATH": "/bin"}
    assert _plan(_settings(), 0, inherited=inherited).unset_env == ("PET_NNODES",)


# --- the sums of a step -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "batch", "sums"),
    [
        ("humigence", {}, (8, 4, 1)),
        ("humigence", {"global": 8}, (8, 4, 1)),
        ("humigence", {"global": 12}, (12, 3, 2)),
        ("humigence", {"global": 2}, (2, 1, 1)),
        ("humigence", {"micro": 2}, (4, 2, 1)),
        ("humigence", {"global": 16, "micro": 2}, (16, 2, 4)),
        ("torchrun", {"global": 20}, (20, 10, 1)),
        ("torchrun", {"micro": 3}, (6, 3, 1)),
    ],
)
def test_a_missing_number_is_worked_out(preset, batch, sums):
    """Default: one micro-batch a rank of the first rung; ours takes at most 4 at once."""
    settings = _settings(worker={"script": "t.py", "preset": preset}, batch=batch)
    found = _plan(settings, 0).batch
    assert (found.global_samples, found.micro_samples, found.grad_accum) == sums


@pytest.mark.parametrize(
    ("preset", "batch", "words"),
    [
        ("torchrun", {"global": 10, "micro": 4}, "batch.global 8 or 16 would do, or batch.micro"),
        ("torchrun", {"global": 10, "micro": 4}, "one of 1, 5"),
        ("torchrun", {"global": 3, "micro": 4}, "batch.global 8 would do"),
        ("humigence", {"global": 7}, "over 2 ranks"),
        ("humigence", {"global": 6, "micro": 2}, "batch.global 4 or 8"),
    ],
)
def test_a_batch_that_cannot_be_split_says_what_would_do(preset, batch, words):
    """Refused before anything is started, with the numbers that are right."""
    settings = _settings(worker={"script": "t.py", "preset": preset}, batch=batch)
    with pytest.raises(PlanError, match="cannot be split") as caught:
        _plan(settings, 0)
    assert words in str(caught.value)


def test_our_worker_needs_whole_virtual_ranks():
    """Three ranks cannot share the work of two; of a foreign worker nothing is known."""
    ladder = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 3}, {"name": "c", "gpus": 2}]
    ours = _settings(ladder=ladder, batch={"global": 48, "micro": 4})
    with pytest.raises(PlanError, match="1, 2, 4 ranks would do"):
        _plan(ours, 1)
    assert _plan(ours, 2).batch.grad_accum == 6
    worker = {"script": "t.py", "preset": "torchrun"}
    foreign = _settings(ladder=ladder, batch={"global": 48, "micro": 4}, worker=worker)
    assert _plan(foreign, 1).batch.grad_accum == 4


def test_virtual_ranks_are_those_of_the_first_rung():
    """Whatever rung runs now."""
    assert virtual_ranks(_settings(), TWO_GPUS) == 2
    assert _env(_plan(_settings(), 1, TWO_GPUS))[contract.ENV_VIRTUAL_RANKS] == "2"


@given(
    total=st.integers(1, 4096),
    micro=st.integers(1, 64),
    first=st.integers(1, 8),
    second=st.integers(1, 8),
    preset=st.sampled_from(["humigence", "torchrun"]),
)
def test_every_plan_keeps_the_sum_or_is_refused(total, micro, first, second, preset):
    """Global = micro x accumulation x ranks on both rungs, with the same global batch."""
    settings = _settings(
        worker={"script": "t.py", "preset": preset},
        batch={"global": total, "micro": micro},
        ladder=[{"name": "a", "gpus": first}, {"name": "b", "gpus": second}],
    )
    for index in (0, 1):
        try:
            batch = _plan(settings, index).batch
        except PlanError:
            continue
        assert batch.global_samples == total
        assert batch.micro_samples * batch.grad_accum * batch.world_size == total
        if preset == "humigence":
            assert total % (first * micro) == 0
            assert first % batch.world_size == 0
