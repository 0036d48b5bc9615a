"""What a checkpoint holds, and whether it is this run's.

Tensors are safetensors, everything else is JSON: nothing here can run code when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from torch import Tensor

from humigence_worker import checkpoint_folder, checkpoint_manifest
from humigence_worker.checkpoint_manifest import CheckpointDamagedError, Header
from humigence_worker.settings import WorkerConfigError

MODEL_FILE: Final = "model.safetensors"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
STATE_FILE: Final = "state.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint and the run that resumes from it must agree on.

    The learning rate, the intervals and the length of the run may change between attempts; these
    may not, or the weights would not fit, or samples would be lost or repeated. `run` is None
    where nobody gave the run a name (started by hand): then it is not compared.
    """

    run: str | None
    data: str
    model: Mapping[str, int]
    seed: int
    virtual_ranks: int
    global_samples: int


_MEANING: Final = {
    "run": "run",
    "data": "data set (fingerprint)",
    "model": "model shape",
    "seed": "seed",
    "virtual_ranks": "number of virtual ranks",
    "global_samples": "global batch",
}


@dataclass(frozen=True, slots=True)
class TrainingState:
    """A training after `step` completed steps and `samples` consumed samples.

    `notes` is JSON: the optimizer's rule, the schedule, the random number streams, the data
    position, the gradient scaler (null: bf16 needs none).
    """

    step: int
    samples: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    notes: Mapping[str, Any]


def save(checkpoint_dir: Path, state: TrainingState, identity: Identity, world_size: int) -> Path:
    """Write the checkpoint and return its folder, once it is safe on the disk.

    Raises:
        OSError: nothing of it is there then; a full disk was explained on stderr.
    """
    run = identity.run or checkpoint_dir.absolute().parent.name
    own = {
        "step": state.step,
        "samples": state.samples,
        "identity": {**asdict(identity), "run": run},
        **state.notes,
    }
    files = {
        MODEL_FILE: _packed(state.model),
        OPTIMIZER_FILE: _packed(state.optimizer),
        STATE_FILE: json.dumps(own, indent=1).encode(),
    }
    header = Header(run, state.step, state.samples, world_size)
    return checkpoint_folder.write(checkpoint_dir, header, files)


def load(path: Path, identity: Identity) -> tuple[TrainingState, str]:
    """Return the state at `path`, tensors on the CPU, and the name of the run that wrote it.

    Everything is verified before any of it is used.

    Raises:
        CheckpointDamagedError: it is not what was written.
        WorkerConfigError: it is whole, but another run's; names both values.
        OSError: it could not be read.
    """
    header, files = checkpoint_manifest.read(path)
    missing = {MODEL_FILE, OPTIMIZER_FILE, STATE_FILE} - set(files)
    if missing:
        raise CheckpointDamagedError(
            f"checkpoint {path} is damaged: its manifest does not list {', '.join(sorted(missing))}"
        )
    notes = json.loads(files[STATE_FILE])
    _refuse_another(path, {**notes["identity"], "run": header.run}, identity)
    state = TrainingState(
        step=header.step,
        samples=header.samples,
        model=safetensors.torch.load(files[MODEL_FILE]),
        optimizer=safetensors.torch.load(files[OPTIMIZER_FILE]),
        notes=notes,
    )
    return state, header.run


def _refuse_another(path: Path, theirs: Mapping[str, Any], identity: Identity) -> None:
    for field in fields(identity):
        wanted, found = getattr(identity, field.name), theirs.get(field.name)
        if wanted is None or wanted == found:
            continue
        what = _MEANING[field.name]
        raise WorkerConfigError(
            f"checkpoint {path} has another {what}: {found} there, {wanted} in this run. "
            "Resume with the configuration it was made with, or start a new run in another "
            "run directory."
        )


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    with torch.no_grad():
        ready = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    return safetensors.torch.save(ready)
