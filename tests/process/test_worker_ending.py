"""How the reference worker ends when it cannot go on: clearly, with the right code, at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch

from humigence_worker import checkpoint_folder, checkpoint_manifest

WORKER = Path(__file__).parents[2] / "worker" / "train.py"
TINY = {
    "data": "text.txt",
    "seq_len": 16,
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "max_steps": 3,
    "save_steps": 1,
}


def configure(folder: Path, **settings: object) -> Path:
    """Write a small text and a configuration; return the latter's path."""
    (folder / "text.txt").write_text("a small text to learn from. " * 40)
    config = folder / "config.snapshot.json"
    config.write_text(json.dumps({**TINY, **settings}))
    return config


def run_worker(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the worker alone, as a person would."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HUMIGENCE_")}
    return subprocess.run(
        [sys.executable, str(WORKER), *map(str, arguments)],
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("settings", "options", "env", "says"),
    [
        ({"micro_bach": 2}, [], {}, "micro_batch"),
        ({"data": "missing.txt"}, [], {}, "missing.txt"),
        ({}, [], {"HUMIGENCE_MICRO_BATCH": "3"}, "Set micro_batch to 2 or 4."),
        ({}, ["--fallback-gpu"], {}, "unrecognized arguments: --fallback-gpu"),
    ],
)
def test_a_wrong_configuration_is_one_message_and_exit_78(tmp_path, settings, options, env, says):
    """A misspelt key, missing data, sums that do not divide, a wrong option: never a traceback."""
    config = configure(tmp_path, **settings)
    done = run_worker("--config", config, *options, **env)
    assert done.returncode == 78, done.stderr
    assert done.stderr.startswith("configuration error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("configuration error") == 1


def test_only_the_first_rank_tells_a_mistake_that_all_find(tmp_path):
    """Rank 1 of two exits 78 too, in silence."""
    config = configure(tmp_path, micro_bach=2)
    done = run_worker("--config", config, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert (done.returncode, done.stderr) == (78, "")


def test_another_runs_checkpoint_is_a_configuration_error_that_names_both(tmp_path):
    """The model was made wider between two starts by hand: refused, nothing is overwritten."""
    done = run_worker("--config", configure(tmp_path))
    assert done.returncode == 0, done.stderr
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    done = run_worker("--config", configure(tmp_path, d_model=32))
    assert done.returncode == 78
    assert "'d_model': 16" in done.stderr
    assert "'d_model': 32" in done.stderr
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def test_a_crash_prints_pythons_traceback_and_writes_torchruns_error_file(tmp_path):
    """An exception in step 2: traceback, error file with the same text, exit 1, step 1 saved."""
    config = configure(tmp_path, faults=[{"name": "exception", "step": 2, "rank": 0}])
    error_file = tmp_path / "error.json"
    done = run_worker("--config", config, TORCHELASTIC_ERROR_FILE=str(error_file))
    assert done.returncode == 1
    assert "Traceback (most recent call last):\n" in done.stderr
    last_line = done.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ValueError: ")
    recorded = json.loads(error_file.read_text())["message"]
    assert recorded["message"].startswith("ValueError: ")
    assert "in at_step" in recorded["extraInfo"]["py_callstack"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_loss_that_is_no_number_ends_the_training_before_it_spoils_a_checkpoint(tmp_path):
    """Weights that became NaN: the message names the step, and no step after it is saved."""
    assert run_worker("--config", configure(tmp_path)).returncode == 0
    spoil(tmp_path / "checkpoints" / "step-00000003")
    done = run_worker("--config", configure(tmp_path, max_steps=5))
    assert done.returncode == 1
    assert "FloatingPointError: training diverged at step 4: loss is nan" in done.stderr
    assert checkpoint_folder.candidates(tmp_path / "checkpoints")[0].name == "step-00000003"


def test_a_locale_without_the_banners_signs_changes_only_how_they_look(tmp_path):
    """Latin-1 has no rocket: it is escaped, and the training goes to its end."""
    done = run_worker("--config", configure(tmp_path), PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "\\U0001f680 Starting single CPU training on cpu" in done.stdout


def test_the_wait_for_the_other_ranks_is_as_long_as_the_configuration_says(tmp_path):
    """Rank 0 of two, and nobody else: it gives up after its second, and says why."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    config = configure(tmp_path, group_timeout_s=1)
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    done = run_worker("--config", config, **group, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    assert done.returncode == 1, done.stderr
    assert "Distributed training initialization failed" in done.stdout


def spoil(path: Path) -> None:
    """Replace a checkpoint by a whole one whose weights are not numbers."""
    header, files = checkpoint_manifest.read(path)
    weights = safetensors.torch.load(files["model.safetensors"])
    ruined = {name: each * float("nan") for name, each in weights.items()}
    files["model.safetensors"] = safetensors.torch.save(ruined)
    checkpoint_folder.write(path.parent, header, files)
