"""Checkpoints: whole or not there, verified before use, and only this run's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from humigence_supervise.checkpoints.verdict import Standing
from humigence_supervise.checkpoints.verify import verify as supervisor_verify
from humigence_worker import checkpoint, checkpoint_folder
from humigence_worker.checkpoint import Identity, TrainingState
from humigence_worker.checkpoint_manifest import CheckpointDamagedError, Header
from humigence_worker.settings import WorkerConfigError

IDENTITY = Identity(
    run="demo-1", data="abc", model={"d_model": 8}, seed=0, virtual_ranks=2, global_samples=8
)
BIG = 3 * 1024 * 1024


def state_of(step):
    """Return a small training state that differs by step."""
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
    return TrainingState(
        step=step,
        samples=8 * step,
        model={"w": weights, "tied": weights.t()},
        optimizer={"exp_avg.w": weights * 2},
        notes={"rng": {"seed": 0}, "scaler": None},
    )


def write(folder, step, content=b"content"):
    """Write a checkpoint of bytes, without tensors."""
    header = Header(run="demo-1", step=step, samples=8 * step, world_size=2)
    return checkpoint_folder.write(folder, header, {"a.bin": content, "b.json": b"{}"})


def names(folder):
    """Return the names in a folder, sorted; hidden ones included."""
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded_bit_for_bit_and_the_supervisor_calls_it_good(tmp_path):
    """Tensors (a transposed one too) and notes come back; no file is anything but data."""
    path = checkpoint.save(tmp_path / "checkpoints", state_of(5), IDENTITY, world_size=2)
    state, run = checkpoint.load(path, IDENTITY)
    wanted = state_of(5)
    assert (state.step, state.samples, run) == (5, 40, "demo-1")
    for found, expected in ((state.model, wanted.model), (state.optimizer, wanted.optimizer)):
        assert set(found) == set(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert state.notes["rng"] == {"seed": 0}
    assert names(path) == [
        "MANIFEST.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert names(tmp_path / "checkpoints") == ["step-00000005"]
    verdict = supervisor_verify(path, run="demo-1")
    assert verdict.standing is Standing.GOOD
    assert (verdict.checkpoint.step, verdict.checkpoint.samples) == (5, 40)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": "demo-2"}, "another run: demo-1 there, demo-2 in this run"),
        ({"data": "xyz"}, "another data set (fingerprint): abc there, xyz in this run"),
        ({"model": {"d_model": 16}}, "another model shape: {'d_model': 8} there, {'d_model': 16}"),
        ({"seed": 1}, "another seed: 0 there, 1 in this run"),
        ({"virtual_ranks": 4}, "another number of virtual ranks: 2 there, 4 in this run"),
        ({"global_samples": 16}, "another global batch: 8 there, 16 in this run"),
    ],
)
def test_another_runs_checkpoint_is_refused_with_both_values(tmp_path, change, says):
    """A whole checkpoint that does not fit is a mistake of the configuration, not damage."""
    path = checkpoint.save(tmp_path, state_of(1), IDENTITY, world_size=1)
    with pytest.raises(WorkerConfigError) as refused:
        checkpoint.load(path, replace(IDENTITY, **change))
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_run_without_a_name_takes_its_folders_checkpoint_and_its_name(tmp_path):
    """By hand nobody names the run: the checkpoint's own name is handed back, to be kept."""
    nameless = replace(IDENTITY, run=None)
    path = checkpoint.save(tmp_path, state_of(1), IDENTITY, world_size=1)
    assert checkpoint.load(path, nameless)[1] == "demo-1"
    fresh = checkpoint.save(tmp_path / "mine" / "checkpoints", state_of(1), nameless, world_size=1)
    assert checkpoint.load(fresh, nameless)[1] == "mine"


def flip(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "has SHA-256": lambda path: flip(path / "model.safetensors"),
    "has 10 bytes, its manifest says": lambda path: os.truncate(path / "model.safetensors", 10),
    "optimizer.safetensors is missing": lambda path: (path / "optimizer.safetensors").unlink(),
    "MANIFEST.json is missing": lambda path: (path / "MANIFEST.json").unlink(),
    "is no manifest of ours": lambda path: (path / "MANIFEST.json").write_bytes(b"\xff{"),
    "its name says step 6": lambda path: path.rename(path.with_name("step-00000006")),
}


@pytest.mark.parametrize("says", DAMAGE)
def test_damage_is_found_before_anything_is_used_and_the_one_before_is_taken(
    tmp_path, capsys, says
):
    """Each kind of damage is named, for the load by the supervisor's choice and by our own."""
    good = checkpoint.save(tmp_path, state_of(4), IDENTITY, world_size=2)
    checkpoint.save(tmp_path, state_of(5), IDENTITY, world_size=2)
    assert checkpoint_folder.newest_verified(tmp_path).name == "step-00000005"
    DAMAGE[says](tmp_path / "step-00000005")
    damaged = checkpoint_folder.candidates(tmp_path)[0]
    with pytest.raises(CheckpointDamagedError) as refused:
        checkpoint.load(damaged, IDENTITY)
    assert f"checkpoint {damaged} is damaged: " in str(refused.value)
    assert says in str(refused.value)
    assert checkpoint_folder.newest_verified(tmp_path) == good
    assert "is damaged" in capsys.readouterr().err


