import json
from pathlib import Path

import pytest

from humigence_supervise.checkpoints.choose import Choice
from humigence_supervise.config import config_schema
from humigence_supervise.domain import Gpu, Host
from humigence_supervise.plan_text import plan_text
from humigence_supervise.plan_view import describe
from humigence_supervise.preflight import check_ladder
from humigence_supervise.presets import Preset
from humigence_supervise.settings_file import read_settings

CONFIGS = Path(__file__).parents[2] / "configs"
SCHEMA = CONFIGS / "config.schema.json"
SHIPPED = sorted(path for path in CONFIGS.glob("*.json") if path != SCHEMA)
TWO_GPUS = Host(
    gpus=tuple(Gpu(n, f"GPU-{n}", "RTX 5090", 32607, 32000) for n in (0, 1)), cpu_count=16
)
REGENERATE = "humigence-supervise schema config > configs/config.schema.json"


def _name(path):
    return path.name


def test_there_is_one_for_the_demo_the_box_and_each_preset():
    """What the contract promises is shipped."""
    names = {path.stem for path in SHIPPED}
    assert {"demo-cpu", *(preset.value for preset in Preset)} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_each_loads_and_plans_on_a_box_with_two_gpus(path):
    """No rung has a problem, and all have the same global batch."""
    settings = read_settings(path)
    check_ladder(settings, TWO_GPUS)
    document = describe(settings, path, host=TWO_GPUS, choice=Choice(None), attempt=1, inherited={})
    assert all(rung["problem"] is None for rung in document["rungs"])
    assert len({rung["batch"]["global"] for rung in document["rungs"]}) == 1
    assert plan_text(document)


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_each_ends_in_a_single_process_on_one_gpu(path):
    """The last rung is the safest one."""
    last = read_settings(path).ladder[-1]
    assert last.gpus == 1


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_each_names_the_schema_beside_it(path):
    """Editors check and complete it without any set-up."""
    named = json.loads(path.read_text())["$schema"]
    assert path.parent / named == SCHEMA


def test_the_schema_beside_them_is_current():
    """It is exactly what `schema config` prints."""
    assert SCHEMA.read_text() == json.dumps(config_schema(), indent=2) + "\n", REGENERATE


@pytest.mark.parametrize("name", ["demo-cpu", "humigence"])
def test_those_of_the_reference_worker_name_a_worker_configuration_that_is_there(name):
    """Its path is seen from the worker's folder."""
    worker = read_settings(CONFIGS / f"{name}.json").worker
    arguments = list(worker.args)
    assert (worker.cwd / arguments[arguments.index("--config") + 1]).is_file()


@pytest.mark.parametrize("name", ["demo-cpu", "humigence"])
def test_the_sums_of_launcher_and_worker_are_the_same(name):
    """The worker's own file says the same batch and ranks as the supervisor's."""
    settings = read_settings(CONFIGS / f"{name}.json")
    worker = json.loads((CONFIGS / "worker" / f"{name}.json").read_text())
    ranks = settings.ladder[0].gpus
    assert worker.get("virtual_ranks", 2) == ranks
    per_device = worker.get("per_device_train_batch_size", 4)
    assert settings.batch.global_samples == per_device * ranks
    assert settings.batch.micro_samples == worker.get("micro_batch", per_device)
