"""A worker in nobody's framework and without torch: counts steps, reports, saves, resumes.

Arguments: the target step and the seconds a step takes.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

SAVE_EVERY_STEPS = 5

target_step, step_s = int(sys.argv[1]), float(sys.argv[2])
run = os.environ["HUMIGENCE_RUN_ID"]
checkpoints = Path(os.environ["HUMIGENCE_CHECKPOINT_DIR"])
resume_from = os.environ["HUMIGENCE_RESUME_FROM"]
progress = Path(os.environ["HUMIGENCE_PROGRESS_DIR"], os.environ["RANK"] + ".jsonl")
global_batch = int(os.environ["HUMIGENCE_GLOBAL_BATCH"])
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))


def report(step, section, first, last):
    """Append one progress line."""
    line = {"ts": time.time(), "step": step, "epoch": 0, "samples": [first, last]}
    line |= {"loss": 1 / (step + 1), "section": section, "target_step": target_step}
    with progress.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def save(step):
    """Write a checkpoint aside and rename it into place, its manifest last."""
    final = checkpoints / f"step-{step:08d}"
    aside = checkpoints / f".step-{step:08d}.part"
    aside.mkdir(parents=True)
    data = str(step).encode()
    (aside / "state.txt").write_bytes(data)
    entry = {"path": "state.txt", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"format": "humigence-checkpoint-1", "run": run, "step": step}
    manifest |= {"samples": step * global_batch, "world_size": 1, "files": [entry]}
    (aside / "MANIFEST.json").write_text(json.dumps(manifest))
    aside.rename(final)


step = int(Path(resume_from, "state.txt").read_text()) if resume_from else 0
report(step, "init", step * global_batch, step * global_batch)
saved = step
while step < target_step and not stop:
    time.sleep(step_s)
    step += 1
    report(step, "train", (step - 1) * global_batch, step * global_batch)
    if step % SAVE_EVERY_STEPS == 0:
        save(step)
        saved = step
if step != saved:
    save(step)
sys.exit(143 if step < target_step else 0)