def test_a_manifest_that_points_out_of_its_folder_is_refused(tmp_path):
    """Nothing outside the checkpoint's folder is ever read because a manifest says so."""
    path = write(tmp_path, 1)
    manifest = path / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace("a.bin", "../a.bin"))
    with pytest.raises(CheckpointDamagedError, match="outside the folder"):
        checkpoint.load(path, IDENTITY)


def test_only_as_many_good_ones_as_asked_are_kept_and_damaged_ones_do_not_count(tmp_path):
    """`keep` 2: the newest, the next good one, and the evidence of the damaged one between."""
    paths = [write(tmp_path, step) for step in (9, 10, 11, 100)]
    (paths[2] / "a.bin").unlink()
    removed = checkpoint_folder.prune(tmp_path, 2, paths[3])
    assert [path.name for path in removed] == ["step-00000009"]
    assert names(tmp_path) == ["step-00000010", "step-00000011", "step-00000100"]


def test_nothing_is_removed_while_the_newest_does_not_verify(tmp_path):
    """The last good checkpoint is never given up for one that cannot be read back."""
    paths = [write(tmp_path, step) for step in (1, 2, 3)]
    flip(paths[2] / "a.bin")
    with pytest.raises(CheckpointDamagedError):
        checkpoint_folder.prune(tmp_path, 1, paths[2])
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    (paths[2] / "a.bin").write_bytes(b"content")
    checkpoint_folder.prune(tmp_path, 1, paths[2])
    assert names(tmp_path) == ["step-00000003"]


def test_a_folder_of_the_same_step_is_moved_aside_not_removed(tmp_path):
    """A step that is done again, after an older checkpoint was used, replaces by two renames."""
    write(tmp_path, 7, b"first")
    write(tmp_path, 7, b"second")
    path = write(tmp_path, 7, b"third")
    assert (path / "a.bin").read_bytes() == b"third"
    kept = sorted(tmp_path.glob("quarantine/step-00000007-*/step-00000007/a.bin"))
    assert [file.read_bytes() for file in kept] == [b"first", b"second"]
    assert checkpoint_folder.newest_verified(tmp_path) == path


def test_a_process_killed_while_saving_leaves_no_checkpoint_and_its_aside_is_cleared(tmp_path):
    """SIGKILL between two files: nothing has a checkpoint's name; the living's asides stay."""
    program = f"""
import os, signal
from pathlib import Path
from humigence_worker import checkpoint_folder as folder
class Killing(dict):
    def items(self):
        yield "a.bin", b"content"
        os.kill(os.getpid(), signal.SIGKILL)
header = folder.Header(run="r", step=3, samples=24, world_size=1)
folder.write(Path({str(tmp_path)!r}), header, Killing())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".tmp-step-00000003-")
    assert checkpoint_folder.newest_verified(tmp_path) is None
    living = tmp_path / f".tmp-step-00000004-{os.getppid()}"
    living.mkdir()
    checkpoint_folder.clear_asides(tmp_path)
    assert names(tmp_path) == [living.name]


FULL_DISK = f"""
import errno, os, sys
from pathlib import Path
from humigence_worker import checkpoint_folder as folder
disk = Path(sys.argv[1])
header = folder.Header(run="r", step=3, samples=24, world_size=1)
files = {{"a.bin": bytes({BIG}), "b.bin": bytes({BIG})}}
try:
    folder.write(disk / "checkpoints", header, files)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    sys.exit("no error on a full disk")
assert list((disk / "checkpoints").iterdir()) == []
(disk / "ballast").unlink()
print(folder.write(disk / "checkpoints", header, files).name)
"""


def test_a_full_disk_is_explained_and_the_save_works_once_there_is_space(tmp_path):
    """ENOSPC on a real small disk: one line with folder, need and free; nothing is left over."""
    script = (
        f"mount -t tmpfs -o size=8m none {tmp_path} && "
        f"head -c {2 * BIG - 1024 * 1024} /dev/zero > {tmp_path}/ballast && "
        f'exec {sys.executable} -c "$1" {tmp_path}'
    )
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs unshare and root to mount a small disk")
    done = subprocess.run(
        [unshare, "--mount", "--propagation", "private", "sh", "-c", script, "sh", FULL_DISK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "permission denied" in done.stderr.lower() or "not permitted" in done.stderr.lower():
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "step-00000003"
    assert done.stderr == (
        f"checkpoint: step 3 cannot be saved in {tmp_path}/checkpoints: No space left on device. "
        "It needs 6 MiB, 3 MiB are free. Free some space there; the run goes on from the "
        "checkpoint before.\n"
    )
