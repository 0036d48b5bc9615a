import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import humigence_supervise
from humigence_supervise import ladder
from humigence_supervise.command import RANK_ENTRY
from humigence_supervise.config import parse_settings
from humigence_supervise.domain import Checkpoint, Gpu, Host, Launcher, RunPaths
from humigence_supervise.probe_plan import probe_plan
from humigence_supervise.probe_script import probe_script

TWO_GPUS = Host(
    gpus=(Gpu(0, "GPU-aa", "RTX 5090", 32607, 31000), Gpu(1, "GPU-bb", "RTX 5090", 32607, 31000)),
    driver_version="575.57.08",
    torch_version="2.13.0+cu130",
    cpu_count=16,
)
PROBE_ARGV = """
    /venv/bin/python -m torch.distributed.run
    --nnodes=1
    --nproc-per-node=2
    --max-restarts=0
    --rdzv-backend=static
    --master-addr=127.0.0.1
    --master-port=40777
    --rdzv-id=demo-7-3-probe
    --log-dir=/r/attempts/0003/torchrun
    RANK_ENTRY
    /lib/collective_probe.py --deadline-s=45
"""
SUPERVISOR_ALONE = str(Path(humigence_supervise.__file__).parents[1])


def _attempt(rung_index=0, **batch):
    document = {"name": "demo", "worker": {"script": "train.py", "env": {"MY": "own"}}, **batch}
    return ladder.plan(
        parse_settings(json.dumps(document).encode(), Path("/jobs/c.json")),
        RunPaths("demo", "demo-7", Path("/r"), Path("/r/checkpoints")),
        rung_index,
        host=TWO_GPUS,
        attempt=3,
        resume_from=Checkpoint(Path("/r/checkpoints/step-00000020"), step=20, samples=160),
        port=40123,
        inherited={"PET_NNODES": "2"},
    )


def _probe(plan):
    return probe_plan(plan, Path("/venv/bin/python"), 40777, Path("/lib/collective_probe.py"), 45.0)


def test_the_command_line_of_a_probe():
    """The torchrun of an attempt, behind the same doorway, with the probe for a worker."""
    expected = PROBE_ARGV.replace("RANK_ENTRY", str(RANK_ENTRY)).split()
    assert _probe(_attempt()).argv == tuple(expected)


def test_a_probe_differs_from_its_attempt_in_nothing_that_decides_whether_it_works():
    """Environment, GPUs, ranks and folder are the attempt's; it resumes nothing, saves nothing."""
    attempt = _attempt(batch={"global": 8, "micro": 2})
    probe = _probe(attempt)
    assert attempt.batch is not None
    assert (probe.resume_from, probe.grace_s) == (None, 2.0)
    same = replace(
        probe, argv=attempt.argv, resume_from=attempt.resume_from, grace_s=attempt.grace_s
    )
    assert same == attempt
    assert attempt.unset_env == probe.unset_env == ("PET_NNODES",)


def test_a_rung_without_torchrun_is_probed_under_it():
    """A single process is probed as a world of one: the probe asks torchrun's variables."""
    attempt = _attempt(rung_index=1)
    assert attempt.launcher is Launcher.PYTHON
    probe = _probe(attempt)
    assert probe.launcher is Launcher.TORCHRUN
    assert "--nproc-per-node=1" in probe.argv


@pytest.mark.parametrize("extra", ["", SUPERVISOR_ALONE])
def test_the_probe_is_found_without_importing_the_worker(extra):
    """Where the worker's package is installed it is found, and stays unimported; else None."""
    options = ("-I", "-S") if extra else ()
    program = f"""
import sys
sys.path[:0] = {[extra] if extra else []}
from humigence_supervise.probe_script import probe_script
print(probe_script(), "humigence_worker" in sys.modules)
"""
    answer = subprocess.run(
        [sys.executable, *options, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    found, imported = answer.stdout.split()
    assert imported == "False"
    assert found == ("None" if extra else str(probe_script()))


def test_the_probe_suits_the_interpreter_of_any_worker():
    """It imports the standard library and torch, and its syntax is Python 3.8."""
    script = probe_script()
    assert script is not None
    tree = ast.parse(script.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.partition(".")[0]
        for node in imports
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
        )
    }
    assert names - sys.stdlib_module_names == {"torch"}
