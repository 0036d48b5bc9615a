"""A small training job that fails as it is told: `job.py SCENARIO`; recorded by record.py."""

# ruff: noqa: T201, B028, LOG015, PTH123, SIM115, TRY301 - it speaks and fails like jobs of others

import datetime as dt
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.elastic.multiprocessing.errors
from torch.utils.data import DataLoader, Dataset

STEPS = 12
FAULT_STEP = 6


class Rows(Dataset):
    """Noise; a worker of the named scenarios fails on one row."""

    def __init__(self, scenario):
        """Keep the scenario."""
        self.scenario = scenario

    def __len__(self):
        """Return the number of rows."""
        return 8 * STEPS

    def __getitem__(self, index):
        """Return one row, or fail."""
        if index == 8 * FAULT_STEP and self.scenario == "dataset_error":
            return {"text": 1.0}["label"]
        if index == 8 * FAULT_STEP and self.scenario == f"loader_killed{os.environ['RANK']}":
            os.kill(os.getpid(), signal.SIGKILL)
        wide = 400_000 if self.scenario == "shm_full" else 4
        return torch.full((wide,), float(index % 7))


def setup(scenario):
    """Join the group; return (rank, world size)."""
    if scenario == "import_error":
        import flash_attn_kernels  # noqa: F401, PLC0415
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if scenario == "wrong_world":
        world += 1
    wait_s = 5 if scenario in ("gloo_timeout", "wrong_world") else 60
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, timeout=dt.timedelta(seconds=wait_s)
    )
    return rank, world


def fault(scenario, rank, model):  # noqa: C901 - a table of faults
    """Fail before a step, where the scenario says so."""
    match scenario, rank:
        case (("user_error" | "user_error_tee"), 1):
            raise ValueError("labels of batch 6 have 31 classes, the head has 30")
        case "sigkill", 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault", 1:
            faulthandler.enable()
            faulthandler._sigsegv()  # noqa: SLF001
        case "segfault_then_error", 2:
            faulthandler.enable()
            faulthandler._sigsegv()  # noqa: SLF001
        case "segfault_then_error", 0:
            time.sleep(0.02)
            {"cosine": 1}["cosine_with_restarts"]
        case "two_errors", 1:
            raise RuntimeError("shape '[8, 3]' is invalid for input of size 25")
        case "two_errors", 2:
            time.sleep(0.3)
            open("/home/user/data/vocab.json")
        case "disk_full", 0:
            torch.save({"step": 6, "w": torch.zeros(2_000_000)}, "/home/user/ckpt/step-6.pt")
        case "gloo_timeout", 1:
            time.sleep(9)
        case "shapes", _:
            dist.all_reduce(torch.ones(10 + 10 * rank))
        case "nan", _:
            model.weight.data.fill_(float("nan"))
        case "exit_early", _:
            sys.stdout.flush()
            os._exit(0)
        case "sigint" | "sigterm", _:
            if rank == 0:
                os.kill(os.getppid(), signal.SIGINT if scenario == "sigint" else signal.SIGTERM)
            time.sleep(20)
        case "sigterm_waits", _:
            time.sleep(60)
        case "survived", 1:
            survive()
        case "scary", _:
            frighten(rank)


def survive():
    """Log an error with its traceback and go on."""
    import logging  # noqa: PLC0415

    try:
        raise ConnectionError("metrics endpoint http://metrics:9090 refused the upload")
    except ConnectionError:
        logging.exception("upload of metrics failed, will try again at the next step")


def frighten(rank):
    """Say what only sounds like a failure."""
    import warnings  # noqa: PLC0415

    warnings.warn("torch.cuda.OutOfMemoryError handling is on: CUDA out of memory is retried")
    print(f"rank {rank}: sample 6: 'RuntimeError: NCCL error means that', he said, 'a segfault?'")
    print("0 errors, 0 NaN, 0 killed; no space left on device: never; timeout 1800000 ms")
    print(f"node1:4242:4243 [{rank}] NCCL INFO NCCL_DEBUG set by environment to INFO")


def checkpoint(scenario, model, optimizer):
    """Load the newest checkpoint where the scenario has one."""
    if scenario == "corrupt":
        path = Path("/home/user/ckpt/step-40.pt")
        torch.save({"model": model.state_dict(), "pad": torch.zeros(9000)}, path)
        os.truncate(path, path.stat().st_size // 2)
        print(f"resuming from {path}", flush=True)
        model.load_state_dict(torch.load(path)["model"])
    return optimizer


def train(scenario, rank, world):
    """Train a line, a step a batch."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint(scenario, model, optimizer)
    workers = 2 if scenario in ("dataset_error", "loader_killed1", "shm_full") else 0
    loader = DataLoader(Rows(scenario), batch_size=8, num_workers=workers)
    print(f"rank {rank} of {world} is ready", flush=True)
    for step, batch in enumerate(loader):
        if step == FAULT_STEP:
            fault(scenario, rank, model)
        loss = model(batch[:, :4]).pow(2).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is nan at step {step}, learning rate 1.0e-02")
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print(f"step {step}/{STEPS} loss {loss.item():.4f} lr 1.0e-02", flush=True)
        time.sleep(0.02)


def main():
    """Run one scenario."""
    scenario = sys.argv[1]
    rank, world = setup(scenario)
    train(scenario, rank, world)
    print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


def spawned(rank, world):
    """Be one rank of torch.multiprocessing.spawn."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    main()


if __name__ == "__main__":
    if sys.argv[1:2] == ["spawn"]:
        sys.argv.pop(1)
        torch.multiprocessing.spawn(spawned, args=(2,), nprocs=2)
    elif sys.argv[1] == "two_errors":
        torch.distributed.elastic.multiprocessing.errors.record(main)()
    else:
        main()
