"""How a rank that cannot go on ends: said clearly, written down, and at once."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final, NoReturn

import torch.distributed as dist

from humigence_supervise import contract
from humigence_worker.settings import WorkerConfigError

_EXIT_FAILURE: Final = 1


def misconfigured(error: WorkerConfigError) -> int:
    """Say what is wrong with the configuration, without a traceback; return exit code 78.

    Every rank finds the same mistake before the ranks are connected, so the first one tells.
    A mistake found later is this rank's own: it tells, and ends at once (see `crashed`).
    """
    alone = dist.is_initialized()
    if alone or os.environ.get("RANK", "0") == "0":
        _write(f"configuration error: {error}\n")
    if alone:
        _end(contract.EXIT_CONFIG)
    return contract.EXIT_CONFIG


def crashed(error: Exception) -> NoReturn:
    """Print the traceback, write torchrun's error file, and end the process at once.

    At once, past the interpreter's own way out: leaving normally can wait for ever in
    destroy_process_group or in an exit handler of NCCL for ranks that no longer answer, and
    takes one to two seconds even when it works. Until this process is gone nobody knows that
    it failed, so these seconds would be added to every restart.
    """
    _write("".join(traceback.format_exception(error)))
    if os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import (  # noqa: PLC0415 - needed in this case alone
            get_error_handler,
        )

        try:
            get_error_handler().record_exception(error)
        except OSError as problem:
            _write(f"the error file could not be written: {problem}\n")
    _end(_EXIT_FAILURE)


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return  # a full disk below the log: nobody can be told


def _end(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    finally:
        os._exit(code)
