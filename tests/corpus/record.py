"""Record incidents of the corpus: `python tests/corpus/record.py OUT_DIR [NAME...]` (Linux, root).

Each recipe runs job.py for real, in its own mount, host name and process namespace, so that paths
and names in the logs are nobody's, and everything it started dies with it. What it left is copied
to OUT_DIR/NAME; `expected.json` is written by hand, from what the recipe does.
"""

# ruff: noqa: T201 - a tool that says what it does

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 120
MOST_BYTES = 60_000
MARKERS_NOT_KEPT = ("keeper.lock", "keeper.json", "keeper.ballast")

SETUP = """
hostname node1
mount -t tmpfs none /home
mkdir -p /home/user/project /home/user/ckpt /home/user/data /home/user/venv /home/user/left
mount --bind "$VENV" /home/user/venv
printf '127.0.0.1 localhost node1\\n' >/home/hosts
mount --bind /home/hosts /etc/hosts
cp "$HERE/job.py" /home/user/project/train.py
cd /home/user/project
ip link set lo up 2>/dev/null || true
export HOME=/home/user PATH=/home/user/venv/bin:/usr/bin:/bin GLOO_SOCKET_IFNAME=lo
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 USER=user LEFT=/home/user/left
unset VIRTUAL_ENV PYTHONPATH
run() { python -m torch.distributed.run --master-port 29507 "$@"; }
ended() { printf '%s' "$1" >/home/user/code; }
"""

ONE_FILE = "code=0; run --nproc-per-node {n} {flags} train.py {job} >$LEFT/{file} 2>&1 || code=$?"
LOG_DIR = (
    "code=0; run --nproc-per-node {n} --log-dir $LEFT/logs --redirects 3 {flags} train.py {job}"
    " >$LEFT/torchrun.out 2>&1 || code=$?"
)


def one_file(job, n=2, file="train.log", flags="", before=""):
    """Return a recipe whose ranks and launcher share one file."""
    return before + ONE_FILE.format(n=n, flags=flags, job=job, file=file)


def log_dir(job, n=2, flags="", before=""):
    """Return a recipe with torchrun's own folder of logs."""
    return before + LOG_DIR.format(n=n, flags=flags, job=job)


def attempt(worker, batch=None, more="", **config):
    """Return a recipe run by the supervisor; its only attempt's folder is kept."""
    text = json.dumps(
        {
            "name": "job",
            "run_dir": "/home/user/runs/job",
            "accelerator": "cpu",
            "worker": worker,
            "policy": {"attempts_without_progress": 1, "retries": 1},
            "ladder": [{"name": "two", "gpus": 2, "launcher": "torchrun"}],
            **({"batch": batch} if batch else {}),
            **config,
        }
    )
    start = "python -c 'from humigence_supervise.cli import main; main()'"
    return (
        f"cat >job.json <<'EOF'\n{text}\nEOF\n{more}\n"
        f"code=0; {start} start job.json >/home/user/start.log 2>&1 || code=$?\n"
        "cp -r /home/user/runs/job/attempts/0001/. $LEFT/"
    )


def script(job, **config):
    """Return the attempt of job.py with a scenario."""
    worker = {"script": "train.py", "args": [job], "preset": "torchrun"}
    return attempt(worker, **config)


def reference(fault, **config):
    """Return the attempt of the reference worker with one fault of its own."""
    settings = {
        "data": "stdlib", "seed": 1, "seq_len": 64, "d_model": 32, "n_layers": 1, "n_heads": 2,
        "virtual_ranks": 2, "per_device_train_batch_size": 8, "micro_batch": 8, "max_steps": 20,
        "save_steps": 5, "log_steps": 5, "max_eval_samples": 32, "cpu_threads": 1,
        "faults": fault,
    }  # fmt: skip
    worker = {
        "module": "humigence_worker.train",
        "args": ["--config", "worker.json"],
        "preset": "humigence",
    }
    more = f"cat >worker.json <<'EOF'\n{json.dumps(settings)}\nEOF"
    return attempt(worker, batch={"global": 16, "micro": 8}, more=more, **config)


SMALL_SHM = "mount -t tmpfs -o size=64m none /dev/shm\n"
SMALL_CKPT = "mount -t tmpfs -o size=4m none /home/user/ckpt\n"
HOLD_PORT = (
    'python -c \'import socket,time; s=socket.socket(); s.bind(("", 29507)); s.listen();'
    " print(1, flush=True); time.sleep(100)' >/home/user/held &\n"
    "until [ -s /home/user/held ]; do :; done\n"
)
WRAPPER = """
cat >launch.py <<'EOF'
import subprocess, sys
subprocess.run([sys.executable, "-u", "train.py", *sys.argv[1:]], check=True)
EOF
code=0; RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29507 \
  python launch.py import_error >$LEFT/train.log 2>&1 || code=$?
"""
SLURM = "code=0; run --nproc-per-node 2 {flags} train.py {job} >$LEFT/slurm-4011.out"
SLURM += " 2>$LEFT/slurm-4011.err || code=$?"

