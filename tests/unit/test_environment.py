from collections import Counter
from pathlib import Path

import pytest

from humigence_supervise.domain import Accelerator, Host
from humigence_supervise.environment import foreign, hardened
from humigence_supervise.environment_table import TABLE, version_of

ATTEMPT_DIR = Path("/runs/x/attempts/0003")
ALWAYS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_ASYNC_ERROR_HANDLING": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "WANDB_RUN_ID": "x-1",
    "WANDB_RESUME": "allow",
}
PINNED = {
    "NCCL_DEBUG_SUBSYS": "ALL",
    "NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
}


def _changes(
    host=Host(torch_version="2.13.0+cpu"),  # noqa: B008 - a frozen value
    accelerator=Accelerator.CUDA,
    **layers,
):
    values = {"inherited": {}, "user": {}, "rung_env": {}, "grace_s": 60.0, **layers}
    changes = hardened(host, accelerator, ATTEMPT_DIR, run_id="x-1", **values)
    return {change.name: change for change in changes}


def _value(name, *arguments, **layers):
    change = _changes(*arguments, **layers).get(name)
    return change and change.value


@pytest.mark.parametrize("accelerator", list(Accelerator))
def test_the_hardened_values_are_always_there(accelerator):
    """What users rely on is set on GPUs and on the CPU alike, and says that we set it."""
    changes = _changes(accelerator=accelerator)
    assert {name: changes[name].value for name in ALWAYS} == ALWAYS
    assert {changes[name].setter for name in ALWAYS} == {"hardened"}


def test_every_row_has_a_reason_and_a_source():
    """A variable nobody can explain is not set; no variable has two rows."""
    assert all(row.why and row.source for row in TABLE)
    assert max(Counter(row.name for row in TABLE).values()) == 1


def test_the_users_own_value_wins_and_is_named():
    """Rung over worker.env over the shell over the table; each is named as the setter."""
    name = "NCCL_DEBUG"
    layers = {"inherited": {name: "WARN"}, "user": {name: "TRACE"}, "rung_env": {name: "VERSION"}}
    seen = []
    for gone in (None, "rung_env", "user", "inherited"):
        layers.pop(gone, None)
        change = _changes(**layers)[name]
        seen.append((change.value, change.setter))
    assert seen == [
        ("VERSION", "rung"),
        ("TRACE", "config"),
        ("WARN", "inherited"),
        ("INFO", "hardened"),
    ]


@pytest.mark.parametrize(("name", "inherited"), PINNED.items())
def test_an_inherited_value_does_not_take_protection_away(name, inherited):
    """Such a value is not followed and the reason says so; in the configuration it is."""
    ours = _value(name)
    change = _changes(inherited={name: inherited})[name]
    assert (change.value, change.setter) == (ours, "hardened")
    assert f'not the inherited "{inherited}"' in change.why
    assert _changes(user={name: inherited})[name].value == inherited


def test_variables_of_the_user_that_are_no_row_are_passed_on():
    """The rung's value wins over worker.env's; an inherited one needs no change at all."""
    changes = _changes(inherited={"C": "0"}, user={"A": "1", "B": "1"}, rung_env={"B": "2"})
    assert (changes["A"].value, changes["A"].setter) == ("1", "config")
    assert (changes["B"].value, changes["B"].setter) == ("2", "rung")
    assert "C" not in changes


@pytest.mark.parametrize(
    ("driver", "p2p_disable", "value"),
    [
        ("575.57.08", None, "0"),
        ("580.65.06", None, None),
        ("595.10", None, None),
        (None, None, "0"),
        ("575.57.08", "1", "0"),
        ("575.57.08", "0", None),
    ],
)
def test_cumem_host_memory_is_off_only_where_it_fails(driver, p2p_disable, value):
    """Before driver 580, or with an unknown one, and without P2P."""
    user = {} if p2p_disable is None else {"NCCL_P2P_DISABLE": p2p_disable}
    assert _value("NCCL_CUMEM_HOST_ENABLE", Host(driver_version=driver), user=user) == value
    assert _value("NCCL_CUMEM_HOST_ENABLE", Host(driver_version=driver), Accelerator.CPU) is None