RECIPES = {
    "user-error-peer-waits": script("user_error"),
    "user-error-files-joined": log_dir("user_error", n=3)
    + "\ncd $LEFT/logs/*/attempt_0 && cat 0/stdout.log 0/stderr.log 1/stdout.log"
    " 1/stderr.log 2/stdout.log 2/stderr.log $LEFT/torchrun.out >$LEFT/train.log"
    "\nrm -r $LEFT/logs $LEFT/torchrun.out; cd /home/user/project",
    "user-error-tee": one_file("user_error_tee", n=3, flags="--tee 3"),
    "import-error-all-ranks": log_dir("import_error"),
    "rank-sigkill": one_file("sigkill"),
    "rank-segfault": script("segfault"),
    "segfault-then-key-error": log_dir("segfault_then_error", n=3),
    "two-errors": log_dir("two_errors", n=3),
    "dataset-key-error": one_file("dataset_error", flags="--tee 3"),
    "loader-worker-killed": one_file("loader_killed1"),
    "loader-shm-full": one_file("shm_full", before=SMALL_SHM),
    "checkpoint-disk-full": log_dir("disk_full", before=SMALL_CKPT),
    "checkpoint-truncated": one_file("corrupt"),
    "port-in-use": one_file("clean", before=HOLD_PORT),
    "wrong-world-size": log_dir("wrong_world"),
    "gloo-timeout": log_dir("gloo_timeout"),
    "gloo-shapes-differ": one_file("shapes"),
    "collectives-differ-detail": one_file(
        "shapes", before="export TORCH_DISTRIBUTED_DEBUG=DETAIL\n"
    ),
    "loss-nan": SLURM.format(flags="", job="nan"),
    "ctrl-c": one_file("sigint"),
    "sigterm": SLURM.format(flags="", job="sigterm"),
    "exit-zero-early": reference([{"name": "exit0", "step": 12}]),
    "clean-attempt": script("clean"),
    "clean-scary-words": one_file("scary", flags="--tee 3"),
    "clean-after-survived-error": log_dir("survived"),
    "mp-spawn-error": (
        "code=0; python -u train.py spawn user_error >$LEFT/train.log 2>&1 || code=$?"
    ),
    "launcher-called-process-error": WRAPPER,
    "worker-nccl-timeout": reference([{"name": "nccl_timeout", "step": 12, "rank": 1}]),
    "worker-cuda-oom": reference([{"name": "cuda_oom", "step": 12, "rank": 1}]),
    "worker-nccl-remote": reference([{"name": "nccl_error", "step": 12, "rank": 1}]),
    "stopped-on-request": attempt(
        {"script": "train.py", "args": ["sigterm_waits"], "preset": "torchrun"},
        stop={"grace_s": 5},
        more="(until grep -qs 'step 3' /home/user/runs/job/attempts/0001/ranks/0/stdout.log;"
        " do :; done; python -c 'from humigence_supervise.cli import main; main()'"
        " stop job.json) >/home/user/stop.log 2>&1 &",
    ),
}


def record(name, out):
    """Run one recipe; return its exit code and what it left."""
    room = out / name
    room.mkdir(parents=True, exist_ok=True)
    end = f"\nprintf '%s' $code >/home/user/code\ncp -r $LEFT/. '{room}/'\ncp /home/user/code "
    shell = "set -eu\n" + SETUP + RECIPES[name] + end + f"'{room}/.code'\n"
    space = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    venv = Path(sys.executable).parent.parent
    subprocess.run(
        [*space, "timeout", str(LIMIT_S), "bash", "-c", shell],
        check=True,
        env={"PATH": "/usr/bin:/bin:/sbin", "VENV": str(venv), "HERE": str(HERE)},
        timeout=LIMIT_S + 10,
    )
    tidy(room, venv)
    return int((room / ".code").read_text())


def tidy(room, venv):
    """Drop what no reader needs; replace the machine's own paths; refuse what is too large."""
    own = {str(venv): "/home/user/venv", str(HERE.parent.parent): "/home/user/src"}
    for path in [path for path in room.rglob("*") if path.is_file()]:
        if path.name in MARKERS_NOT_KEPT:
            path.unlink()
            continue
        raw = path.read_bytes()
        for mine, nobodys in own.items():
            raw = raw.replace(mine.encode(), nobodys.encode())
        path.write_bytes(raw)
    total = sum(path.stat().st_size for path in room.rglob("*") if path.is_file())
    print(f"{room.name}: {total} bytes{' TOO LARGE' if total > MOST_BYTES else ''}", flush=True)


if __name__ == "__main__":
    for chosen in sys.argv[2:] or RECIPES:
        print(chosen, "exit code", record(chosen, Path(sys.argv[1]).resolve()), flush=True)