@pytest.mark.parametrize(
    ("torch", "trace_buffer", "blocking_wait"),
    [
        ("2.13.0+cpu", None, None),
        ("2.10.0", None, None),
        ("2.9.1+cu128", "2000", None),
        ("2.2.0", "2000", None),
        ("2.1.2", "2000", "0"),
        (None, "2000", "0"),
        ("nonsense", "2000", "0"),
    ],
)
def test_older_spellings_are_set_for_older_or_unknown_torch(torch, trace_buffer, blocking_wait):
    """The newer spelling is always there; the older one where it may be the one that is read."""
    host = Host(torch_version=torch)
    assert _value("TORCH_FR_BUFFER_SIZE", host) == "2000"
    assert _value("TORCH_NCCL_TRACE_BUFFER_SIZE", host) == trace_buffer
    assert _value("NCCL_BLOCKING_WAIT", host) == blocking_wait


def test_flight_recorder_dumps_stay_with_the_attempt():
    """Both spellings name the attempt's folder, which exists when a rank starts."""
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        assert Path(_value(name)).parent == ATTEMPT_DIR


@pytest.mark.parametrize(("grace_s", "value"), [(60.0, "60"), (0.5, "1"), (90.2, "91")])
def test_torchrun_waits_as_long_as_we_do(grace_s, value):
    """A whole number of seconds, never less than the grace the configuration gives."""
    assert _value("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", grace_s=grace_s) == value


def test_the_ras_port_is_the_same_in_all_attempts_of_a_run_and_another_in_other_runs():
    """It lies below Linux's ephemeral ports, where nobody gets it by chance."""

    def address(folder):
        changes = hardened(
            Host(),
            Accelerator.CUDA,
            Path(folder),
            run_id="x",
            grace_s=1,
            inherited={},
            user={},
            rung_env={},
        )
        return next(change.value for change in changes if change.name == "NCCL_RAS_ADDR")

    first = address("/runs/x/attempts/0001")
    assert first == address("/runs/x/attempts/0002")
    assert first != address("/runs/y/attempts/0001")
    assert 21_000 <= int(first.removeprefix("localhost:")) < 31_000


def test_no_invented_mlflow_run_is_named():
    """MLflow ends a worker whose run id does not exist; an inherited one is left to it."""
    assert "MLFLOW_RUN_ID" not in _changes(inherited={"MLFLOW_RUN_ID": "abc"})
    assert "x-1" in _value("MLFLOW_RUN_CONTEXT")


def test_debug_adds_what_it_promises_and_stays_bounded():
    """Blocking launches, detail and more of NCCL, but never the log of every collective."""
    changes = _changes(debug=True, inherited={"CUDA_LAUNCH_BLOCKING": "0"})
    assert changes["CUDA_LAUNCH_BLOCKING"].value == "1"
    assert changes["TORCH_DISTRIBUTED_DEBUG"].value == "DETAIL"
    subsystems = set(changes["NCCL_DEBUG_SUBSYS"].value.split(","))
    assert {"INIT", "ENV", "GRAPH"} <= subsystems
    assert not {"ALL", "COLL", "CALL", "PROXY"} & subsystems
    assert not {"CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG"} & set(_changes())


def test_leftovers_of_an_outer_launcher_are_removed():
    """What would mislead torchrun or a worker goes; what the plan sets, and all else, stays."""
    inherited = dict.fromkeys(
        ("PET_NNODES", "TORCHELASTIC_RUN_ID", "NOTIFY_SOCKET", "HUMIGENCE_RUNG", "PATH", "HOME"),
        "x",
    )
    own = frozenset({"HUMIGENCE_RUNG"})
    assert foreign(inherited, own) == ("NOTIFY_SOCKET", "PET_NNODES", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13)), ("580.65.06", (580, 65)), (None, None), ("", None), ("dev", None)],
)
def test_versions(text, version):
    """Only major and minor count; anything else is unknown."""
    assert version_of(text) == version
